"""The learning rate and the loss scale that a step used."""

from dataclasses import dataclass
from typing import Any, ClassVar

from foreshock.core.names import LOSS_SCALE, LR, series_name
from foreshock.core.signal import Attached, Exactness, Level, Moment, Phase, Signal, Site


class _AttachedSchedule(Attached):
    def __init__(self, site: Site) -> None:
        self._site, self._is_scaled = site, site.is_scaled
        names = [series_name(LR.name)]
        if self._is_scaled:
            names.append(series_name(LOSS_SCALE.name))
        self.series = tuple(names)

    def measure(self, moment: Moment) -> list[Any]:
        return [moment.lr, self._site.loss_scale()] if self._is_scaled else [moment.lr]


@dataclass(frozen=True, kw_only=True)
class ScheduleSignal(Signal):
    """Learning rate of the first parameter group, overrides included; loss scale if any."""

    name: ClassVar[str] = "schedule"
    unit: ClassVar[str] = "1"
    phase: ClassVar[Phase] = Phase.GRADIENT
    exactness: ClassVar[Exactness] = Exactness.EXACT
    passes: ClassVar[str] = "none"
    level: ClassVar[Level] = Level.MINIMAL

    def attach(self, site: Site) -> Attached:
        return _AttachedSchedule(site)
