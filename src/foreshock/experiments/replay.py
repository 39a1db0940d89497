"""The window exactly, from the clean snapshot."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, final

from foreshock.core.experiment import Experiment, Result
from foreshock.scene import Scene
from foreshock.trial import NoResultError


@final
@dataclass(frozen=True, kw_only=True)
class Replay(Experiment):
    """Train the steps of the window again, as the run did.

    If nothing happens in a replay that is the run's bit by bit, what went wrong is neither in the
    data nor in the program: the state or the machine had it, for once.
    """

    name: ClassVar[str] = "replay"
    question: ClassVar[str] = "Does it come again from the clean snapshot, with the same steps?"
    outcomes: ClassVar[Mapping[str, str]] = {
        "comes_back": "it is in the data, the program, or the state that led to it",
        "stays_away": "it is nothing that a replay repeats: a damaged state, or chance",
    }
    windows: ClassVar[float] = 1.0

    def why_not(self, scene: Scene) -> str:
        return ""

    def run(self, scene: Scene) -> Result:
        trial = scene.again()
        said = f"the window trained again from {scene.clean}: {trial.said}"
        if scene.comes_back(trial):
            return scene.result(self, "comes_back", said, **trial.figures)
        if scene.exact is False and not scene.is_close:
            raise NoResultError(
                "it does not come, but the steps before the onset were not those of the run: "
                "replay with the program, settings and recipe of the run"
            )
        kind = {True: "as in the run, bit by bit", False: "close to the run", None: "not compared"}
        said = f"{said}; the steps before it {kind[scene.exact]}"
        return scene.result(self, "stays_away", said, **trial.figures)
