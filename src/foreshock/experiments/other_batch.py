"""Other batches on the suspect state."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, final

from foreshock.core.experiment import Experiment, Result
from foreshock.scene import Scene
from foreshock.window import SETTLE_STEPS


@final
@dataclass(frozen=True, kw_only=True)
class OtherBatch(Experiment):
    """Train batches that did no harm before on the state in which the trouble began.

    The state is one that the run itself had since the onset, where a snapshot is left; else that
    of a replay just before the first alarm, which is the same only if the trouble comes in it.
    """

    name: ClassVar[str] = "other_batch"
    question: ClassVar[str] = "Do harmless batches do it to the suspect state?"
    outcomes: ClassVar[Mapping[str, str]] = {
        "comes_back": "the state is at fault, whatever the data",
        "stays_away": "it takes the window's batches",
    }
    windows: ClassVar[float] = 1.0

    def why_not(self, scene: Scene) -> str:
        if not scene.past:
            return "no batches from before the onset are known"
        return "" if scene.suspect is not None else scene.nothing_to_cure

    def run(self, scene: Scene) -> Result:
        if scene.suspect is None:
            scene.need_arena()
        num_steps = max(1, len(scene.steps) - scene.before_alarm) + SETTLE_STEPS
        state = scene.suspect_state
        trial = scene.comes(scene.of_past(num_steps), state, settle=False)
        outcome = "comes_back" if scene.comes_back(trial) else "stays_away"
        said = f"batches of before the onset on the state {state}: {trial.said}"
        return scene.result(self, outcome, said, **trial.figures)
