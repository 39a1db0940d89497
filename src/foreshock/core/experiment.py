"""The contract of an experiment: a controlled comparison, from snapshots, that settles a cause.

An experiment never touches the run. It trains steps of a copy again with one thing changed, and
its result is one of a few outcomes; each cause says how likely it makes each of them, so that a
result moves the diagnosis and the most telling experiment can be chosen before it is paid for.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from foreshock.core.reading import from_json_number, from_json_text, from_json_whole, json_number


@dataclass(frozen=True, kw_only=True)
class Result:
    """What came of an experiment.

    Attributes:
        experiment: its name.
        outcome: one of its outcomes.
        outcomes: all that it might have had.
        statement: what was done and what was seen, in words, with numbers.
        figures: the numbers.
        num_steps: optimizer steps that were trained for it.
    """

    experiment: str
    outcome: str
    outcomes: tuple[str, ...]
    statement: str
    figures: Mapping[str, float] = field(default_factory=dict[str, float])
    num_steps: int = 0

    def to_json(self) -> dict[str, Any]:
        """A strict JSON object."""
        figures = {name: json_number(value) for name, value in self.figures.items()}
        return {**vars(self), "outcomes": list(self.outcomes), "figures": figures}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "Result":
        """Undo `to_json`.

        Raises:
            ValueError: a field is not as it should be.
        """
        return cls(
            experiment=from_json_text(fields["experiment"]),
            outcome=from_json_text(fields["outcome"]),
            outcomes=tuple(from_json_text(one) for one in fields["outcomes"]),
            statement=from_json_text(fields["statement"]),
            figures={
                from_json_text(name): from_json_number(value)
                for name, value in fields["figures"].items()
            },
            num_steps=from_json_whole(fields["num_steps"]),
        )


class Experiment(ABC):
    """One controlled comparison.

    A frozen keyword-only dataclass.

    Attributes:
        name: unique within the family; the file bears the same name.
        question: what it asks, in words.
        outcomes: each outcome, and what it says in words. At least two.
        windows: about how often the steps of the incident are trained for it.
    """

    name: ClassVar[str]
    question: ClassVar[str]
    outcomes: ClassVar[Mapping[str, str]]
    windows: ClassVar[float]

    @abstractmethod
    def why_not(self, scene: Any) -> str:
        """Why it cannot be run on this scene, in words; "" if it can."""

    @abstractmethod
    def run(self, scene: Any) -> Result:
        """Run it; the scene is left as it was found.

        Raises:
            SnapshotError: a state it needs cannot be restored.
            ProgramError: the program's loss raises.
        """


Tables = Mapping[str, Mapping[str, Mapping[str, float]]]
"""By cause, by experiment: the probability of each outcome."""


def information(
    probabilities: Mapping[str, float], experiment: str, outcomes: tuple[str, ...], tables: Tables
) -> float:
    """Nats that an experiment is expected to tell of the cause.

    `H(cause) - sum over o of P(o) H(cause | o)`; a cause that says nothing of an experiment
    makes all its outcomes alike.

    Args:
        probabilities: of the causes, now.
        outcomes: of the experiment.
    """
    uniform = dict.fromkeys(outcomes, 1 / len(outcomes))
    likely = {cause: tables.get(cause, {}).get(experiment, uniform) for cause in probabilities}
    told = _entropy(probabilities.values())
    for outcome in outcomes:
        joint = [p * likely[cause][outcome] for cause, p in probabilities.items()]
        total = sum(joint)
        if total > 0:
            told -= total * _entropy(one / total for one in joint)
    return max(0.0, told)


def _entropy(shares: Any) -> float:
    return -sum(one * math.log(one) for one in shares if one > 0)
