"""Fresh moments."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, final

from foreshock.core.action import Capability
from foreshock.core.experiment import Experiment, Result
from foreshock.optimizer_settings import capabilities_of
from foreshock.replaying import Replay
from foreshock.scene import Scene
from foreshock.state_edits import reset_moments


@final
@dataclass(frozen=True, kw_only=True)
class FreshMoments(Experiment):
    """Train the steps with moments that begin anew.

    Fresh moments make large first updates by themselves: alarms that they raise on harmless
    data of the state before the onset do not count.
    """

    name: ClassVar[str] = "fresh_moments"
    question: ClassVar[str] = "Does it come if the optimizer's moments begin anew?"
    outcomes: ClassVar[Mapping[str, str]] = {
        "cured": "the moments are at fault, or out of date",
        "not_cured": "it comes with fresh moments too",
    }
    windows: ClassVar[float] = 2.0

    def why_not(self, scene: Scene) -> str:
        optimizer = scene.replay.program.optimizer
        can = capabilities_of(optimizer, fused=False, has_embeddings=False)
        if Capability.RESET_MOMENTS not in can:
            return "the optimizer has no moments"
        return scene.nothing_to_cure

    def run(self, scene: Scene) -> Result:
        cured, trial = scene.cures(_fresh, controlled=True)
        said = f"with fresh moments: {trial.said}"
        return scene.result(self, "cured" if cured else "not_cured", said, **trial.figures)


@contextmanager
def _fresh(replay: Replay) -> Iterator[None]:
    optimizer = replay.program.optimizer
    reset_moments(optimizer, [one for group in optimizer.param_groups for one in group["params"]])
    yield
