"""Rejects samples in which nothing is to be predicted."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from foreshock.core.rule import Rule, Sample, Tokens


@dataclass(frozen=True, kw_only=True)
class AllMasked(Rule):
    """Reject a sample all of whose labels are masked, or that its attention mask hides whole.

    A mean over no label is 0/0: a batch of such samples has a loss of NaN, and one among others
    weighs nothing and costs as much. It comes of a template that does not match, or of a
    prompt that was cut before its answer.

    Args:
        ignore_index: the label that is not predicted.

    Needs labels, or an attention mask; else it cannot judge. It never looks at text.

    >>> rule = AllMasked()
    >>> cut = Sample(np.array([5, 6]), None, np.array([-100, -100]))
    >>> rule.judge_batch([cut, cut._replace(labels=np.array([-100, 7]))])
    ['none of its 2 labels is to be predicted', None]

    Cost: 1 µs for 1024 labels (`benchmarks/data_rules.py`).

    Reference: -100 is `ignore_index` of torch.nn.functional.cross_entropy.
    """

    name: ClassVar[str] = "all_masked"

    ignore_index: int = -100

    def can_judge(self, tokens: Tokens | None, text: str | None) -> bool:
        del tokens, text
        return False

    def judge(self, tokens: Tokens | None, text: str | None) -> str | None:
        del tokens, text
        return None

    def can_judge_sample(self, sample: Sample) -> bool:
        return sample.labels is not None

    def judge_batch(self, samples: Sequence[Sample]) -> list[str | None]:
        return [self._why(one.labels) for one in samples]

    def _why(self, labels: Tokens | None) -> str | None:
        if labels is None or (len(labels) and labels[-1] != self.ignore_index):
            return None  # most have something to predict at their end
        if np.any(labels != self.ignore_index):
            return None
        return f"none of its {len(labels)} labels is to be predicted"
