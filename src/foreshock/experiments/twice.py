"""The same steps twice."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, final

from foreshock.core.errors import ConfigError
from foreshock.core.experiment import Experiment, Result
from foreshock.determinism import check_determinism
from foreshock.scene import Scene
from foreshock.trial import NoResultError


@final
@dataclass(frozen=True, kw_only=True)
class Twice(Experiment):
    """Train the first steps of the window twice from one state and compare every bit."""

    name: ClassVar[str] = "twice"
    question: ClassVar[str] = "Does a step give the same bits twice?"
    outcomes: ClassVar[Mapping[str, str]] = {
        "same_bits": "what trains here is a function of its state",
        "differs": "something is not: a kernel, a generator, the program's own code",
    }
    windows: ClassVar[float] = 0.6

    def why_not(self, scene: Scene) -> str:
        return ""

    def run(self, scene: Scene) -> Result:
        replay = scene.look(scene.before)
        try:
            found = check_determinism(replay.program, scene.recipe)
        except ConfigError as error:
            raise NoResultError(str(error)) from error
        finally:
            scene.look(scene.before)
        scene.steps_trained += 2 * found.num_steps
        outcome = "same_bits" if found.equal else "differs"
        return scene.result(self, outcome, found.sentence, differing=found.num_differing)
