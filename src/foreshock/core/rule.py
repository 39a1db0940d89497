"""The contract of an online data rule: what a sample must pass before it trains."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.integer]


@dataclass(frozen=True, kw_only=True)
class Rule(ABC):
    """A pure judgement of one sample; every field is a limit.

    A rule sees the sample's tokens, its text, or both, as far as the stream can tell them.
    It must give the same answer on every rank and in every replay, so it may use nothing
    but its arguments and fields. A rule that lacks what it needs does not guess: it says so
    through `can_judge`, and the stream counts the sample as unjudged by it.

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
