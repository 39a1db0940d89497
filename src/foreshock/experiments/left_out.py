"""The window left out: training on with what follows."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, final

from foreshock.core.experiment import Experiment, Result
from foreshock.scene import Scene


@final
@dataclass(frozen=True, kw_only=True)
class LeftOut(Experiment):
    """Leave the window out and train on with what follows, from the state before the onset.

    What follows begins behind all that the incident has set aside or that is suspect.
    """

    name: ClassVar[str] = "left_out"
    question: ClassVar[str] = "Does it come if the window is left out?"
    outcomes: ClassVar[Mapping[str, str]] = {
        "comes_back": "the window is not needed for it",
        "stays_away": "without the window it does not come",
    }
    windows: ClassVar[float] = 1.0

    def why_not(self, scene: Scene) -> str:
        return scene.nothing_to_cure if scene.later else "the data ends with the window"

    def run(self, scene: Scene) -> Result:
        scene.need_arena()
        trial = scene.comes(scene.later, scene.before, settle=False)
        outcome = "comes_back" if scene.comes_back(trial) else "stays_away"
        said = f"the window left out, {len(scene.later)} steps of what follows: {trial.said}"
        return scene.result(self, outcome, said, **trial.figures)
