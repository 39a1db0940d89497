"""The shared frame of rules that compare a value with a window of healthy ones."""

import dataclasses
import math
from abc import abstractmethod
from dataclasses import dataclass

from foreshock.core.detector import Alarm, AlarmKind, Column, ScalarDetector, Threshold
from foreshock.core.errors import ConfigError
from foreshock.core.stats import RollingMedian

_ONSET_REACH_STEPS = 100
"""An alarm's onset lies no further back. A series may hover above the onset limit for long
without alarming; going back beyond all of that would cost more than it mends."""


@dataclass(slots=True)
class BaselineColumn(Column):
    """Memory of a baseline rule for one series.

    Attributes:
        healthy: the healthy values it has seen last.
        residuals: how far each stood from the median of those before it, where the rule
            measures the spread.
        num_accepted: healthy values seen one by one, for the warm-up.
    """

    healthy: RollingMedian = dataclasses.field(default_factory=lambda: RollingMedian(1))
    residuals: RollingMedian = dataclasses.field(default_factory=lambda: RollingMedian(1))
    num_accepted: int = 0


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

    Raises:
        ConfigError: a number of steps is below 1.
    """

    window_steps: int
    warmup_steps: int
    rebaseline_after_steps: int
    kind = AlarmKind.SPIKE

    def __post_init__(self) -> None:
        for name in ("window_steps", "warmup_steps", "rebaseline_after_steps"):
            if getattr(self, name) < 1:
                raise ConfigError(
                    f"{self.name}.{name} is {getattr(self, name)}; it must be at least 1 step"
                )

    def check_order(self, onset: str, alarm: str) -> None:
        """Refuse an onset limit that is not between zero and the alarm limit.

        Raises:
            ConfigError: it is not, or one of them is NaN.
        """
        low, high = getattr(self, onset), getattr(self, alarm)
        if not 0 < low <= high:
            raise ConfigError(
                f"{self.name}.{onset} is {low} and {alarm} is {high}; needed is "
                f"0 < {onset} <= {alarm}"
            )

    @abstractmethod
    def limits(self, column: BaselineColumn) -> tuple[float, float, float]:
        """Return (baseline, onset limit, alarm limit); the limits may be infinite."""

    @abstractmethod
    def remember(self, column: BaselineColumn, value: float) -> None:
        """Take a healthy value into the baseline."""

    def see(self, column: BaselineColumn, step: int, value: float) -> Alarm | None:
        if not math.isfinite(value):
            # The nonfinite rule speaks for it; here it only must not touch the baseline.
            if column.excursion_start is None:
                column.excursion_start = step
            return None
        if column.num_accepted < self.warmup_steps:
            self._accept(column, value)
            column.excursion_start = None
            return None
        baseline, onset_limit, limit = self.limits(column)
        if value <= onset_limit:
            column.excursion_start = None
        elif column.excursion_start is None:
            column.excursion_start = step
        if value <= limit:
            self._accept(column, value)
            column.flagged.clear()
            return None
        column.flagged.append(value)
        onset = step if column.excursion_start is None else column.excursion_start
        onset = max(onset, step - _ONSET_REACH_STEPS)
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

    def _accept(self, column: BaselineColumn, value: float) -> None:
        self.remember(column, value)
        column.num_accepted += 1

    def threshold(self, column: BaselineColumn) -> Threshold:
        missing = self.warmup_steps - column.num_accepted
        if missing > 0:
            return Threshold(math.nan, math.nan, missing)
        baseline, _, limit = self.limits(column)
        return Threshold(baseline, limit, 0)
