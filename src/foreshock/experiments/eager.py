"""Compiled code and fused kernels against eager ones."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, final

from foreshock.arithmetic import plain_kernels
from foreshock.core.experiment import Experiment, Result
from foreshock.scene import Scene
from foreshock.step_comparison import compare_steps


@final
@dataclass(frozen=True, kw_only=True)
class Eager(Experiment):
    """Train steps without compiled code and with attention by plain products and a softmax."""

    name: ClassVar[str] = "eager"
    question: ClassVar[str] = "Do plain kernels give the same steps?"
    outcomes: ClassVar[Mapping[str, str]] = {
        "same": "the kernels compute what they should",
        "differs": "a compiled or fused kernel computes something else",
    }
    windows: ClassVar[float] = 0.5

    def why_not(self, scene: Scene) -> str:
        return ""

    def run(self, scene: Scene) -> Result:
        found = compare_steps(scene, lambda replay: replay.within(plain_kernels))
        said = f"with plain kernels {found.said}"
        outcome = "same" if found.is_same else "differs"
        return scene.result(self, outcome, said, difference=found.most, noise=found.noise)
