"""Every signal again, slowly: fp64 NumPy over whole tensors, one function a family of series.

Nothing of `foreshock` is used. Arrays are float64; parameters go by path, and `groups` names
the module group of each path.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

Array = NDArray[np.float64]
Tensors = Mapping[str, Array]
Series = dict[str, float]

SMALLEST_NORMAL_HALF = 2.0**-14


def array(tensor: torch.Tensor | None, like: torch.Tensor | None = None) -> Array:
    """A tensor as float64: dense, complex numbers as pairs; zeros like another if it is None."""
    if tensor is None:
        assert like is not None
        tensor = torch.zeros_like(like)
    found = tensor.detach().to_dense() if tensor.is_sparse else tensor.detach()
    if found.is_complex():
        found = torch.view_as_real(found.resolve_conj())
    return found.to(torch.float64).clone().numpy()


def norm(one: Array) -> float:
    """L2 norm that neither overflows nor underflows; NaN before Inf before a number."""
    flat = np.abs(one).reshape(-1)
    if flat.size == 0:
        return 0.0
    if np.isnan(flat).any():
        return math.nan
    largest = float(flat.max())
    if largest == 0 or math.isinf(largest):
        return largest
    return largest * math.sqrt(float(np.sum((flat / largest) ** 2)))


def norm_of(parts: Sequence[float]) -> float:
    """Norm of a whole from the norms of its parts."""
    return norm(np.array(list(parts) or [0.0]))


def grouped(values: Mapping[str, float], groups: Mapping[str, str]) -> dict[str, list[float]]:
    """The values of each module group's parameters."""
    found: dict[str, list[float]] = {}
    for path, value in values.items():
        found.setdefault(groups[path], []).append(value)
    return found


def sizes(tensors: Tensors, groups: Mapping[str, str]) -> dict[str, float]:
    """Elements of each module group."""
    counts = grouped({path: float(one.size) for path, one in tensors.items()}, groups)
    return {group: sum(count) for group, count in counts.items()}


def gradients(
    grads: Tensors, groups: Mapping[str, str], *, clip: float | None, eps: float = 0.0
) -> Series:
    """Norms before clipping, shares, and what clipping took."""
    norms = {path: norm(one) for path, one in grads.items()}
    total = norm_of(list(norms.values()))
    found = {
        "grad_norm/global": total,
        "num_nonfinite_grads/global": float(
            sum(not np.isfinite(one).all() for one in grads.values())
        ),
        "clip_share/global": 0.0 if clip is None else 1 - min(1.0, clip / (total + 1e-6)),
    }
    if math.isnan(total):
        found["clip_share/global"] = math.nan
    elements = sizes(grads, groups)
    for group, values in grouped(norms, groups).items():
        own = norm_of(values)
        found[f"grad_norm/{group}"] = own
        found[f"grad_share/{group}"] = (own / total) ** 2 if total else 0.0
        if eps:
            found[f"grad_rms_to_eps/{group}"] = own / math.sqrt(max(elements[group], 1)) / eps
    return found


def extremes(grads: Tensors, groups: Mapping[str, str]) -> Series:
    """Largest magnitudes, and entries that are not finite."""
    largest = {path: float(np.abs(one).max(initial=0.0)) for path, one in grads.items()}
    found = {"grad_absmax/global": float(np.max(list(largest.values())))}
    for group, values in grouped(largest, groups).items():
        found[f"grad_absmax/{group}"] = float(np.max(values))
    for path, one in grads.items():
        found[f"num_nonfinite_entries/{path}"] = float((~np.isfinite(one)).sum())
    return found


def parameters(weights: Tensors, first: Tensors, groups: Mapping[str, str]) -> Series:
    """Norms, and growth since `first`."""
    norms = {path: norm(one) for path, one in weights.items()}
    found = {"param_norm/global": norm_of(list(norms.values()))}
    begun = grouped({path: norm(one) for path, one in first.items()}, groups)
    for group, values in grouped(norms, groups).items():
        found[f"param_norm/{group}"] = norm_of(values)
        start = norm_of(begun[group])
        found[f"param_growth/{group}"] = norm_of(values) / start if start else 1.0
    return found


def update(before: Tensors, after: Tensors, groups: Mapping[str, str]) -> Series:
    """How far the weights moved, and that over their size."""
    moved = {path: norm(after[path] - before[path]) for path in before}
    size = {path: norm(one) for path, one in after.items()}
    scopes = {"global": list(before)} | {
        group: [path for path in before if groups[path] == group]
        for group in dict.fromkeys(groups[path] for path in before)
    }
    found: Series = {}
    for scope, paths in scopes.items():
        far = norm_of([moved[path] for path in paths])
        found[f"update_norm/{scope}"] = far
        found[f"update_ratio/{scope}"] = far / max(norm_of([size[p] for p in paths]), 1e-30)
    return found


def lost_share(before: Tensors, after: Tensors, grads: Tensors, low: Sequence[str]) -> float:
    """Share of the weights in `low` precision with a gradient that did not move."""
    asked = sum(int((grads[path] != 0).sum()) for path in low)
    lost = sum(int(((grads[path] != 0) & (after[path] == before[path])).sum()) for path in low)
    return lost / max(asked, 1)


@dataclass
class Adaptive:
    """What RMS_t needs of an optimizer: None for `beta2` where v is not corrected for bias."""

    beta2: float | None
    eps: float


