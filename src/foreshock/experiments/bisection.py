"""Which samples of the window are needed."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final, final

from foreshock.core.bisection import isolate
from foreshock.core.experiment import Experiment, Result
from foreshock.scene import Scene
from foreshock.trial import NoResultError

_FEW: Final = 0.25
_SHOWN: Final = 8


@final
@dataclass(frozen=True, kw_only=True)
class Bisection(Experiment):
    """Search by replays for the samples without which it does not come.

    Few are at most a quarter of the window's samples; what is not looked at, because the replays
    are used up, counts as needed.

    Args:
        budget: replays, at least 3.
    """

    name: ClassVar[str] = "bisection"
    question: ClassVar[str] = "Which samples of the window does it take?"
    outcomes: ClassVar[Mapping[str, str]] = {
        "few_samples": "a few samples are enough",
        "many_samples": "it takes most of the window",
        "none_needed": "it comes without any of the window's samples",
    }
    windows: ClassVar[float] = 12.0

    budget: int = 24

    def why_not(self, scene: Scene) -> str:
        if not scene.past:
            return "no samples from before the onset are known to take the place of others"
        return scene.nothing_to_cure

    def run(self, scene: Scene) -> Result:
        arena = scene.need_arena()
        if not arena.trial.broken and len(arena.trial.alarmed) < scene.least:
            raise NoResultError("what comes back is a level, and too few alarms to search by")
        window = scene.window(arena)
        num, without = len(window.items), 0

        def comes(kept: frozenset[int]) -> bool:
            nonlocal without
            if len(kept) == num:
                return True  # seen before
            enough = max(scene.least, without + 1)
            found = window.alarmed_steps(kept, enough=enough)
            if not kept:
                without = found if found < scene.least else 0
            return found >= enough

        found = isolate(window.groups(), comes, budget=self.budget, is_spent=scene.is_spent)
        if found.without_any:
            return scene.result(
                self, "none_needed", f"it comes without any of the {num} samples", samples=num
            )
        held = len(found.needed) + len(found.undecided)
        outcome = "few_samples" if held <= _FEW * num else "many_samples"
        names = [key for key, item in window.items.items() if item in set(found.needed)]
        shown = ", ".join(f"{source}:{index}" for source, index in names[:_SHOWN])
        said = (
            f"{len(found.needed)} of {num} samples are needed ({shown or 'none seen one by one'}), "
            f"{len(found.undecided)} undecided, {len(found.cleared)} cleared, by "
            f"{found.num_replays} replays"
        )
        return scene.result(
            self,
            outcome,
            said,
            samples=num,
            needed=len(found.needed),
            undecided=len(found.undecided),
            cleared=len(found.cleared),
        )
