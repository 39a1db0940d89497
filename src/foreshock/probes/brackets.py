"""Bracket matching: the closing of what is open, in the right order."""

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from foreshock.core.language import Task, TaskProbe

_PAIRS = ("()", "[]", "{}")


@final
@dataclass(frozen=True, kw_only=True)
class Brackets(TaskProbe):
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
    depth: int = 4
    num_shots: int = 3

    def tasks(self) -> list[Task]:
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
