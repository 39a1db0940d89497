"""The shared frame of rules that compare a value with a window of healthy ones."""

import dataclasses
import math
from abc import abstractmethod
from dataclasses import dataclass

from foreshock.core.detector import Alarm, AlarmKind, Column, ScalarDetector, Threshold
from foreshock.core.stats import RollingMedian


@dataclass(slots=True)
class BaselineColumn(Column):
    """Memory of a baseline rule for one series: the healthy values it has seen."""

    healthy: RollingMedian = dataclasses.field(default_factory=lambda: RollingMedian(1))


@dataclass(frozen=True, kw_only=True)
class BaselineDetector(ScalarDetector[BaselineColumn]):
    """Alarm on a value beyond a limit that follows the last healthy values.

    A concrete rule says where the limit lies, and where the softer *onset limit*
    lies at which an excursion begins; everything that must never be forgotten (NaN,
    warm-up, flagged values, a new level that persists) is handled here, once.

    Args:
        window_steps: healthy values remembered. More is steadier, but slower to
            follow a level that changes.
        warmup_steps: finite values needed before the first alarm.
        rebaseline_after_steps: consecutive flagged values after which their level is
            accepted as the new normal, and reported once as a shift.
    """

    window_steps: int
    warmup_steps: int
    rebaseline_after_steps: int
    kind = AlarmKind.SPIKE

    @abstractmethod
    def limits(self, healthy: RollingMedian) -> tuple[float, float, float]:
        """Return (baseline, onset limit, alarm limit); the limits may be infinite."""

    def start(self, series: str) -> BaselineColumn:
        return BaselineColumn(series, healthy=RollingMedian(self.window_steps))

    def see(self, column: BaselineColumn, step: int, value: float) -> Alarm | None:
        if not math.isfinite(value):
            # The nonfinite rule speaks for it; here it only must not touch the baseline.
            if column.excursion_start is None:
                column.excursion_start = step
            return None
        if len(column.healthy) < self.warmup_steps:
            column.healthy.add(value)
            column.excursion_start = None
            return None
        baseline, onset_limit, limit = self.limits(column.healthy)
        if value <= onset_limit:
            column.excursion_start = None
        elif column.excursion_start is None:
            column.excursion_start = step
        if value <= limit:
            column.healthy.add(value)
            column.flagged.clear()
            return None
        column.flagged.append(value)
        onset = step if column.excursion_start is None else column.excursion_start
        kind = self.kind
        if len(column.flagged) >= self.rebaseline_after_steps:
            column.healthy = RollingMedian(self.window_steps, column.flagged)
            column.flagged.clear()
            column.excursion_start = None
            kind = AlarmKind.SHIFT
        return Alarm(
            kind=kind,
            detector=self.name,
            series=column.series,
            step=step,
            onset_step=onset,
            value=value,
            baseline=baseline,
            threshold=limit,
        )

    def threshold(self, column: BaselineColumn) -> Threshold:
        missing = self.warmup_steps - len(column.healthy)
        if missing > 0:
            return Threshold(math.nan, math.nan, missing)
        baseline, _, limit = self.limits(column.healthy)
        return Threshold(baseline, limit, 0)
