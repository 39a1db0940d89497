"""Judges the training loss: which excursions matter, and whether it ended above its best."""

import math
import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foreshock.core.detector import Alarm, AlarmKind
from foreshock.core.log import Floats
from foreshock.core.stats import MAD_TO_SD
from foreshock.inspection.excursion import FEW, Excursion, Range, Terrain, clusters
from foreshock.inspection.finding import EpisodeKind
from foreshock.inspection.trace import Trace, tail_of

SHORT = 60
"""Readings of a log that is judged from both sides alone: live rules are still warming up,
or hardly past it."""

WARM_UP = 40
"""Readings at the start of a long log that are judged like those of a short one."""

_SEED_SDS = 6.0
_LONG_FLOOR, _SHORT_FLOOR = 0.005, 0.02
"""Least spread of a loss as a share of its level. Where a few readings must define it, 2 %:
what the loss of one batch to the next differs by in most pre-training runs."""

_FEW_RISE = 0.5
"""Rise that is seen where fewer than ten readings came before. The loss of one small batch
to the next differs by a third; by half, hardly ever without a reason."""

_OFTEN, _OFTEN_SHARE = 4, 0.2
"""So many separate rises among the first readings, and so large a share, are noise that the
lowest of a few readings said nothing of."""

_MIN_WIDTH = 3
_CHANCE = 0.05
_LEAST_HEIGHT = 0.03
_UNTRAINED = 3
_LEARNED = 0.5
_COARSE_STEPS = 5
_STANDS_STEPS, _STANDS_READINGS = 100, 5
_RISE = 0.10
_RL_RISE, _RL_RATIO = 1.0, 10
_GAP = 5
_LEVEL_WINDOW, _SIDE = 41, 500


@dataclass(frozen=True, kw_only=True)
class LossExcursion:
    """An excursion of the loss and what it turned out to be."""

    excursion: Excursion
    kind: EpisodeKind


def terrain_of(loss: Trace) -> Terrain:
    """The loss on its own scale; what the floor is depends on how much is known of it."""
    floor = _SHORT_FLOOR if is_short(loss) else _LONG_FLOOR
    return Terrain(loss, logarithmic=False, floor=floor)


def loss_excursions(
    loss: Trace, alarms: tuple[Alarm, ...], moved_norms: "NDArray[np.bool_]", *, is_rl: bool
) -> list[LossExcursion]:
    """Every excursion of the loss, judged.

    Args:
        alarms: causal ones of the loss.
        moved_norms: `[T]` whether the gradient norm was far out of range at each reading
            of the loss.
        is_rl: the loss hovers near zero by design.
    """
    terrain = terrain_of(loss)
    short = is_short(loss)
    seeds = _scan(terrain, len(loss) if short else WARM_UP)
    if not short:
        seeds = np.union1d(seeds, _alarmed(loss, alarms))
    terrain.mark(seeds)
    groups = clusters(seeds, _GAP)
    share = max(len(groups) - 0.5, 0.5) / max(len(loss), 1)  # of the other outliers
    floor = _MIN_WIDTH if not short else 2
    noise = None if short else _Noise(loss.values)
    judged: list[LossExcursion] = []
    behind = -1
    for first, last in groups:
        if first < behind:
            continue
        found = terrain.around(first, last, short=short)
        if found is None:
            continue
        behind = len(loss) if found.end is None else found.end
        norm_moved = bool(moved_norms[found.start : behind].any())
        others = share if noise is None else max(share, noise.share_above(found, behind))
        least_width = max(floor, _chance_width(len(loss), others))
        kind = _kind(loss, found, least_width, norm_moved)
        if is_rl and (not norm_moved or _is_small(found)):
            kind = EpisodeKind.BENIGN_OUTLIER  # it hovers near zero by design
        judged.append(LossExcursion(excursion=found, kind=kind))
    return judged


def _is_small(found: Excursion) -> bool:
    """Whether a loss of reinforcement learning stays away by no more than it may stray."""
    away = found.height * found.range.spread
    return found.is_open and away <= max(_RL_RISE, _RL_RATIO * abs(found.range.level))


