"""Arithmetic: sums of two numbers, after a few that are done."""

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from foreshock.core.language import Task, TaskProbe


@final
@dataclass(frozen=True, kw_only=True)
class Arithmetic(TaskProbe):
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
    num_shots: int = 4
    limit: int = 50

    def tasks(self) -> list[Task]:
        rng = np.random.default_rng(self.seed)
        drawn = rng.integers(0, self.limit, size=(self.num_items, self.num_shots + 1, 2))
        return [_task([(int(a), int(b)) for a, b in sums]) for sums in drawn]


def _task(sums: list[tuple[int, int]]) -> Task:
    shots = "".join(f"{a}+{b}={a + b}\n" for a, b in sums[:-1])
    a, b = sums[-1]
    return Task(f"{shots}{a}+{b}=", str(a + b))
