"""Arithmetic of a benchmark of diagnoses: shares right, calibration, confusion."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

UNKNOWN: Final = "unknown"
UNSEEN: Final = "(unseen)"
CONFIDENT: Final = 0.8
"""A wrong cause with a higher probability is one that somebody acts on."""
BINS: Final = (0.0, 0.2, 0.4, 0.6, 0.8, 0.9, 1.0)

Ranking = Sequence[tuple[str, float]]
"""Causes with their probabilities, the likeliest first."""


@dataclass(frozen=True, kw_only=True)
class Judged:
    """One diagnosis beside the truth.

    Attributes:
        right: the causes that are right; several where a label does not tell them apart.
        ranking: what was said; None if nothing was seen.
    """

    right: frozenset[str]
    ranking: Ranking | None

    @property
    def first(self) -> str:
        """The cause named first, or `UNSEEN`."""
        return UNSEEN if not self.ranking else self.ranking[0][0]

    @property
    def is_right(self) -> bool:
        """Whether a right cause is named first."""
        return self.first in self.right

    def among(self, number: int) -> bool:
        """Whether a right cause is among the first so many."""
        return any(cause in self.right for cause, _ in (self.ranking or ())[:number])

    @property
    def is_wrongly_confident(self) -> bool:
        """Whether a wrong cause has more than `CONFIDENT`; `unknown` claims nothing."""
        if not self.ranking:
            return False
        cause, probability = self.ranking[0]
        return cause not in self.right and cause != UNKNOWN and probability > CONFIDENT

    @property
    def brier(self) -> float | None:
        """Sum over causes of the squared error of the probability, 0 to 2.

        Right causes count as one: it is not known which of them it was.
        """
        if not self.ranking:
            return None
        mine = sum(p for cause, p in self.ranking if cause in self.right)
        others = sum(p * p for cause, p in self.ranking if cause not in self.right)
        return (1 - mine) ** 2 + others


def shares(judged: Sequence[Judged]) -> dict[str, Any]:
    """The headline figures.

    `unseen` counts apart: every other share is of the cases that were seen.
    """
    seen = [one for one in judged if one.ranking]
    num = len(seen)
    found: dict[str, Any] = {"cases": len(judged), "unseen": len(judged) - num}
    if not num:
        return found
    briers = [one.brier for one in seen if one.brier is not None]
    return {
        **found,
        "top1": _share(one.is_right for one in seen),
        "top3": _share(one.among(3) for one in seen),
        "unknown_rate": _share(one.first == UNKNOWN for one in seen),
        "false_confident_rate": _share(one.is_wrongly_confident for one in seen),
        "brier": round(sum(briers) / len(briers), 4),
    }


def reliability(judged: Iterable[Judged]) -> list[dict[str, Any]]:
    """By the probability of the cause named first: how many, mean probability, share right."""
    rows: list[dict[str, Any]] = []
    named = [(one.ranking[0][1], one.is_right) for one in judged if one.ranking]
    for low, high in pairwise(BINS):
        last = high == BINS[-1]
        mine = [(p, right) for p, right in named if low <= p < high or (last and p == high)]
        if mine:
            rows.append(
                {
                    "from": low,
                    "to": high,
                    "cases": len(mine),
                    "mean_probability": round(sum(p for p, _ in mine) / len(mine), 4),
                    "share_right": _share(right for _, right in mine),
                }
            )
    return rows


def confusion(rows: Iterable[tuple[str, Judged]]) -> dict[str, dict[str, int]]:
    """By true cause: how often each cause was named first, the most frequent first."""
    counted: dict[str, Counter[str]] = {}
    for truth, one in rows:
        counted.setdefault(truth, Counter())[one.first] += 1
    return {truth: dict(counts.most_common()) for truth, counts in sorted(counted.items())}


def by(rows: Iterable[tuple[str, Judged]]) -> dict[str, dict[str, Any]]:
    """The headline figures of each group, by name."""
    groups: dict[str, list[Judged]] = {}
    for name, one in rows:
        groups.setdefault(name, []).append(one)
    return {name: shares(some) for name, some in sorted(groups.items())}


def macro(groups: Mapping[str, Mapping[str, Any]], figure: str) -> float | None:
    """Mean of a figure over groups that have it, so that each counts the same."""
    values = [one[figure] for one in groups.values() if one.get(figure) is not None]
    return round(sum(values) / len(values), 4) if values else None


def _share(hits: Iterable[bool]) -> float:
    listed = list(hits)
    return round(sum(listed) / len(listed), 4)
