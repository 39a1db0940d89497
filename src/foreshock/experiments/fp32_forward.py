"""Every pass in fp32."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import ClassVar, final

import torch

from foreshock.arithmetic import Precise, forward_in
from foreshock.core.experiment import Experiment, Result
from foreshock.replaying import Replay
from foreshock.scene import Scene


@final
@dataclass(frozen=True, kw_only=True)
class Fp32Forward(Experiment):
    """Train the steps with everything that computes below fp32 in fp32.

    Autocast is off, 16-bit tensors are cast up where they are used, casts to 16 bits are left out,
    also where they emulate rounding, and gradients are not rounded on their way back.
    """

    name: ClassVar[str] = "fp32_forward"
    question: ClassVar[str] = "Does it come if the passes compute in fp32?"
    outcomes: ClassVar[Mapping[str, str]] = {
        "cured": "the range or the precision of 16 bits is at fault",
        "not_cured": "it comes in fp32 too",
    }
    windows: ClassVar[float] = 1.2

    def why_not(self, scene: Scene) -> str:
        return scene.nothing_to_cure

    def run(self, scene: Scene) -> Result:
        mode, arena = Precise(torch.float32), scene.need_arena()

        def change(replay: Replay) -> AbstractContextManager[None]:
            return replay.within(lambda: forward_in(mode))

        first = scene.comes(arena.steps[:1], arena.state, change, settle=False)
        if not mode.num_touched:
            said = "nothing in its passes is below fp32: they compute as they did"
            return scene.result(self, "not_cured", said, **first.figures)
        cured, trial = scene.cures(change)
        said = f"with every pass in fp32: {trial.said}"
        return scene.result(self, "cured" if cured else "not_cured", said, **trial.figures)
