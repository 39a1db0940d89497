"""Set the optimizer's moments to zero."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from foreshock.core.action import Action, Capability, TrainingControl
from foreshock.core.override import MomentReset


@dataclass(frozen=True, kw_only=True)
class ResetMoments(Action):
    """Begin `first_step` with first and second moments at zero.

    Done once whenever the run begins that step, also when it does so again after a rollback
    or a resume, so that a replay is exact. Steps before it never see it.

    Args:
        first_step: the step that begins so; that after the snapshot gone back to, usually.
        groups: module groups as signals name them ("blocks.3.attn"), each with those below it
            ("blocks.3"); empty for all.
        restart_count: whether the update count of the bias correction begins anew, as it must
            with Adam: zero moments without it make the next updates about
            (1 - beta1) / sqrt(1 - beta2) times as large, which is 3 with beta2 = 0.999.

    Raises:
        ConfigError: an argument is out of its range.

    No source for the count: our choice, because a reset is then a fresh Adam to the bit.
    """

    name: ClassVar[str] = "reset_moments"
    needs: ClassVar[frozenset[Capability]] = frozenset({Capability.RESET_MOMENTS})
    first_step: int
    groups: Sequence[str] = ()
    restart_count: bool = True

    def __post_init__(self) -> None:
        MomentReset(
            first_step=self.first_step, groups=self.groups, restart_count=self.restart_count
        )

    def apply(self, control: TrainingControl) -> str:
        return control.reset_moments(self.first_step, self.groups, self.restart_count)
