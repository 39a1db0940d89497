"""The same global batch in other micro-batches."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, final

from foreshock.core.experiment import Experiment, Result
from foreshock.scene import Scene
from foreshock.step_comparison import compare_steps


@final
@dataclass(frozen=True, kw_only=True)
class OtherSplit(Experiment):
    """Train steps in micro-batches of half the size (of twice the size, where they hold one).

    A loss that is a mean over each micro-batch, weighted alike whatever it holds, is another
    loss in another split.
    """

    name: ClassVar[str] = "other_split"
    question: ClassVar[str] = "Does the same batch give the same step in other micro-batches?"
    outcomes: ClassVar[Mapping[str, str]] = {
        "same": "how a batch is split has no effect",
        "differs": "the loss or its sum over micro-batches depends on the split",
    }
    windows: ClassVar[float] = 0.5

    def why_not(self, scene: Scene) -> str:
        return "" if sum(map(len, scene.steps[0])) > 1 else "a step has one sample only"

    def run(self, scene: Scene) -> Result:
        size = max(map(len, scene.steps[0]))
        size = size // 2 if size > 1 else 2 * size
        found = compare_steps(scene, micro_size=size)
        said = f"in micro-batches of {size} samples {found.said}"
        outcome = "same" if found.is_same else "differs"
        return scene.result(self, outcome, said, difference=found.most, noise=found.noise)
