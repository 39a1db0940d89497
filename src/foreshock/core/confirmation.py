"""How many alarmed steps close together are more than chance, for the rate at which a run has them.

Every run has lone steps out of range, some one in a million, some one in twelve. Three of ten mean
trouble in the first and nothing in the second.
"""

import math
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final, NamedTuple

USUAL_RATE: Final = 0.005
"""Outliers a step that a run is taken to have before it shows more. Our choice."""
_PRIOR_STEPS: Final = 100
_RATE_STEPS: Final = 2000


class Tally(NamedTuple):
    """Alarmed steps close together, of one series or of several.

    Attributes:
        num_alarmed: among the last steps that count.
        rate: of outliers a step, that this run usually has there.
    """

    num_alarmed: int
    rate: float


def outlier_rate(num_outliers: int, num_steps: int) -> float:
    """The rate of outliers a step, with a prior of one in two hundred that weighs 100 steps.

    Args:
        num_outliers: that were seen, in `num_steps` steps.
        num_steps: that were watched.

    >>> outlier_rate(0, 0), round(outlier_rate(200, 2400), 3)
    (0.005, 0.08)
    """
    return (USUAL_RATE * _PRIOR_STEPS + num_outliers) / (_PRIOR_STEPS + num_steps)


class Outliers:
    """When each of some series was out of range, over the last 2,000 steps.

    Alarmed steps in a row are one outlier: a long incident does not make of a run one of many.

    >>> seen = Outliers()
    >>> seen.begin(1)
    >>> for step in (60, 75, 76, 95):
    ...     seen.add(step, {"loss/global"})
    >>> seen.rate("loss/global", 90) == outlier_rate(2, 90)
    True
    """

    def __init__(self) -> None:
        self._spans: dict[str, list[tuple[int, int]]] = {}  # first and last step of each
        self._first_step: int | None = None

    def begin(self, step: int) -> None:
        """Steps are watched from this one on, if not from an earlier one."""
        self._first_step = step if self._first_step is None else self._first_step

    def add(self, step: int, names: Iterable[str]) -> None:
        """These series were out of range at a step, the last one so far."""
        for name in names:
            known = self._spans.setdefault(name, [])
            if known and known[-1][1] == step - 1:
                known[-1] = (known[-1][0], step)
            else:
                kept = [one for one in known if one[1] > step - _RATE_STEPS]
                self._spans[name] = [*kept, (step, step)]

    def num_alarmed(self, first_step: int) -> dict[str, int]:
        """Of each series that was out of range from a step on, in how many steps."""
        late = {
            name: [(max(a, first_step), b) for a, b in reversed(known) if b >= first_step]
            for name, known in self._spans.items()
        }
        return {name: sum(b - a + 1 for a, b in of) for name, of in late.items() if of}

    def rate(self, name: str, last_step: int) -> float:
        """Outliers a step of a series, over the 2,000 steps up to `last_step`."""
        if self._first_step is None or last_step < self._first_step:
            return outlier_rate(0, 0)
        first = max(last_step - _RATE_STEPS + 1, self._first_step)
        count = sum(first <= one <= last_step for one, _ in self._spans.get(name, []))
        return outlier_rate(count, last_step - first + 1)

    def to_tree(self) -> dict[str, Any]:
        """Everything that is remembered, as a state tree."""
        spans = {name: [list(one) for one in known] for name, known in self._spans.items()}
        return {"spans": spans, "first_step": self._first_step}

    def load_tree(self, tree: dict[str, Any]) -> None:
        """Take back what `to_tree` gave."""
        spans: dict[str, list[list[int]]] = tree["spans"]
        self._spans = {name: [(a, b) for a, b in known] for name, known in spans.items()}
        self._first_step = tree["first_step"]


def false_confirmations(num_alarmed: int, rate: float, within_steps: int) -> float:
    """Confirmations a step by outliers that come at `rate`, each on its own.

    That is an alarmed step now, and the others, binomial, before it.

    Args:
        num_alarmed: alarmed steps that confirm, the present one among them.
        rate: outliers a step.
        within_steps: the last steps that count, the present one among them.
    """
    others = within_steps - 1
    return rate * sum(
        math.comb(others, count) * rate**count * (1 - rate) ** (others - count)
        for count in range(max(0, num_alarmed - 1), others + 1)
    )


@lru_cache(maxsize=4096)
def steps_to_confirm(usually: int, rate: float, within_steps: int) -> int:
    """Alarmed steps that confirm as rarely by chance as `usually` do in a run of few outliers.

    Args:
        usually: alarmed steps that confirm in a run that has one outlier in 200 steps.
        rate: outliers a step.
        within_steps: the last steps that count; all of them are always enough.

    >>> [steps_to_confirm(3, rate, 10) for rate in (0.0, 0.005, 0.02, 1 / 12, 0.5)]
    [3, 3, 5, 7, 10]
    """
    accepted = false_confirmations(usually, USUAL_RATE, within_steps)
    needed = usually
    while needed < within_steps and false_confirmations(needed, rate, within_steps) > accepted:
        needed += 1
    return needed
