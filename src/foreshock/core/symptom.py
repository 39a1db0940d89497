"""Symptoms: questions on a case that readings answer, the same for every cause.

A cause does not read series itself. It says how often it comes with each symptom; what is usual
for a symptom stands here, with the look that tells of it. So each fact is told once, in one
wording, and weighed by every cause that expects it or expects it not.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

from foreshock.core.reading import Reading

if TYPE_CHECKING:
    from foreshock.core.case import Case

AGREEMENT: Final = 0.6
"""What a symptom counts of its own weight: symptoms of one case are not independent (a loss that
jumps takes the gradient norm along), so that naive sums are too sure. Calibrated on the injection
matrix, see docs/causes.md."""

MOST: Final = 4.0
"""The most that one fact weighs, in nats."""


@dataclass(frozen=True, kw_only=True)
class Symptom:
    """What a look at a case found.

    Attributes:
        name: of the question, in lower_snake_case; unique over all looks.
        degree: 0 (no) to 1 (yes); between, where it is not clear.
        statement: the answer in words, with its numbers.
        readings: those behind it.
    """

    name: str
    degree: float
    statement: str
    readings: tuple[Reading, ...] = ()


class Look(ABC):
    """A look at a case: one question, or several that share the looking.

    A frozen keyword-only dataclass, pure. What cannot be looked at (a series that is not
    measured, too short a past) is left out, which is no evidence; an answer "no" is some.

    Attributes:
        name: unique within the family; the file bears the same name.
        usual: by symptom that it may tell of, the share of episodes in which it is present
            when nothing is known of the cause: between 0.01 and 0.99.
    """

    name: ClassVar[str]
    usual: ClassVar[Mapping[str, float]]

    @abstractmethod
    def look(self, case: "Case") -> Iterable[Symptom]:
        """Yield the symptoms that can be told of, present or absent, each at most once."""


@dataclass(frozen=True, kw_only=True)
class Observed:
    """A symptom with how usual it is."""

    symptom: Symptom
    usual: float


def observe(case: "Case", looks: Iterable[Look]) -> dict[str, Observed]:
    """All that looks find in a case, by name of the symptom.

    Raises:
        ValueError: a look tells of what it does not state, or two tell of the same.
    """
    found: dict[str, Observed] = {}
    for look in looks:
        for symptom in look.look(case):
            if symptom.name not in look.usual or symptom.name in found:
                raise ValueError(f"symptoms/{look.name} must not tell of {symptom.name!r}")
            found[symptom.name] = Observed(symptom=symptom, usual=look.usual[symptom.name])
    return found


def weight_of(degree: float, expected: float, usual: float) -> float:
    """What a symptom adds to the log-odds of a cause, in nats, within `MOST`.

    `AGREEMENT * (degree * ln(expected / usual) + (1 - degree) * ln((1 - expected) / (1 - usual)))`

    Args:
        degree: to which it is present, 0 to 1.
        expected: share of episodes of the cause in which it is present.
        usual: share of all episodes in which it is.

    >>> round(weight_of(1.0, 0.9, 0.3), 2), round(weight_of(0.0, 0.9, 0.3), 2)
    (0.66, -1.17)
    """
    present = math.log(expected / usual)
    absent = math.log((1 - expected) / (1 - usual))
    weight = AGREEMENT * (degree * present + (1 - degree) * absent)
    return max(-MOST, min(MOST, weight))
