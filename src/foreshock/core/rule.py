"""The contract of an online data rule: what a sample must pass before it trains."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.integer]

LEARNED_FROM: Final = 256
"""Samples that limits are learned from. Our choice: enough for a quantile of 0.95 by twelve
samples above it, and read once, when a stream with rules begins."""

_FEWEST: Final = 64
_QUANTILE: Final = 0.95
_MOST: Final = 0.999


class Sample(NamedTuple):
    """A sample as rules see it, as far as the stream can tell.

    Attributes:
        tokens: `[T]` integers, without those that its attention mask leaves out.
        text: its text.
        labels: `[T]` integers, likewise; what is not predicted has the ignored index.
    """

    tokens: Tokens | None
    text: str | None
    labels: Tokens | None = None


@dataclass(frozen=True, kw_only=True)
class Rule(ABC):
    """A pure judgement of one sample; every field is a limit.

    A rule sees the sample's tokens, its text, or both, as far as the stream can tell them;
    one that needs its labels as well has `can_judge_sample` and `judge_batch` of its own.
    It must give the same answer on every rank and in every replay, so it may use nothing
    but its arguments and fields. A rule that lacks what it needs does not guess: it says so
    through `can_judge`, and the stream counts the sample as unjudged by it.

    A stream asks by `judge_batch`, of the samples of a batch at once. A rule that can do that
    faster than one by one overrides it, with the same answers.

    A limit that was not given may be learned; see `learned`.

    Attributes:
        name: unique among the rules in use; it stands in the ledger beside each rejection.
    """

    name: ClassVar[str]

    @abstractmethod
    def can_judge(self, tokens: Tokens | None, text: str | None) -> bool:
        """Whether `tokens` (`[T]` integers) and `text` suffice for this rule."""

    @abstractmethod
    def judge(self, tokens: Tokens | None, text: str | None) -> str | None:
        """Return why the sample is rejected, with value and limit; None if it passes.

        None also where `can_judge` is false.
        """

    def can_judge_sample(self, sample: Sample) -> bool:
        """Whether a sample has what this rule needs."""
        return self.can_judge(sample.tokens, sample.text)

    def judge_batch(self, samples: Sequence[Sample]) -> list[str | None]:
        """Return for each sample what `judge` would."""
        return [self.judge(one.tokens, one.text) for one in samples]

    def learned(self, samples: Sequence[Sample]) -> Self:
        """Return this rule with the limits that were not given learned from samples.

        The samples are the first of the stream's order, so that all ranks and every resume
        and replay learn the same; there is nothing to be journalled.
        """
        del samples
        return self


def learned_share(shares: Sequence[float], usual: float) -> float:
    """The limit of a share, from what the shares of a stream's first samples are.

    limit = max(usual, q + (q - m)), at most 0.999 (what is damaged throughout never passes), q
    being the 0.95 quantile and m the median: as far again above the bulk as the bulk is wide.
    It is never below what a rule documents, so that learning cannot reject more clean text than
    was measured; it rises where this stream is of another kind, such as indented code or
    tables. Up to 5 % of bad samples among the first do not move it. Fewer than 64 samples:
    `usual`.

    >>> learned_share([0.0] * 90 + [0.9] * 2, usual=0.1)
    0.1
    >>> round(learned_share([0.1 + n / 1000 for n in range(100)], usual=0.1), 3)
    0.24

    No source: our choice.
    """
    if len(shares) < _FEWEST:
        return usual
    bulk = float(np.quantile(shares, _QUANTILE, method="higher"))
    middle = float(np.median(shares))
    return min(max(usual, bulk + (bulk - middle)), _MOST)
