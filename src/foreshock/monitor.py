"""The monitor: readings become alarms, alarms an episode, an episode a diagnosis."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foreshock.core.case import REFERENCE_STEPS, BatchFinding, Case
from foreshock.core.cause import Cause, Diagnosis, diagnose
from foreshock.core.confirmation import Outliers, Tally
from foreshock.core.detector import Alarm, Detector
from foreshock.core.errors import ConfigError
from foreshock.core.names import (
    ACTIVATION_NORM,
    GLOBAL,
    GRAD_NORM,
    LOSS,
    LOSS_SCALE,
    MAX_ATTENTION_LOGIT,
    MAX_OUTPUT_LOGIT,
    NUM_NONFINITE_MOMENTS,
    RMS_T,
    split_series,
)
from foreshock.core.reading import is_absent
from foreshock.core.snapshot import Health
from foreshock.core.starts import History
from foreshock.core.symptom import Look
from foreshock.core.timeline import Timeline
from foreshock.core.trend import Trend, trend_of
from foreshock.core.untouched import left_untouched
from foreshock.lookout import Lookout

_ACTIVATION_RISE = 2.0
_TREND_STEPS = 50
_STALE_RMS_T = 2.3
"""Wortsman et al. (2023), https://arxiv.org/abs/2304.13013: from there on loss spikes follow."""
_LOSS_DISTANCE = 4.0
_GROWTH_IN_DOUBT = {
    ACTIVATION_NORM.name: 1.1,
    GRAD_NORM.name: 2.0,
    MAX_ATTENTION_LOGIT.name: 1.5,
    MAX_OUTPUT_LOGIT.name: 1.5,
}
"""Growth over the last 50 values, clear of noise, from which on a snapshot is in doubt. Our
choice, after OPT-175B, which went back to where the activation norm fell: a preference only,
as norms grow in healthy training too."""
_EPISODE_ALARMS = 4096
_ADVISORIES = 512
_ANY = ""
"""All series together."""


