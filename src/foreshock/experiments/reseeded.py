"""The window in another order, with other seeds."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Final, final

import numpy as np

from foreshock.core.experiment import Experiment, Result
from foreshock.replaying import MicroBatches, Replay
from foreshock.scene import Scene
from foreshock.trial import Trial

_SEEDS: Final = (1001, 2002, 3003)


@final
@dataclass(frozen=True, kw_only=True)
class Reseeded(Experiment):
    """Train the window's samples in another order, with other seeds of dropout and the like.

    Twice; where the two disagree a third time decides.
    """

    name: ClassVar[str] = "reseeded"
    question: ClassVar[str] = "Does it come in another order and with other seeds?"
    outcomes: ClassVar[Mapping[str, str]] = {
        "comes_back": "neither order nor chance decides",
        "stays_away": "it takes this order, or these random numbers",
    }
    windows: ClassVar[float] = 2.2

    def why_not(self, scene: Scene) -> str:
        return scene.nothing_to_cure

    def run(self, scene: Scene) -> Result:
        arena = scene.need_arena()
        seen: list[bool] = []
        trials: list[Trial] = []
        for seed in _SEEDS:
            steps = _reordered(arena.steps, seed)
            trials.append(scene.comes(steps, arena.state, partial(_seeded, seed=seed)))
            seen.append(scene.comes_back(trials[-1]))
            if len(seen) > 1 and seen.count(seen[-1]) > 1:
                break
        outcome = "comes_back" if seen[-1] else "stays_away"
        said = (
            f"in another order and with other seeds it came {seen.count(True)} times of "
            f"{len(seen)}; in the last {trials[-1].said}"
        )
        return scene.result(self, outcome, said, **trials[-1].figures)


@contextmanager
def _seeded(replay: Replay, *, seed: int) -> Iterator[None]:
    replay.reseed(seed)
    yield


def _reordered(steps: Sequence[MicroBatches], seed: int) -> list[MicroBatches]:
    """The same samples in steps of the same sizes, in another order."""
    flat = [one for step in steps for micro in step for one in micro]
    mixed = iter([flat[place] for place in np.random.default_rng(seed).permutation(len(flat))])
    return [[[next(mixed) for _ in micro] for micro in step] for step in steps]
