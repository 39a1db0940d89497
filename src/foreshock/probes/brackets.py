"""Bracket matching: the closing of what is open, in the right order."""

from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np

from foreshock.core.language import LanguageModel, Task, check_num_items, share_exact, task_losses
from foreshock.core.probe import Probe

_PAIRS = ("()", "[]", "{}")


@final
@dataclass(frozen=True, kw_only=True)
class Brackets(Probe):
    """Loss of the brackets that close a line, in nats a token.

    Args:
        language: the program's model.
        num_items: more tell a smaller fall from noise, and take longer.
        depth: brackets left open, to be closed from the inside.
        num_shots: whole lines before it.
        seed: of the brackets.

    Reference: the Dyck language of three brackets (Hewitt et al. 2020, "RNNs can generate
    bounded hierarchical languages with optimal memory").
    """

    name: ClassVar[str] = "brackets"
    strengthened_by: ClassVar[str] = "code"
    language: LanguageModel
    num_items: int = 32
    depth: int = 4
    num_shots: int = 3
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
        drawn = rng.integers(0, len(_PAIRS), size=(self.num_items, self.num_shots + 1, self.depth))
        return [self._task([[_PAIRS[kind] for kind in line] for line in item]) for item in drawn]

    def _task(self, lines: list[list[str]]) -> Task:
        shots = "".join(f"{_opening(line)}x{_closing(line)}\n" for line in lines[:-1])
        return Task(f"{shots}{_opening(lines[-1])}x", _closing(lines[-1]))


def _opening(line: list[str]) -> str:
    return "".join(pair[0] for pair in line)


def _closing(line: list[str]) -> str:
    return "".join(pair[1] for pair in reversed(line))