class Monitor:
    """Runs every detector over every step, and keeps the present episode.

    Everything it remembers is rewound with the weights: `to_tree` and `load_tree` carry
    it through a snapshot. It decides nothing.

    Args:
        series: columns of the rows it will be given, `[S]`.
        update_series: those that say nothing in a step whose update was skipped.
        detectors: what raises alarms.
        causes: what an episode is explained by.
        looks: what looks for its symptoms.
        quiet_steps: steps without an alarm after which an episode is over.
        facts: facts of the run that causes may use (has_scaler, precision, …).
        intervals: steps between the values of a series, where that is not 1.

    Raises:
        ConfigError: two detectors have the same name.
    """

    def __init__(
        self,
        series: Sequence[str],
        *,
        update_series: frozenset[str] = frozenset(),
        detectors: Sequence[Detector],
        causes: Sequence[Cause],
        looks: Sequence[Look] = (),
        quiet_steps: int,
        facts: Mapping[str, Any] | None = None,
        intervals: Mapping[str, int] | None = None,
    ) -> None:
        names = [detector.name for detector in detectors]
        if len(set(names)) != len(names):
            raise ConfigError(f"two detectors have the same name: {sorted(names)}")
        self._causes = tuple(causes)
        self._looks = tuple(looks)
        self._quiet_steps = quiet_steps
        self._facts = dict(facts or {})
        kinds: dict[tuple[bool, int], list[tuple[int, str]]] = {}
        for place, name in enumerate(series):
            kind = (name in update_series, (intervals or {}).get(name, 1))
            kinds.setdefault(kind, []).append((place, name))
        self._watches = [
            watch
            for detector in detectors
            for (after_update, interval), places in sorted(kinds.items())
            if (watch := Lookout.make(detector, places, after_update, interval)) is not None
        ]
        self._last = [0.0] * len(series)
        self.timeline = Timeline(series, dtype=np.float32)
        self.episode: list[Alarm] = []
        self._advisories: list[Alarm] = []
        self.consecutive_skips = 0
        self.raised: list[Alarm] = []
        """What the last step raised, advisory alarms included."""
        self.still_alarmed = False
        """Whether the last step raised an alarm that belongs to an episode."""
        self.last_alarm_step = 0
        """Last step that raised an alarm which belonged to an episode; 0 if none has."""
        self._cleared_step = 0
        self._outliers = Outliers()
        self.probed_step = 0
        """Alarms up to this step have been answered by a probe that found no harm."""

    def observe(
        self, attempt: int, step: int, committed: bool, values: "np.ndarray[Any, Any]"
    ) -> list[Alarm]:
        """Take in one step `[S]`, and return the alarms it raises.

        A series that was not due (ABSENT in a float32 row) is not looked at. One that was, and
        was not seen, counts as unchanged.

        Those of advisory detectors are returned too, but belong to no episode.
        """
        row = np.asarray(values)
        self.timeline.append(attempt, step, committed, row)
        self.consecutive_skips = 0 if committed else self.consecutive_skips + 1
        listed: list[float] = row.tolist()
        if row.dtype == np.float32:
            for place in np.flatnonzero(is_absent(row)).tolist():
                listed[place] = self._last[place]
        self._last = listed
        alarms: list[Alarm] = []
        advisories: list[Alarm] = []
        for watch in self._watches:
            if (committed or not watch.after_update) and step % watch.interval_steps == 0:
                found = watch.update(step, listed)
                if found:
                    (advisories if watch.advisory else alarms).extend(found)
        self.still_alarmed = bool(alarms)
        self._outliers.begin(step)
        if alarms:
            whole = [one.series for one in alarms if split_series(one.series)[1] == GLOBAL]
            self._outliers.add(step, [_ANY, *dict.fromkeys(whole)])
            self.last_alarm_step = step
            self.episode += alarms
            if len(self.episode) > _EPISODE_ALARMS:  # the onset and the present are what counts
                del self.episode[_EPISODE_ALARMS // 4 : -_EPISODE_ALARMS // 4]
        elif self.episode and step - self.episode[-1].step >= self._quiet_steps:
            self.episode = []
        self.raised = alarms + advisories
        if advisories:
            self._advisories = [*self._advisories, *advisories][-_ADVISORIES:]
        return self.raised

    def resumed(self) -> None:
        """The run was taken up by a new process: what follows is judged with that in mind."""
        for watch in self._watches:
            watch.resumed()

    @property
    def last_step(self) -> int:
        """Last step that it was given; 0 before the first."""
        return int(self.timeline.steps[-1]) if len(self.timeline) else 0

    def tallies(self, within_steps: int) -> list[Tally]:
        """Alarmed steps of the episode among the last `within_steps`, and how usual they are.

        Of all series together; then of each of the whole model by itself, so that a module that
        is often out of range does not hide a loss that never is.
        """
        if not self.episode:
            return []
        before = self.last_step - within_steps
        first = max(before + 1, self.episode[0].step)
        return [
            Tally(count, self._outliers.rate(name, before))
            for name, count in self._outliers.num_alarmed(first).items()
        ]

    def first_doubt(self) -> int | None:
        """Step of the first alarm that no probe has answered yet, if any."""
        return next((a.step for a in self.episode if a.step > self.probed_step), None)

    def answered(self, *, whole: bool) -> None:
        """A probe has answered the alarms so far; `whole` if it found no harm."""
        if self.episode:
            self.probed_step = self.episode[-1].step
            if whole:
                self._cleared_step = self.probed_step

    def diagnose(
        self,
        batch_findings: Sequence[BatchFinding] | None,
        tried: Sequence[str] = (),
        *,
        harm: str = "",
        history: History | None = None,
    ) -> Diagnosis:
        """Explain the present episode.

        Args:
            batch_findings: what stands out in its samples; None if nobody could look.
            tried: rungs that were tried in this incident without success.
            harm: what a probe found, if it found any.
            history: what the run's records tell besides.

        Raises:
            ValueError: there is no episode.
        """
        case = self.case(batch_findings, tried, harm=harm, history=history)
        return diagnose(case, self._causes, self._looks)

    def case(
        self,
        batch_findings: Sequence[BatchFinding] | None,
        tried: Sequence[str] = (),
        *,
        harm: str = "",
        history: History | None = None,
    ) -> Case:
        """All that is known of the present episode, as `diagnose` weighs it."""
        since = min((alarm.onset_step for alarm in self.episode), default=0) - REFERENCE_STEPS
        return Case(
            timeline=self.timeline,
            alarms=tuple(self.episode),
            facts={**self._facts, "harm": harm},
            batch_findings=batch_findings,
            tried=tried,
            advisories=tuple(one for one in self._advisories if one.step >= since),
            **vars(history if history is not None else History()),
        )

    def limit(self, series: str) -> float | None:
        """The lowest value at which any detector would alarm on a series, if one watches."""
        limits = [
            threshold.limit
            for watch in self._watches
            for name, threshold in zip(watch.names, watch.thresholds(), strict=True)
            if name == series and np.isfinite(threshold.limit)
        ]
        return min(limits, default=None)

    def limits(self) -> NDArray[np.float64]:
        """`limit` of every series, `[S]`; inf where no single value alarms, or none watches."""
        found = np.full(len(self.timeline.series), np.inf)
        for watch in self._watches:
            told = [threshold.limit for threshold in watch.thresholds()]
            found[watch.columns] = np.fmin(found[watch.columns], told)
        return found

    def not_ready(self) -> dict[str, int]:
        """Series that are not fully watched yet, with the steps still needed for that."""
        missing: dict[str, int] = {}
        for watch in self._watches:
            for name, threshold in zip(watch.names, watch.thresholds(), strict=True):
                if threshold.steps_until_ready:
                    missing[name] = max(missing.get(name, 0), threshold.steps_until_ready)
        return missing

    def health(
        self, concerns: Sequence[str] = (), figures: Mapping[str, float] | None = None
    ) -> Health:
        """Judge the run's state now; what is given is what the caller knows besides."""
        found, doubts = list(concerns), list[str]()
        figures = dict(figures or {})
        said = self._said_of_the_episode()
        (doubts if self._is_cleared() else found).extend(said)
        for name in self.timeline.series:
            signal, scope = split_series(name)
            if scope != GLOBAL and signal != ACTIVATION_NORM.name:
                continue
            known = self.timeline.values(name)
            if not len(known):
                continue
            values = known[-_TREND_STEPS:]
            value = figures[name] = float(values[-1])
            if signal == LOSS_SCALE.name and value < 1:
                found.append(f"the loss scale is {value:g}, below 1")
            if signal == NUM_NONFINITE_MOMENTS.name and value > 0:
                found.append(f"{value:g} moments are not finite")
            if signal == RMS_T.name and value >= _STALE_RMS_T:
                doubts.append(f"{name} is {value:.3g}: the second moment is out of date")
            if signal == ACTIVATION_NORM.name and len(values) >= _TREND_STEPS // 2:
                usual = float(np.median(values))
                if value > _ACTIVATION_RISE * usual:
                    found.append(f"{name} is {value:.3g}, usually {usual:.3g}")
            trend = trend_of(values) if len(values) >= _TREND_STEPS // 2 else None
            if trend is not None and signal in (LOSS.name, *_GROWTH_IN_DOUBT):
                figures[f"{name}:growth"] = trend.growth
                figures[f"{name}:distance"] = trend.distance
                if len(known) >= 2 * _TREND_STEPS:  # before, everything grows
                    doubts += _doubts(name, signal, trend)
        return Health(concerns=tuple(found), doubts=tuple(doubts), figures=figures)

    def _said_of_the_episode(self) -> list[str]:
        """What the present episode says against the state; nothing if it cannot have changed it."""
        if left_untouched(self.episode, self.timeline.steps, self.timeline.committed):
            return []
        last = self.episode[-1]
        text = f"{last.series} was out of range at step {last.step}"
        return [f"{text}, and a probe found no harm" if self._is_cleared() else text]

    def _is_cleared(self) -> bool:
        """Whether a probe has found no harm since the episode's last alarm."""
        return bool(self.episode) and self.episode[-1].step <= self._cleared_step

    def to_tree(self) -> dict[str, Any]:
        """Everything that is remembered, as a state tree."""
        return {
            "timeline": self.timeline.to_tree(),
            "episode": [alarm.to_json() for alarm in self.episode],
            "advisories": [alarm.to_json() for alarm in self._advisories],
            "consecutive_skips": self.consecutive_skips,
            "probed_step": self.probed_step,
            "cleared_step": self._cleared_step,
            "outliers": self._outliers.to_tree(),
            "last_alarm_step": self.last_alarm_step,
            "detectors": {watch.key: watch.to_tree() for watch in self._watches},
        }

    def load_tree(self, tree: dict[str, Any]) -> None:
        """Take back what `to_tree` gave; a detector that is new, or has other
        settings, starts afresh."""
        self.timeline.load_tree(tree["timeline"])
        self._last = [
            float(values[-1]) if len(values := self.timeline.values(name)) else 0.0
            for name in self.timeline.series
        ]
        self.episode = [Alarm.from_json(alarm) for alarm in tree["episode"]]
        self._advisories = [Alarm.from_json(alarm) for alarm in tree.get("advisories", ())]
        self.consecutive_skips = tree["consecutive_skips"]
        self.probed_step = tree["probed_step"]
        self._cleared_step = tree.get("cleared_step", 0)
        self._outliers = Outliers()
        self._outliers.load_tree(tree.get("outliers", self._outliers.to_tree()))
        self.last_alarm_step = tree["last_alarm_step"]
        for watch in self._watches:
            watch.load_tree(tree["detectors"].get(watch.key))


def _doubts(name: str, signal: str, trend: Trend) -> list[str]:
    """What a trend says against going back to a state that is healthy otherwise."""
    if signal == LOSS.name:
        far = trend.distance > _LOSS_DISTANCE
        return [f"{name} is {trend.distance:.1f} sigma above its trend"] if far else []
    if trend.rising and trend.growth >= _GROWTH_IN_DOUBT[signal]:
        return [f"{name} has grown {trend.growth:.3g}-fold over its last {_TREND_STEPS} values"]
    return []
