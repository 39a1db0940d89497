"""The learning rate and the loss scale that a step used."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from foreshock.core.names import LOSS_SCALE, LR, series_name
from foreshock.core.signal import Attached, Exactness, Level, Moment, Phase, Signal, Site


class _AttachedSchedule(Attached):
    def __init__(self, scaler: Any) -> None:
        self._scaler = scaler if scaler is not None and scaler.is_enabled() else None
        names = [series_name(LR.name)]
        if self._scaler is not None:
            names.append(series_name(LOSS_SCALE.name))
        self.series = tuple(names)

    def measure(self, moment: Moment) -> list[Any]:
        if self._scaler is None:
            return [moment.lr]
        # The tensor itself, since get_scale() waits for the device.
        scale = getattr(self._scaler, "_scale", None)
        if not isinstance(scale, torch.Tensor):
            scale = self._scaler.get_scale()
        return [moment.lr, scale]


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
        return _AttachedSchedule(site.scaler)
