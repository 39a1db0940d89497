"""Moments of a state before."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch

from foreshock.core.action import Capability
from foreshock.core.experiment import Experiment, Result
from foreshock.optimizer_settings import capabilities_of
from foreshock.replaying import Replay
from foreshock.scene import Scene
from foreshock.snapshots.parts import clone_tree
from foreshock.state_edits import MOMENTS
from foreshock.trial import NoResultError


@final
@dataclass(frozen=True, kw_only=True)
class RepairedMoments(Experiment):
    """Train the steps with the moments of an earlier, clean state.

    On a state that the run itself had, those just before the onset; on a replayed one those of
    the snapshot that the replay began with.
    """

    name: ClassVar[str] = "repaired_moments"
    question: ClassVar[str] = "Does it come with the moments of an earlier state?"
    outcomes: ClassVar[Mapping[str, str]] = {
        "cured": "the moments are at fault",
        "not_cured": "it comes with earlier moments too",
    }
    windows: ClassVar[float] = 1.0

    def why_not(self, scene: Scene) -> str:
        optimizer = scene.replay.program.optimizer
        can = capabilities_of(optimizer, fused=False, has_embeddings=False)
        if Capability.RESET_MOMENTS not in can:
            return "the optimizer has no moments"
        if scene.suspect is None and not scene.lead and scene.older is None:
            return "there is no state before the one in which the trouble begins"
        return scene.nothing_to_cure

    def run(self, scene: Scene) -> Result:
        arena = scene.need_arena()
        source = scene.before if arena.is_real else scene.clean if scene.lead else scene.older
        if source is None:
            raise NoResultError("there is no state before the one in which the trouble begins")
        moments = _moments_of(clone_tree(scene.look(source).captured("optimizer")))

        @contextmanager
        def change(replay: Replay) -> Iterator[None]:
            live = _moments_of(replay.captured("optimizer"))
            with torch.no_grad():
                for place, tensor in live.items():
                    if place in moments:
                        tensor.copy_(moments[place])
            yield

        cured, trial = scene.cures(change)
        said = f"with the moments of {source}: {trial.said}"
        return scene.result(self, "cured" if cured else "not_cured", said, **trial.figures)


def _moments_of(tree: Any) -> dict[tuple[Any, str], torch.Tensor]:
    """The moments in the state of an optimizer, by parameter and name."""
    return {
        (number, name): value
        for number, held in tree["state"].items()
        for name, value in held.items()
        if name in MOMENTS and isinstance(value, torch.Tensor)
    }
