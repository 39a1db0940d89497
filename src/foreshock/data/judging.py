"""What data rules say of samples, a batch at a time, with limits learned from the first ones."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, final

from foreshock.core.errors import StreamError
from foreshock.core.rule import LEARNED_FROM, Rule, Sample
from foreshock.data.order import Order
from foreshock.data.sample import labels_of, tokens_of

Load = Callable[[Sequence[tuple[str, int]]], list[Any]]


class Judgement(NamedTuple):
    """What one rule says of one sample.

    Attributes:
        rule: its name.
        reason: why it is rejected; None if it passes.
        is_judged: whether the sample had what the rule needs.
    """

    rule: str
    reason: str | None
    is_judged: bool


@final
class Judging:
    """The rules of a stream, their limits learned.

    Limits come from the first positions of the order as it was made, whatever is set aside or
    reordered: every rank, resume and replay reads the same samples, and learns the same. One
    that cannot be read is left out; it stops the run where it stands, unless it is set aside.

    Args:
        rules: as they were given.
        order: of the stream.
        load: reads samples by source and index.
        to_text: from a sample to its text.
    """

    def __init__(
        self,
        rules: Sequence[Rule],
        order: Order,
        load: Load,
        to_text: Callable[[Any], str | None],
    ) -> None:
        self._to_text = to_text
        self._rules = list(rules)
        if any(type(rule).learned is not Rule.learned for rule in rules):
            as_made = Order(order.stages, order.seed)
            num = LEARNED_FROM if as_made.total is None else min(LEARNED_FROM, as_made.total)
            found = map(as_made.locate, range(num))
            keys = list(dict.fromkeys((one.source, one.index) for one in found))
            samples = [self._seen(sample) for sample in _readable(load, keys)]
            self._rules = [rule.learned(samples) for rule in rules]

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules with the limits that they judge by."""
        return tuple(self._rules)

    def judge(self, samples: Sequence[Any]) -> list[list[Judgement]]:
        """What each rule says of each sample, in the order of samples and of rules."""
        seen = [self._seen(sample) for sample in samples]
        columns: list[list[Judgement]] = []
        for rule in self._rules:
            able = [rule.can_judge_sample(one) for one in seen]
            reasons = iter(
                rule.judge_batch([one for one, can in zip(seen, able, strict=True) if can])
            )
            columns.append(
                [Judgement(rule.name, next(reasons) if can else None, can) for can in able]
            )
        return [list(row) for row in zip(*columns, strict=True)]

    def _seen(self, sample: Any) -> Sample:
        return Sample(tokens_of(sample), self._to_text(sample), labels_of(sample))


def _readable(load: Load, keys: Sequence[tuple[str, int]]) -> list[Any]:
    try:
        return load(keys)
    except StreamError:
        found: list[Any] = []
        for key in keys:
            with suppress(StreamError):
                found += load([key])
        return found
