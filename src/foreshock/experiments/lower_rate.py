"""The window at a third of the learning rate."""

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, final

from foreshock.core.experiment import Experiment, Result
from foreshock.core.override import LRFactor
from foreshock.replaying import Replay
from foreshock.scene import Scene
from foreshock.trial import NoResultError


@final
@dataclass(frozen=True, kw_only=True)
class LowerRate(Experiment):
    """Train the steps at a third of the rate they had.

    Args:
        factor: on the learning rate. A third: our choice; OPT-175B and others went down by a
            half to a third where lower rates helped.
    """

    name: ClassVar[str] = "lower_rate"
    question: ClassVar[str] = "Does it come at a third of the learning rate?"
    outcomes: ClassVar[Mapping[str, str]] = {
        "cured": "the rate is too high for this state",
        "not_cured": "a lower rate does not help",
    }
    windows: ClassVar[float] = 1.0

    factor: float = 1 / 3

    def why_not(self, scene: Scene) -> str:
        return scene.nothing_to_cure

    def run(self, scene: Scene) -> Result:
        if scene.need_arena().is_real:
            raise NoResultError("it comes only in a state that the higher rate has trained")
        cured, trial = scene.cures(self._lowered)
        said = f"at {self.factor:.2g} of the learning rate: {trial.said}"
        return scene.result(self, "cured" if cured else "not_cured", said, **trial.figures)

    @contextmanager
    def _lowered(self, replay: Replay) -> Iterator[None]:
        before, step = replay.overrides, replay.step + 1
        lowered = LRFactor(factor=self.factor, first_step=step)
        replay.overrides = copy.deepcopy(before)
        replay.overrides.add_record({"kind": lowered.kind, "key": self.name, **lowered.to_json()})
        try:
            yield
        finally:
            replay.overrides = before
