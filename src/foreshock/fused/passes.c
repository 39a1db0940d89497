/* One pass over memory for several readings at once, for tensors on a CPU.
 *
 * torch has a kernel for each reading, so that a tensor is read, or a sample of it gathered, once
 * for each. Everything here only reads what it measures. Sums are fp64, so that the square of
 * no fp32 number leaves their range. They are taken over pieces of fixed size and added in order: a
 * result does not depend on how many threads there are.
 */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
#define PIECE 16384 /* elements that one thread takes at a time */
#define CHUNK 1024  /* elements between additions into a wider sum */
#ifdef __AVX__
#define FEW 256 /* the same where the sum is fp32: at most 32 additions to each part of a vector */
#else
#define FEW 32
#endif

enum { FP32 = 0, BF16 = 1 };

typedef struct {
  double squares;
  int64_t zeros;
  uint32_t peak; /* bits of the largest magnitude: as whole numbers NaN > Inf > any other */
} Seen;

static inline uint32_t bits_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits & 0x7fffffffu;
}

static inline float of_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

#define SEE(name, type, load)                                                                   \
  static Seen name(const type *x, int64_t n) {                                                  \
    Seen seen = {0.0, 0, 0};                                                                    \
    for (int64_t low = 0; low < n; low += CHUNK) {                                              \
      int64_t high = low + CHUNK < n ? low + CHUNK : n;                                         \
      double squares = 0.0;                                                                     \
      uint32_t peak = 0;                                                                        \
      int32_t zeros = 0;                                                                        \
      _Pragma("omp simd reduction(+ : squares, zeros) reduction(max : peak)") for (             \
          int64_t i = low; i < high; i++) {                                                     \
        float value = load(x[i]);                                                               \
        uint32_t bits = bits_of(value);                                                         \
        squares += (double)value * (double)value;                                               \
        peak = bits > peak ? bits : peak;                                                       \
        zeros += bits == 0;                                                                     \
      }                                                                                         \
      seen.squares += squares;                                                                  \
      seen.peak = peak > seen.peak ? peak : seen.peak;                                          \
      seen.zeros += zeros;                                                                      \
    }                                                                                           \
    return seen;                                                                                \
  }

#define AS_IT_IS(value) (value)
#define WIDENED(value) of_bf16(value)

