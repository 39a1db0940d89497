"""Retrieval: a value that was given once, far above."""

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from foreshock.core.language import Task, TaskProbe, words


@final
@dataclass(frozen=True, kw_only=True)
class Retrieval(TaskProbe):
    """Loss of the value of a key that stands `num_between` lines above, in nats a token.

    Args:
        language: the program's model.
        num_items: more tell a smaller fall from noise, and take longer.
        num_between: other keys with other values in between, 12 characters each; all must
            fit the context.
        seed: of the keys and values.

    Reference: Kamradt 2023, "Needle in a haystack"; key and value pairs as in Liu et al.
    2023, "Lost in the Middle".
    """

    name: ClassVar[str] = "retrieval"
    strengthened_by: ClassVar[str] = "long documents that refer back to what they said"
    num_between: int = 6

    def tasks(self) -> list[Task]:
        rng = np.random.default_rng(self.seed)
        return [self._task(rng) for _ in range(self.num_items)]

    def _task(self, rng: np.random.Generator) -> Task:
        keys = words(rng, self.num_between + 1)
        values = words(rng, self.num_between + 1)
        lines = "".join(f"{key} = {value}\n" for key, value in zip(keys, values, strict=True))
        return Task(f"{lines}{keys[0]} =", f" {values[0]}")
