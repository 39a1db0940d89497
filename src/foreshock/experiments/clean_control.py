"""Harmless batches on the clean state: the control of all controls."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, final

from foreshock.core.experiment import Experiment, Result
from foreshock.scene import Scene


@final
@dataclass(frozen=True, kw_only=True)
class CleanControl(Experiment):
    """Train batches that did no harm on an older clean state: neither data nor state is suspect.

    What comes here comes of the program, its settings or the machine. Without it, PaLM's control
    blames the batches for what the program does to any of them. The state is that of PaLM's
    control; where no older one is left, the clean one.
    """

    name: ClassVar[str] = "clean_control"
    question: ClassVar[str] = "Does it come on harmless batches and a clean state?"
    outcomes: ClassVar[Mapping[str, str]] = {
        "comes_back": "it is in the program, its settings or the machine, whatever the data",
        "stays_away": "it takes the window's batches, or the state",
    }
    windows: ClassVar[float] = 1.0

    def why_not(self, scene: Scene) -> str:
        return "" if scene.past else "no batches from before the onset are known"

    def run(self, scene: Scene) -> Result:
        state = scene.clean if scene.older is None else scene.older
        trial = scene.comes(scene.of_past(len(scene.steps)), state)
        outcome = "comes_back" if scene.comes_back(trial) else "stays_away"
        said = f"batches of before the onset on the clean {state}: {trial.said}"
        return scene.result(self, outcome, said, **trial.figures)
