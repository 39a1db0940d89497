"""Judges one attempt of a run: its loss and its gradient norm, and what moved with what."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from foreshock.core.detector import Alarm
from foreshock.core.log import Ints
from foreshock.inspection import gradient
from foreshock.inspection import loss as losses
from foreshock.inspection.alarms import at_readings, between
from foreshock.inspection.excursion import Excursion, Terrain
from foreshock.inspection.finding import Episode, EpisodeKind
from foreshock.inspection.joining import Moved, far_norms, join, precursor
from foreshock.inspection.lineage import Lineage
from foreshock.inspection.statement import state
from foreshock.inspection.trace import Trace

SHOWN_OUTLIERS = 20
_NEAR_READINGS = 10
"""Readings before a restart whose alarms may belong to what comes after it."""


@dataclass(frozen=True, kw_only=True)
class Judged:
    """What one attempt came to.

    Attributes:
        episodes: those that matter.
        outliers: the first of those that do not; `num_outliers` counts all.
    """

    episodes: tuple[Episode, ...]
    outliers: tuple[Episode, ...]
    num_outliers: int


Alarms = Mapping[str, tuple[Alarm, ...]]


def judge_attempt(lineage: Lineage, alarms: Alarms, raised: Alarms, *, is_rl: bool) -> Judged:
    """Judge an attempt; what belongs to the attempts before is only its past.

    Args:
        alarms: what the rules say of the traces that are judged, by signal: the seeds.
        raised: what they would have said live, of what the log shows as it stands.
    """
    here, live = (
        {name: at_readings(each.get(name, ()), trace) for name, trace in lineage.traces.items()}
        for each in (alarms, raised)
    )
    court = _Court(lineage=lineage, alarms=here, raised=live, is_rl=is_rl)
    if not _is_calm(lineage, here):
        court.sit()
    return Judged(
        episodes=tuple(court.episodes),
        outliers=tuple(court.outliers),
        num_outliers=court.num_outliers,
    )


def _is_calm(lineage: Lineage, alarms: Alarms) -> bool:
    """Whether no rule alarmed in an attempt that only rules could find anything in."""
    if lineage.is_last:
        return False
    for name in ("loss", "grad_norm"):
        trace = lineage.traces.get(name)
        if trace is None:
            continue
        place = trace.place(lineage.first_clock)
        if losses.is_short(trace) or place < losses.WARM_UP:
            return False
        near = int(trace.clock[max(0, place - _NEAR_READINGS)])
        if between(alarms[name], near, int(trace.clock[-1])):
            return False
    return True


@dataclass(kw_only=True)
class _Court:
    """An attempt being judged."""

    lineage: Lineage
    alarms: Alarms
    raised: Alarms
    is_rl: bool
    episodes: list[Episode] = field(default_factory=list[Episode])
    outliers: list[Episode] = field(default_factory=list[Episode])
    num_outliers: int = 0
    terrain: Terrain | None = None
    """The gradient norm on its scale."""
    joined: list[int] = field(default_factory=list[int])
    joined_until: list[int] = field(default_factory=list[int])
    """Places of the norm's excursions that belong to one of the loss: from, to (excluded)."""

    def sit(self) -> None:
        """Judge the loss, then what the norm did by itself."""
        loss = self.lineage.traces.get("loss")
        norm = self.lineage.traces.get("grad_norm")
        seeds = np.zeros(0, np.int64)
        if norm is not None:
            self.terrain, seeds = gradient.terrain_of(norm, self.alarms.get("grad_norm", ()))
        if loss is not None:
            self._judge_loss(loss, norm, seeds)
        if self.terrain is not None:
            self._judge_norm(self.terrain, seeds)

    def _is_own(self, trace: Trace, excursion: Excursion) -> bool:
        return int(trace.clock[excursion.peak]) >= self.lineage.first_clock

    def _judge_loss(self, loss: Trace, norm: Trace | None, seeds: Ints) -> None:
        far = seeds if self.terrain is None else gradient.far_places(self.terrain, seeds)
        moved = far_norms(loss, norm, far)
        alarms = self.alarms.get("loss", ())
        found = losses.loss_excursions(loss, alarms, moved, is_rl=self.is_rl)
        rise = losses.final_rise(loss, is_rl=self.is_rl) if self.lineage.is_last else None
        for one in found:
            if not self._is_own(loss, one.excursion):
                continue
            kind = one.kind
            stands = self.lineage.is_last and not losses.is_short(loss) and rise is None
            if kind is EpisodeKind.DIVERGENCE and stands:
                kind = EpisodeKind.NON_RECOVERING_SPIKE
            self._add(kind, loss, one.excursion)
        diverged = any(one.kind is EpisodeKind.DIVERGENCE for one in self.episodes)
        if rise is not None and not diverged:
            height = (float(loss.values[rise.peak]) - rise.best) / rise.range.spread
            excursion = Excursion(
                start=rise.start,
                peak=rise.peak,
                end=None,
                range=rise.range,
                height=height,
                width=len(loss) - rise.start,
            )
            self._add(EpisodeKind.DIVERGENCE, loss, excursion)

    def _judge_norm(self, terrain: Terrain, seeds: Ints) -> None:
        lows, highs = (np.array(each, np.int64) for each in (self.joined, self.joined_until))
        for one in gradient.norm_excursions(terrain, seeds):
            step = int(terrain.trace.steps[one.excursion.start])
            if ((lows <= one.excursion.start) & (one.excursion.start < highs)).any():
                continue  # part of what the loss did
            if not self._is_own(terrain.trace, one.excursion):
                continue
            if not (one.exploded or np.isfinite(terrain.values[one.excursion.peak])):
                continue  # told of with all that is not finite
            exploded = one.exploded and not self._explained(step)
            kind = EpisodeKind.GRAD_NORM_EXPLOSION if exploded else EpisodeKind.BENIGN_OUTLIER
            self._add(kind, terrain.trace, one.excursion)

    def _explained(self, step: int) -> bool:
        """Whether an episode of the loss was on when the norm left its range."""
        return any(
            episode.movements[0].signal == "loss"
            and episode.onset_step <= step
            and (episode.end_step is None or step <= episode.end_step)
            for episode in self.episodes
        )

    def _add(self, kind: EpisodeKind, trace: Trace, excursion: Excursion) -> None:
        others: list[Moved] = []
        if trace.signal == "loss" and self.terrain is not None:
            clock, peak = int(trace.clock[excursion.start]), int(trace.clock[excursion.peak])
            short = losses.is_short(self.terrain.trace)
            found = precursor(self.terrain, clock, peak, short=short)
            if found is not None:
                others.append(Moved(trace=self.terrain.trace, excursion=found))
                self.joined.append(found.start)
                self.joined_until.append(found.end or len(self.terrain.trace))
        if kind is EpisodeKind.BENIGN_OUTLIER:
            self.num_outliers += 1
            if len(self.outliers) >= SHOWN_OUTLIERS:
                return
        episode = join(kind, Moved(trace=trace, excursion=excursion), others, self.raised)
        episode = replace(episode, statement=state(episode, trace))
        (self.outliers if kind is EpisodeKind.BENIGN_OUTLIER else self.episodes).append(episode)
