"""Judges the gradient norm: outliers, an explosion, NaN that was skipped or that stayed."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from foreshock.core.detector import Alarm, AlarmKind
from foreshock.core.log import EventKind, LogEvent, LoggedRun
from foreshock.inspection.excursion import Excursion, Terrain, clusters
from foreshock.inspection.loss import is_short
from foreshock.inspection.trace import Trace, tail_of

_FLOOR = 0.25
"""Least spread of the norm's logarithm: three of it are a factor of 2, where an excursion
begins by the run books."""

_SEED_RATIO = 5.0
_FAR_RATIO = 10.0
_EXPLOSION_RATIO = 100.0
_EXPLOSION_READINGS = 2
_GAP = 5


@dataclass(frozen=True, kw_only=True)
class NormExcursion:
    """An excursion of the gradient norm; `exploded` if it is more than an outlier."""

    excursion: Excursion
    exploded: bool


def terrain_of(norm: Trace, alarms: tuple[Alarm, ...]) -> tuple[Terrain, "NDArray[np.int64]"]:
    """The norm on its logarithmic scale, and the places far out of range on it, marked."""
    terrain = Terrain(norm, logarithmic=True, floor=_FLOOR)
    seeds = _scan(terrain) if is_short(norm) else _alarmed(norm, alarms)
    terrain.mark(seeds)
    return terrain, seeds


def norm_excursions(terrain: Terrain, seeds: "NDArray[np.int64]") -> list[NormExcursion]:
    """Every excursion of the norm, judged by itself."""
    short = is_short(terrain.trace)
    judged: list[NormExcursion] = []
    behind = -1
    for first, last in clusters(seeds, _GAP):
        if first < behind:
            continue
        found = terrain.around(first, last, short=short)
        if found is None:
            continue
        behind = len(terrain.trace) if found.end is None else found.end
        judged.append(NormExcursion(excursion=found, exploded=_exploded(terrain, found, behind)))
    return judged


def _exploded(terrain: Terrain, found: Excursion, stop: int) -> bool:
    """Two readings a hundred times the level are no outlier, nor is one that leads to NaN."""
    values = terrain.values[found.start : stop]
    far = values > found.range.level + np.log(_EXPLOSION_RATIO)
    return bool(far.any()) and int((far | ~np.isfinite(values)).sum()) >= _EXPLOSION_READINGS


def far_places(terrain: Terrain, seeds: "NDArray[np.int64]") -> "NDArray[np.int64]":
    """Those of the seeds at which the norm is ten times the range before, or not finite."""
    far = np.log(_FAR_RATIO)
    kept: list[int] = []
    for place in seeds.tolist():
        known = terrain.range_before(place)
        if known is None or not terrain.values[place] <= known.level + far:
            kept.append(place)
    return np.array(kept, np.int64)


def lasting_nan(norm: Trace, *, least: int = 2) -> int | None:
    """Place from which the norm is NaN in every reading to the end: at least so many of them,
    or all there are."""
    broken = ~norm.finite
    if not len(broken) or not broken[-1]:
        return None
    start = tail_of(broken)
    return start if len(broken) - start >= min(least, len(broken)) else None


def skipped_for_nan(run: LoggedRun) -> LogEvent | None:
    """The first update that the program says it skipped for its gradient's NaN."""
    for event in run.events:
        if event.kind is EventKind.NONFINITE and event.signal == "grad_norm":
            return event
    return None


def _alarmed(norm: Trace, alarms: tuple[Alarm, ...]) -> "NDArray[np.int64]":
    wanted = (AlarmKind.SPIKE, AlarmKind.ELEVATION, AlarmKind.SHIFT, AlarmKind.NONFINITE)
    clocks = [a.step for a in alarms if a.kind in wanted and not a.value <= a.baseline]
    places = np.unique(np.searchsorted(norm.clock, np.array(clocks, np.int64)))
    return places[places < len(norm)]


def _scan(terrain: Terrain) -> "NDArray[np.int64]":
    """Readings of a short log that are five times the range around them."""
    found: list[int] = []
    far = np.log(_SEED_RATIO)
    for place in (1 + np.flatnonzero(~np.isnan(terrain.values[1:]))).tolist():
        known = terrain.range_before(place)
        if known is not None and terrain.values[place] > known.level + max(far, 3 * known.spread):
            found.append(place)
            terrain.calm[place] = False
    return np.array(found, np.int64)