def moments(
    first: Tensors,
    second: Tensors | None,
    used_grads: Tensors,
    groups: Mapping[str, str],
    *,
    num_updates: float,
    adaptive: Adaptive | None = None,
) -> Series:
    """Norm of the first moment; root mean of the second; `sqrt(mean(g^2 / max(v, eps^2)))`."""
    scopes = {"global": list(first)} | {
        group: [path for path in first if groups[path] == group]
        for group in dict.fromkeys(groups[path] for path in first)
    }
    broken = sum(
        not np.isfinite(first[path]).all()
        or (second is not None and not np.isfinite(second[path]).all())
        for path in first
    )
    found: Series = {
        "num_nonfinite_moments/global": float(broken),
        "num_updates/global": num_updates,
    }
    for scope, paths in scopes.items():
        found[f"first_moment_norm/{scope}"] = norm_of([norm(first[path]) for path in paths])
        if second is None or adaptive is None:
            continue
        correction = 1.0
        if adaptive.beta2 is not None:
            correction = 1 - adaptive.beta2 ** max(num_updates, 1)
        total = ratio = 0.0
        for path in paths:
            total += float(second[path].sum())
            corrected = np.maximum(second[path] / correction, adaptive.eps**2)
            ratio += float((used_grads[path] ** 2 / corrected).sum())
        count = max(sum(first[path].size for path in paths), 1)
        found[f"second_moment_rms/{scope}"] = float(np.sqrt(total / count))
        found[f"rms_t/{scope}"] = float(np.sqrt(ratio / count))
    return found


def activation_norm(name: str, inputs: Sequence[Array]) -> Series:
    """Root mean square of what entered a layer, each forward weighing the same."""
    return {f"activation_norm/{name}": root_mean_square(inputs)}


def root_mean_square(seen: Sequence[Array]) -> float:
    """Root of the mean over forwards of the mean of squares."""
    means = [norm(one) / math.sqrt(one.size) for one in seen]
    return norm_of(means) / math.sqrt(len(means))


def activations(
    outputs: Mapping[str, Sequence[Array]], *, saturated_ratio: float | None = None
) -> Series:
    """Of each module's outputs: size, largest magnitude, dead and saturated channels."""
    found: Series = {}
    for name, seen in outputs.items():
        found[f"activation_rms/{name}"] = root_mean_square(seen)
        found[f"activation_absmax/{name}"] = float(np.max([np.abs(one).max() for one in seen]))
        if saturated_ratio is None:
            continue
        peaks = np.max([np.abs(one).reshape(-1, one.shape[-1]).max(axis=0) for one in seen], axis=0)
        whole = np.sort(peaks[~np.isnan(peaks)])
        middle = whole[(len(whole) - 1) // 2] if len(whole) else math.nan
        found[f"dead_channel_share/{name}"] = float((peaks == 0).mean())
        found[f"saturated_channel_share/{name}"] = float((peaks > saturated_ratio * middle).mean())
    return found


def output(logits: Sequence[Array]) -> Series:
    """Largest logit, log Z and entropy over every row of every forward."""
    rows = np.concatenate([one.reshape(-1, one.shape[-1]) for one in logits])
    log_z, entropy = [], []
    for row in rows:
        top = float(row.max())
        if not math.isfinite(top):
            log_z.append(top)
            entropy.append(math.nan)
            continue
        below = row - top
        shares = np.exp(below)
        total = math.fsum(shares)
        log_z.append(top + math.log(total))
        products = np.where(shares > 0, shares * np.where(shares > 0, below, 0.0), 0.0)
        entropy.append(math.log(total) - math.fsum(products) / total)
    return {
        "max_output_logit/global": float(rows.max()),
        "log_z/global": float(np.mean(log_z)),
        "log_z_absmax/global": float(np.max(np.abs(log_z))),
        "output_entropy/global": float(np.mean(entropy)),
    }


@dataclass
class Loss:
    """The loss and its bias-corrected average, step after step."""

    decay: float
    kept: list[float] = field(default_factory=list)

    def of(self, loss: float, samples: Array | None = None) -> Series:
        """Values of the next step."""
        if math.isfinite(loss):
            self.kept.append(loss)
        weights = [self.decay**age for age in reversed(range(len(self.kept)))]
        average = math.nan
        if weights:
            weighted = [w * one for w, one in zip(weights, self.kept, strict=True)]
            average = math.fsum(weighted) / math.fsum(weights)
        found = {"loss/global": loss, "loss_smoothed/global": average}
        if samples is not None:
            found["loss_largest_sample/global"] = float(samples.max())
            found["loss_sample_std/global"] = float(samples.std())
        return found


def precision(grads: Tensors, *, scale: float | None, skipped: Sequence[bool] = ()) -> Series:
    """Zeros, and under a loss scale also underflow, overflow and the scale itself."""
    count = max(sum(one.size for one in grads.values()), 1)
    found = {"grad_zero_share/global": sum(int((one == 0).sum()) for one in grads.values()) / count}
    if scale is not None:
        small = sum(
            int((np.abs(one) * scale < SMALLEST_NORMAL_HALF).sum()) for one in grads.values()
        )
        last = list(skipped)[-100:]
        found["underflow_share/global"] = small / count
        found["loss_scale_log2/global"] = math.log2(scale) if scale > 0 else -math.inf
        found["overflow_share/global"] = sum(last) / len(last)
    return found