class _Noise:
    """How often a loss stands how far above its own level, without any event.

    The width of an excursion counts readings above a quarter of its height. Where single
    readings do that all the time (heavy tails), several in a row come about by chance.
    """

    def __init__(self, values: Floats) -> None:
        finite = np.where(np.isfinite(values), values, np.nan)
        window = min(_LEVEL_WINDOW, len(values) | 1)
        padded = np.pad(finite, window // 2, mode="edge")
        rows = np.lib.stride_tricks.sliding_window_view(padded, window)[:: max(1, window // 4)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # a stretch of NaN has no level
            levels = np.nanmedian(rows, axis=1)
        self._above: Floats = finite - np.repeat(levels, max(1, window // 4))[: len(values)]

    def share_above(self, found: Excursion, stop: int) -> float:
        """Share of the readings on both sides that stand as far above their level as those
        that make the width of an excursion do above its."""
        far = found.low - found.range.level
        sides = np.concatenate(
            (
                self._above[max(0, found.start - _SIDE) : found.start],
                self._above[stop : stop + _SIDE],
            )
        )
        sides = sides[np.isfinite(sides)]
        return float(np.mean(sides > far)) if len(sides) >= _SIDE // 5 else 0.0


def _alarmed(loss: Trace, alarms: tuple[Alarm, ...]) -> "NDArray[np.int64]":
    wanted = (AlarmKind.SPIKE, AlarmKind.SHIFT, AlarmKind.DIVERGENCE)
    clocks = [a.step for a in alarms if a.kind in wanted and a.value > a.baseline]
    places = np.unique(np.searchsorted(loss.clock, np.array(clocks, np.int64)))
    return places[places < len(loss)]


def is_short(trace: Trace) -> bool:
    """Whether live rules would hardly be past their warm-up."""
    return int(trace.finite.sum()) < SHORT


def _scan(terrain: Terrain, stop: int) -> "NDArray[np.int64]":
    """Of the first readings, those far above the range that the ones before define. Each that
    is found is marked, so that it does not widen the range of the next.

    Fewer than ten readings say little of the noise: then it takes half as much again.
    """
    found: list[int] = []
    values = terrain.values
    for place in range(1, min(stop, len(values))):
        if not math.isfinite(values[place]):
            continue
        known = terrain.range_before(place)
        if known is None:
            continue
        margin = _SEED_SDS * known.spread
        if known.num_readings < FEW:
            margin = max(margin, _FEW_RISE * abs(known.level))
        if values[place] > known.level + margin:
            found.append(place)
            terrain.calm[place] = False
    seeds = np.array(found, np.int64)
    if len(clusters(seeds, 1)) >= _OFTEN and len(seeds) > _OFTEN_SHARE * min(stop, len(values)):
        terrain.calm[seeds] = True  # it comes and goes: that is how this loss is, no event
        return seeds[:0]
    return seeds


def _chance_width(num_readings: int, share: float) -> int:
    """Width that a row of independent outliers reaches with a chance of less than 5 % in
    the whole log, if each reading is one with probability `share`."""
    if share >= 1 or num_readings < 2:
        return _MIN_WIDTH
    return math.ceil(math.log(num_readings / _CHANCE) / -math.log(min(share + 0.005, 0.5)))


def _kind(loss: Trace, found: Excursion, least_width: int, norm_moved: bool) -> EpisodeKind:
    high = found.height * found.range.spread >= _LEAST_HEIGHT * abs(found.range.level)
    if found.end is None:
        return _open_kind(loss, found) if high else EpisodeKind.BENIGN_OUTLIER
    if _was_untrained(loss, found):
        return EpisodeKind.BENIGN_OUTLIER
    if high and found.width >= least_width:
        return EpisodeKind.RECOVERING_SPIKE
    if high and norm_moved and loss.interval_steps >= _COARSE_STEPS:
        # One reading of a coarse log is many steps, and the gradient went with it.
        return EpisodeKind.RECOVERING_SPIKE
    return EpisodeKind.BENIGN_OUTLIER


def _was_untrained(loss: Trace, found: Excursion) -> bool:
    """Whether the first updates of a new model overshot: they had nothing to undo, as the loss
    went on to half of what it was before them."""
    if found.start >= _UNTRAINED or int(loss.steps[0]) > _UNTRAINED:
        return False
    later = loss.values[found.end :]
    later = later[np.isfinite(later)]
    return len(later) > 0 and float(np.median(later)) < _LEARNED * found.range.level


def _open_kind(loss: Trace, found: Excursion) -> EpisodeKind:
    """An excursion that lasts to the end of the log: for good, or only not over yet."""
    values = loss.values[found.start :]
    finite = values[np.isfinite(values)]
    readings = len(values)
    lasted = int(loss.clock[-1] - loss.clock[found.start])
    level, peak = found.range.level, float(finite.max())
    fallen = float(np.median(finite[-3:])) < level + 0.5 * (peak - level)
    if _compatible(loss, found) or _first_was_off(loss, found):
        return EpisodeKind.BENIGN_OUTLIER
    top = int(np.argmax(finite))
    falling = fallen and top < len(finite) - 1 and finite[-1] <= 1.02 * float(finite[top:].min())
    if falling and lasted < _STANDS_STEPS:
        return EpisodeKind.RECOVERING_SPIKE  # on its way back when the log ends
    if readings >= 2 and (lasted >= _STANDS_STEPS or readings >= _STANDS_READINGS):
        far = np.median(finite[-5:]) > level + _RISE * abs(level)
        return EpisodeKind.DIVERGENCE if far else EpisodeKind.NON_RECOVERING_SPIKE
    rising = readings >= 3 and bool((np.diff(finite) > 0).all())
    if readings >= 2 and not fallen and (rising or readings >= 3 or finite[-1] >= 3 * abs(level)):
        return EpisodeKind.DIVERGENCE
    return EpisodeKind.RECOVERING_SPIKE


def _compatible(loss: Trace, found: Excursion) -> bool:
    """Whether the few readings before an excursion could as well be of those after it: then
    nothing was left, the noise was only not known yet."""
    if found.range.num_readings >= FEW:
        return False
    before = loss.values[: found.start]
    later = loss.values[found.start :]
    later = later[np.isfinite(later)]
    if np.median(later[-3:]) <= np.nanmedian(before):
        return True  # the lowest of a few was taken for the level: it may have been low by chance
    later = later[len(later) // 2 :]
    if len(later) < FEW // 2:
        return False
    spread = MAD_TO_SD * float(np.median(np.abs(later - np.median(later))))
    level, known = float(np.median(later)), float(np.nanmedian(before))
    if level - 3 * spread <= known and level < 2 * abs(known):
        return True
    return _as_ratios(loss.values[found.start :], known)


def _first_was_off(loss: Trace, found: Excursion) -> bool:
    """Whether only the first reading after a resumption was too low (averages that began anew
    with it), as the loss falls from the second on as if nothing had been."""
    later = loss.values[found.start :]
    third = len(later) // 3
    return (
        found.range.num_readings == 1
        and int(loss.steps[0]) > _UNTRAINED * loss.interval_steps
        and len(later) >= FEW
        and bool(np.isfinite(later).all())
        and float(np.median(later[-third:])) < float(np.median(later[:third]))
    )


def _as_ratios(values: Floats, known: float) -> bool:
    """Whether positive readings stray by such factors from one to the next that the level
    before is one of theirs. Steady growth is no straying."""
    values = values[np.isfinite(values)]
    if known <= 0 or len(values) < FEW or not (values > 0).all():
        return False
    logs = np.log(values)
    moves = np.diff(logs)
    spread = MAD_TO_SD * float(np.median(np.abs(moves - np.median(moves)))) / math.sqrt(2)
    near = float(np.log(known)) + spread
    return float(np.median(logs)) - 3 * spread <= np.log(known) and bool(
        (logs[len(logs) // 3 :] <= near).any()
    )


@dataclass(frozen=True, kw_only=True)
class FinalRise:
    """A loss that ended above the best it had reached, for good.

    Attributes:
        start: place of the first reading from which the level stays above the best.
        peak: place of its highest reading.
        best, final: the level at its best and at the end, in the unit of the loss.
    """

    start: int
    peak: int
    best: float
    final: float
    range: Range


def final_rise(loss: Trace, *, is_rl: bool) -> FinalRise | None:
    """Whether the loss ended well above its best level: by 10 % of it, a quarter of what
    had been gained, and six deviations of the level itself."""
    finite = np.flatnonzero(loss.finite)
    if len(finite) < 20:
        return None
    values = loss.values[finite]
    window = int(np.clip(len(values) // 20, 5, 50))
    levels = rolling_median(values, window)
    best_at = int(np.argmin(levels))
    final = float(levels[-1])
    best = float(levels[best_at])
    noise = float(np.median(np.abs(np.diff(values)))) / math.sqrt(window) * 2
    gained = max(0.0, float(levels[0]) - best)
    margin = max(_RISE * abs(best), 0.25 * gained, _SEED_SDS * noise)
    if is_rl:
        margin = max(margin, _RL_RATIO * abs(best), _RL_RISE)
    if final <= best + margin or best_at >= len(levels) - window:
        return None
    above = levels > best + margin / 2
    start = tail_of(above)
    begun = min(start + window // 2, len(finite) - 1)
    peak = int(finite[begun + int(np.argmax(values[begun:]))])
    known = Range(level=best, spread=max(noise, 1e-12), slope=0.0, num_readings=window)
    return FinalRise(start=int(finite[begun]), peak=peak, best=best, final=final, range=known)


def rolling_median(values: Floats, window: int) -> Floats:
    """`[T - window + 1]` medians; in a long log of every few readings, held in between."""
    stride = max(1, len(values) // 20_000)
    rows = np.lib.stride_tricks.sliding_window_view(values, window)
    if stride == 1:
        return np.median(rows, axis=1)
    coarse = np.median(rows[::stride], axis=1)
    return np.repeat(coarse, stride)[: len(rows)]
