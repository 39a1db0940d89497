"""Single steps trained twice from one state: as they are, and with something changed."""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Final, NamedTuple

from foreshock.core.names import GRAD_NORM, series_name
from foreshock.replaying import MicroBatches
from foreshock.scene import Scene
from foreshock.trial import Change, distance
from foreshock.window import step_of

NUM_STEPS: Final = 3
"""Steps that are compared. Our choice: the first of a window, each from the same weights."""

_FULL: Final = 1e-3
_REDUCED: Final = 5e-2
_NOISE: Final = 3.0


class StepDifference(NamedTuple):
    """How far steps with something changed are from the same steps without.

    Attributes:
        most: largest relative difference of loss or gradient norm with the change.
        noise: the same of two without it.
        limit: up to which the two count as the same: 0.1 % where the program computes in fp32,
            since sums in another order differ by less than a thousandth of that, and 5 % below
            it, where one rounding is 0.4 % (bf16); and three times the noise.
        num_steps: steps that were compared.
    """

    most: float
    noise: float
    limit: float
    num_steps: int

    @property
    def is_same(self) -> bool:
        """Whether the change is without effect, as far as such steps show."""
        return self.most <= self.limit

    @property
    def said(self) -> str:
        """The numbers, in words."""
        return (
            f"loss and gradient norm of {self.num_steps} steps differ by {self.most:.2g} of "
            f"their size at most (up to {self.limit:.2g} is rounding)"
        )


def compare_steps(
    scene: Scene, change: Change | None = None, *, micro_size: int | None = None
) -> StepDifference:
    """Train the window's first steps, each on the state before the onset, in evaluation mode.

    Nothing is dropped out there, since other kernels and other micro-batches would draw other
    numbers for it.

    Args:
        scene: whose steps.
        change: what is changed.
        micro_size: size of the micro-batches with the change; None as they are.

    Raises:
        BudgetSpentError: time is up.
        ProgramError: the program's loss raises.
    """
    most = noise = 0.0
    steps = scene.steps[:NUM_STEPS]
    for batches in steps:
        flat = [one for micro in batches for one in micro]
        other = batches if micro_size is None else step_of(flat, micro_size)
        plain = _one(scene, batches, None)
        noise = max(noise, distance(plain, _one(scene, batches, None)))
        most = max(most, distance(plain, _one(scene, other, change)))
    low = scene.replay.program.precision not in ("fp32", "fp64")
    limit = max(_REDUCED if low else _FULL, _NOISE * noise)
    return StepDifference(most=most, noise=noise, limit=limit, num_steps=len(steps))


def _one(scene: Scene, batches: MicroBatches, change: Change | None) -> Sequence[float]:
    """Loss and gradient norm of one step."""
    state = scene.before
    replay = scene.look(state)
    replay.evaluates = True
    try:
        with nullcontext() if change is None else change(replay):
            for step in scene.counted([batches]):
                replay.train(step)
        loss = replay.losses.get(replay.step, float("nan"))
        return [loss, *scene.values(series_name(GRAD_NORM.name), [replay.step])]
    finally:
        replay.evaluates = False
        scene.look(state)
