"""Attention in fp64."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import ClassVar, final

import torch

from foreshock.anatomy import anatomy_of
from foreshock.arithmetic import Precise, parts_in
from foreshock.core.experiment import Experiment, Result
from foreshock.replaying import Replay
from foreshock.replicated import plain_module
from foreshock.scene import Scene
from foreshock.trial import NoResultError


@final
@dataclass(frozen=True, kw_only=True)
class Fp64Attention(Experiment):
    """Train the steps with attention computed in fp64, the rest as it is.

    All that the attention modules compute is in fp64: projections, products, softmax. What they
    give has the type that it had.
    """

    name: ClassVar[str] = "fp64_attention"
    question: ClassVar[str] = "Does it come if attention computes in fp64?"
    outcomes: ClassVar[Mapping[str, str]] = {
        "cured": "the precision or the range of attention is at fault",
        "not_cured": "it is not the arithmetic of attention",
    }
    windows: ClassVar[float] = 1.0

    def why_not(self, scene: Scene) -> str:
        parts = anatomy_of(plain_module(scene.replay.program.model)).attention_parts
        return scene.nothing_to_cure if parts else "no attention was found in the model"

    def run(self, scene: Scene) -> Result:
        model = plain_module(scene.replay.program.model)
        modules = [model.get_submodule(one.path) for one in anatomy_of(model).attention_parts]
        mode = Precise(torch.float64)

        def change(replay: Replay) -> AbstractContextManager[None]:
            return replay.within(lambda: parts_in(mode, modules))

        cured, trial = scene.cures(change)
        if not mode.num_touched:
            raise NoResultError("the model's attention modules were not called as modules")
        said = f"with {len(modules)} attention modules in fp64: {trial.said}"
        return scene.result(self, "cured" if cured else "not_cured", said, **trial.figures)