static inline float of_bf16(uint16_t half) {
  uint32_t bits = (uint32_t)half << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

SEE(see_fp32, float, AS_IT_IS)
SEE(see_bf16, uint16_t, WIDENED)

/* Of each tensor the sum of squares, the largest magnitude (NaN if an entry is) and the number of
 * entries that are zero, `[3, num]`. Returns 0, or 1 if there is no memory. */
EXPORT int foreshock_entries(const void *const *tensors, const int64_t *sizes, const int64_t *kinds,
                             int64_t num, int threads, double *found) {
  int64_t *first = malloc((size_t)(num + 1) * sizeof *first);
  if (!first) return 1;
  first[0] = 0;
  for (int64_t t = 0; t < num; t++) first[t + 1] = first[t] + (sizes[t] + PIECE - 1) / PIECE;
  int64_t pieces = first[num];
  Seen *seen = malloc((size_t)(pieces ? pieces : 1) * sizeof *seen);
  int64_t *owner = malloc((size_t)(pieces ? pieces : 1) * sizeof *owner);
  if (!seen || !owner) {
    free(first), free(seen), free(owner);
    return 1;
  }
  for (int64_t t = 0; t < num; t++)
    for (int64_t p = first[t]; p < first[t + 1]; p++) owner[p] = t;
#pragma omp parallel for schedule(static) num_threads(threads) if (pieces > 4 && threads > 1)
  for (int64_t p = 0; p < pieces; p++) {
    int64_t t = owner[p], from = (p - first[t]) * PIECE;
    int64_t n = sizes[t] - from < PIECE ? sizes[t] - from : PIECE;
    seen[p] = kinds[t] == BF16 ? see_bf16((const uint16_t *)tensors[t] + from, n)
                               : see_fp32((const float *)tensors[t] + from, n);
  }
  for (int64_t t = 0; t < num; t++) {
    double squares = 0.0, zeros = 0.0;
    uint32_t peak = 0;
    for (int64_t p = first[t]; p < first[t + 1]; p++) {
      squares += seen[p].squares;
      zeros += (double)seen[p].zeros;
      peak = seen[p].peak > peak ? seen[p].peak : peak;
    }
    found[t] = squares;
    found[num + t] = of_bits(peak);
    found[2 * num + t] = zeros;
  }
  free(first), free(seen), free(owner);
  return 0;
}

/* The same of one tensor, `[3]`. */
EXPORT int foreshock_entry(const void *tensor, int64_t size, int64_t kind, int threads,
                           double *found) {
  return foreshock_entries(&tensor, &size, &kind, 1, threads, found);
}

/* Where a tensor's sample lies: `count` runs of `length`, `stride` apart, from `start` on; and from
 * where on it stands in the buffer of all samples. */
typedef struct {
  int64_t start, count, length, stride, at;
} Place;

#define AHEAD 24 /* runs to ask the memory for in advance */

static void gather(const float *from, const Place *place, float *to) {
  const float *x = from + place->start;
  int64_t length = place->length, stride = place->stride;
  for (int64_t run = 0; run < place->count; run++) {
    if (run + AHEAD < place->count) __builtin_prefetch(x + (run + AHEAD) * stride);
    memcpy(to + run * length, x + run * stride, (size_t)length * sizeof *to);
  }
}

/* Copy the sample of each tensor to its place in the buffer; of a null tensor, zeros. Returns 0. */
EXPORT int foreshock_gather(const float *const *tensors, const Place *places, int64_t num,
                            int threads, float *buffer) {
#pragma omp parallel for schedule(dynamic, 4) num_threads(threads) if (threads > 1)
  for (int64_t t = 0; t < num; t++) {
    const Place *place = &places[t];
    if (tensors[t])
      gather(tensors[t], place, buffer + place->at);
    else
      memset(buffer + place->at, 0, (size_t)(place->count * place->length) * sizeof *buffer);
  }
  return 0;
}

static double sum_of_squares(const float *x, int64_t n) {
  double sum = 0.0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
  return sum;
}

/* Of the sample of each parameter `[5, num]`: sums of squares of its movement since `before`, of
 * its weights and of its first moment, the sum of the second moment, and that of
 * `g^2 / max(second, least)`. Null moments give 0. `weights` gets the sample of the weights.
 * Returns 0, or 1 if there is no memory. */
EXPORT int foreshock_updates(const float *const *parameters, const float *const *firsts,
                             const float *const *seconds, const Place *places, int64_t num,
                             int threads, const float *before, const float *grads, double least,
                             float *weights, double *found) {
  const float floor = (float)least;
  int64_t largest = 1;
  int failed = 0;
  for (int64_t t = 0; t < num; t++) {
    int64_t n = places[t].count * places[t].length;
    largest = n > largest ? n : largest;
  }
#pragma omp parallel num_threads(threads) if (threads > 1) reduction(| : failed)
  {
    float *room = malloc((size_t)largest * sizeof *room);
    failed |= !room;
#pragma omp for schedule(dynamic, 4)
    for (int64_t t = 0; t < num; t++) {
      if (!room) continue;
      const Place *place = &places[t];
      int64_t n = place->count * place->length;
      float *now = weights + place->at;
      const float *old = before + place->at, *grad = grads + place->at;
      double moved = 0.0, first = 0.0, second = 0.0, stale = 0.0;
      if (parameters[t])
        gather(parameters[t], place, now);
      else
        n = 0;
#pragma omp simd reduction(+ : moved)
      for (int64_t i = 0; i < n; i++) {
        double step = (double)now[i] - (double)old[i];
        moved += step * step;
      }
      if (firsts[t]) {
        gather(firsts[t], place, room);
        first = sum_of_squares(room, n);
      }
      if (seconds[t]) {
        gather(seconds[t], place, room);
#pragma omp simd reduction(+ : second, stale)
        for (int64_t i = 0; i < n; i++) {
          float most = room[i] < floor ? floor : room[i]; /* a NaN stays one */
          second += room[i];
          stale += (double)grad[i] * (double)grad[i] / (double)most;
        }
      }
      found[t] = moved;
      found[num + t] = sum_of_squares(now, n);
      found[2 * num + t] = first;
      found[3 * num + t] = second;
      found[4 * num + t] = stale;
    }
    free(room);
  }
  return failed;
}

/* e^x for x <= 0 to 2e-7 relative, 0 below -87 (Cephes). A NaN stays one. */
static inline float exponential(float x) {
  float low = x < -87.0f ? -87.0f : x;
  /* Rounds to the nearest whole number, as vectors everywhere, which rintf is not. */
  float whole = low * 1.44269504088896341f + 12582912.0f - 12582912.0f;
  float rest = low - whole * 0.693359375f;
  rest += whole * 2.12194440e-4f;
  float power = 1.9875691500e-4f;
  power = power * rest + 1.3981999507e-3f;
  power = power * rest + 8.3334519073e-3f;
  power = power * rest + 4.1665795894e-2f;
  power = power * rest + 1.6666665459e-1f;
  power = power * rest + 5.0000001201e-1f;
  power = power * rest * rest + rest + 1.0f;
  uint32_t exponent = (uint32_t)((int32_t)(whole != whole ? 0.0f : whole) + 127) << 23;
  return x < -87.0f ? 0.0f : power * of_bits(exponent);
}

#define LOGITS(name, type, load)                                                                \
  static void name(const type *x, int64_t n, double *found) {                                   \
    float largest = -INFINITY;                                                                  \
    uint32_t peak = 0;                                                                          \
    _Pragma("omp simd reduction(max : largest, peak)") for (int64_t i = 0; i < n; i++) {        \
      float value = load(x[i]);                                                                 \
      uint32_t bits = bits_of(value);                                                           \
      largest = value > largest ? value : largest;                                              \
      peak = bits > peak ? bits : peak;                                                         \
    }                                                                                           \
    if (peak > 0x7f800000u) largest = NAN;                                                      \
    double total = 0.0, moment = 0.0;                                                           \
    for (int64_t low = 0; low < n; low += FEW) {                                                \
      int64_t high = low + FEW < n ? low + FEW : n;                                             \
      float sum = 0.0f, weighted = 0.0f;                                                        \
      _Pragma("omp simd reduction(+ : sum, weighted)") for (int64_t i = low; i < high; i++) {   \
        float below = load(x[i]) - largest;                                                     \
        below = below < -1e30f ? -1e30f : below; /* of -Inf, so that 0 * -Inf is 0 */           \
        float share = exponential(below);                                                       \
        sum += share;                                                                           \
        weighted += share * below;                                                              \
      }                                                                                         \
      total += sum;                                                                             \
      moment += weighted;                                                                       \
    }                                                                                           \
    found[0] = largest;                                                                         \
    found[1] = total;                                                                           \
    found[2] = moment;                                                                          \
  }

LOGITS(logits_fp32, float, AS_IT_IS)
LOGITS(logits_bf16, uint16_t, WIDENED)

/* Of each row of logits: the largest, the sum of `e^below` and that of `e^below * below`, where
 * `below` is the distance to the largest, `[num, 3]`. Returns 0. */
EXPORT int foreshock_logits(const void *rows, int64_t kind, int64_t num, int64_t stride,
                            int64_t width, int threads, double *found) {
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
  for (int64_t row = 0; row < num; row++) {
    if (kind == BF16)
      logits_bf16((const uint16_t *)rows + row * stride, width, found + 3 * row);
    else
      logits_fp32((const float *)rows + row * stride, width, found + 3 * row);
  }
  return 0;
}
