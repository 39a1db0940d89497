"""Judges one attempt of a run: its loss and its gradient norm, and what moved with what."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from foreshock.core.detector import Alarm
from foreshock.core.log import Ints
from foreshock.inspection import gradient
from foreshock.inspection import loss as losses
from foreshock.inspection.alarms import default_detectors, raise_alarms
from foreshock.inspection.excursion import Excursion, Terrain
from foreshock.inspection.finding import Episode, EpisodeKind
from foreshock.inspection.joining import Moved, far_norms, join, precursor
from foreshock.inspection.lineage import Lineage
from foreshock.inspection.statement import state
from foreshock.inspection.trace import Trace

SHOWN_OUTLIERS = 20


@dataclass(frozen=True, kw_only=True)
class Judged:
    """What one attempt came to.

    Attributes:
        traces: its signals, with the past that it goes on from.
        alarms: its own, by signal, on the traces' clock.
        episodes: those that matter.
        outliers: the first of those that do not; `num_outliers` counts all.
    """

    traces: Mapping[str, Trace]
    alarms: Mapping[str, tuple[Alarm, ...]]
    episodes: tuple[Episode, ...]
    outliers: tuple[Episode, ...]
    num_outliers: int


def judge_attempt(
    lineage: Lineage, *, is_rl: bool, progress: Callable[[int], None] = lambda num_readings: None
) -> Judged:
    """Judge an attempt; what belongs to the attempts before is only its past."""
    alarms = raise_alarms(lineage.traces, default_detectors(), progress=progress)
    court = _Court(lineage=lineage, alarms=alarms, is_rl=is_rl)
    court.sit()
    own = {
        name: tuple(alarm for alarm in found if alarm.step >= lineage.first_clock)
        for name, found in alarms.items()
    }
    return Judged(
        traces=lineage.traces,
        alarms={name: found for name, found in own.items() if found},
        episodes=tuple(court.episodes),
        outliers=tuple(court.outliers),
        num_outliers=court.num_outliers,
    )


@dataclass(kw_only=True)
class _Court:
    """An attempt being judged."""

    lineage: Lineage
    alarms: Mapping[str, tuple[Alarm, ...]]
    is_rl: bool
    episodes: list[Episode] = field(default_factory=list[Episode])
    outliers: list[Episode] = field(default_factory=list[Episode])
    num_outliers: int = 0
    terrain: Terrain | None = None
    """The gradient norm on its scale."""

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
        taken = [
            (m.onset_step, m.end_step if m.end_step is not None else 1 << 62)
            for episode in (*self.episodes, *self.outliers)
            for m in episode.movements
            if m.signal == "grad_norm"
        ]
        for one in gradient.norm_excursions(terrain, seeds):
            step = int(terrain.trace.steps[one.excursion.start])
            if any(low <= step < max(high, low + 1) for low, high in taken):
                continue
            if not self._is_own(terrain.trace, one.excursion):
                continue
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
        if kind is EpisodeKind.BENIGN_OUTLIER:
            self.num_outliers += 1
            if len(self.outliers) >= SHOWN_OUTLIERS:
                return
        others: list[Moved] = []
        if trace.signal == "loss" and self.terrain is not None:
            clock, peak = int(trace.clock[excursion.start]), int(trace.clock[excursion.peak])
            short = losses.is_short(self.terrain.trace)
            found = precursor(self.terrain, clock, peak, short=short)
            if found is not None:
                others.append(Moved(trace=self.terrain.trace, excursion=found))
        episode = join(kind, Moved(trace=trace, excursion=excursion), others, self.alarms)
        episode = replace(episode, statement=state(episode, trace))
        (self.outliers if kind is EpisodeKind.BENIGN_OUTLIER else self.episodes).append(episode)
