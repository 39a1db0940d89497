"""Copying: words that no text has taught, said a second time."""

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from foreshock.core.language import Task, TaskProbe, words


@final
@dataclass(frozen=True, kw_only=True)
class Copy(TaskProbe):
    """Loss of a line of random words that stands once above, in nats a token.

    Args:
        language: the program's model.
        num_items: more tell a smaller fall from noise, and take longer.
        num_words: in a line of 5 characters each; the line and its copy must fit the context.
        seed: of the words.

    A model without induction gives ln(26) a letter, 3.3 nats.

    Reference: Olsson et al. 2022, "In-context Learning and Induction Heads".
    """

    name: ClassVar[str] = "copy"
    strengthened_by: ClassVar[str] = "text that repeats itself: quotations, tables, code"
    num_words: int = 6

    def tasks(self) -> list[Task]:
        rng = np.random.default_rng(self.seed)
        drawn = [words(rng, self.num_words) for _ in range(self.num_items)]
        return [Task(f"{' '.join(one)}\n{one[0]}", " " + " ".join(one[1:])) for one in drawn]
