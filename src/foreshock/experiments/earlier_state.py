"""PaLM's control: the window's batches on an older clean snapshot."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, final

from foreshock.core.experiment import Experiment, Result
from foreshock.scene import Scene


@final
@dataclass(frozen=True, kw_only=True)
class EarlierState(Experiment):
    """Train the window's batches on an older clean state, before anyone blames them.

    PaLM restarted from an earlier checkpoint on the very batches that had surrounded its spikes,
    and saw none: it was not that those were bad by themselves.

    Reference: Chowdhery et al. 2022, PaLM, section 5.1: https://arxiv.org/abs/2204.02311.
    """

    name: ClassVar[str] = "earlier_state"
    question: ClassVar[str] = "Do the same batches do it to an older clean state?"
    outcomes: ClassVar[Mapping[str, str]] = {
        "comes_back": "the batches are bad by themselves",
        "stays_away": "the batches alone do not do it: it takes the state that they met",
    }
    windows: ClassVar[float] = 1.2

    def why_not(self, scene: Scene) -> str:
        if scene.older is None:
            return "no healthy snapshot is left from 20 steps before the onset or more"
        waiting = scene.look(scene.older).not_ready()
        series = {one for _, one in scene.alarmed}
        if series <= waiting.keys():
            return f"in the older state nothing watches {', '.join(sorted(series)[:3])} yet"
        return ""

    def run(self, scene: Scene) -> Result:
        assert scene.older is not None
        trial = scene.comes(scene.steps, scene.older)
        outcome = "comes_back" if scene.comes_back(trial) else "stays_away"
        said = f"the window's batches on the older {scene.older}: {trial.said}"
        return scene.result(self, outcome, said, **trial.figures)
