"""The loss in fp64."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import ClassVar, final

import torch

from foreshock.arithmetic import Precise, loss_in
from foreshock.core.experiment import Experiment, Result
from foreshock.replaying import Replay
from foreshock.replicated import plain_module
from foreshock.scene import Scene
from foreshock.trial import NoResultError


@final
@dataclass(frozen=True, kw_only=True)
class Fp64Loss(Experiment):
    """Train the steps with the loss made of the model's output in fp64.

    In fp32 the softmax of a model that is nearly sure rounds to 0 and 1: gradients vanish, and
    come back at once (the slingshot).
    """

    name: ClassVar[str] = "fp64_loss"
    question: ClassVar[str] = "Does it come if the loss is computed in fp64?"
    outcomes: ClassVar[Mapping[str, str]] = {
        "cured": "the precision of the loss is at fault",
        "not_cured": "it is not the arithmetic of the loss",
    }
    windows: ClassVar[float] = 1.0

    def why_not(self, scene: Scene) -> str:
        return scene.nothing_to_cure

    def run(self, scene: Scene) -> Result:
        mode, arena = Precise(torch.float64), scene.need_arena()

        def change(replay: Replay) -> AbstractContextManager[None]:
            return replay.within(lambda: loss_in(mode, plain_module(replay.program.model)))

        scene.comes(arena.steps[:1], arena.state, change, settle=False)
        if not mode.reached:
            raise NoResultError(
                "the program's loss is not made of what its model gives: the model gives the "
                "loss itself, or nothing that holds tensors"
            )
        cured, trial = scene.cures(change)
        said = f"with the loss in fp64: {trial.said}"
        return scene.result(self, "cured" if cured else "not_cured", said, **trial.figures)
