"""Copying: words that no text has taught, said a second time."""

from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np

from foreshock.core.language import (
    LanguageModel,
    Task,
    check_num_items,
    share_exact,
    task_losses,
    words,
)
from foreshock.core.probe import Probe


@final
@dataclass(frozen=True, kw_only=True)
class Copy(Probe):
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
    language: LanguageModel
    num_items: int = 32
    num_words: int = 6
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
        drawn = [words(rng, self.num_words) for _ in range(self.num_items)]
        return [Task(f"{' '.join(one)}\n{one[0]}", " " + " ".join(one[1:])) for one in drawn]
