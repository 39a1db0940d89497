"""Train the same data in another order."""

from dataclasses import dataclass
from typing import ClassVar

from foreshock.core.action import Action, Capability, TrainingControl
from foreshock.core.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class PerturbOrder(Action):
    """Give out the data from raw stream position `position` on in another order.

    No sample is lost and none comes twice; what was set aside stays so. Everything before
    the position keeps its place, so that a replay up to it is exact. The seed follows from the
    plan and the action.

    Args:
        position: first raw position that changes; the watermark of the snapshot gone back to,
            usually.

    Raises:
        ConfigError: the position is below 0.

    Reference: Chowdhery et al. 2022, PaLM, 5.1: spikes came from data meeting a state, and
    the same data met elsewhere did not bring them back.
    """

    name: ClassVar[str] = "perturb_order"
    needs: ClassVar[frozenset[Capability]] = frozenset({Capability.REORDER_DATA})
    position: int

    def __post_init__(self) -> None:
        if self.position < 0:
            raise ConfigError(f"PerturbOrder.position is {self.position}; it must be 0 or more")

    def apply(self, control: TrainingControl) -> str:
        return control.perturb_order(self.position)
