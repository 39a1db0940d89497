"""Arithmetic: sums of two numbers, after a few that are done."""

from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np

from foreshock.core.language import LanguageModel, Task, check_num_items, share_exact, task_losses
from foreshock.core.probe import Probe


@final
@dataclass(frozen=True, kw_only=True)
class Arithmetic(Probe):
    """Loss of the right sum after examples, in nats a token.

    Args:
        language: the program's model.
        num_items: more tell a smaller fall from noise, and take longer.
        num_shots: sums done before the one that is asked for.
        limit: both numbers are below it.
        seed: of the numbers.

    A model that cannot add still has a loss here, and losing it shows: that digits follow
    `=`, and how many.
    """

    name: ClassVar[str] = "arithmetic"
    strengthened_by: ClassVar[str] = "mathematics: worked sums and tables"
    language: LanguageModel
    num_items: int = 32
    num_shots: int = 4
    limit: int = 50
    seed: int = 0

    def __post_init__(self) -> None:
        check_num_items(self.name, self.num_items)

    def measure(self, model: Any) -> list[float]:
        return task_losses(self.language, model, self.tasks())

    def exact_share(self, model: Any) -> float | None:
        return share_exact(self.language, model, self.tasks())

    def tasks(self) -> list[Task]:
        """The items."""
        rng = np.random.default_rng(self.seed)
        drawn = rng.integers(0, self.limit, size=(self.num_items, self.num_shots + 1, 2))
        return [_task([(int(a), int(b)) for a, b in sums]) for sums in drawn]


def _task(sums: list[tuple[int, int]]) -> Task:
    shots = "".join(f"{a}+{b}={a + b}\n" for a, b in sums[:-1])
    a, b = sums[-1]
    return Task(f"{shots}{a}+{b}=", str(a + b))
