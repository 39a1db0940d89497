"""What holds at a step: every override of a run, rebuilt from the journal."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from foreshock.core.override import (
    AS_BUILT,
    KINDS,
    ClipLimit,
    EmbeddingFactor,
    GateLimit,
    LoweredBeta2,
    LRCap,
    LRFactor,
    MomentReset,
    Override,
    RaisedEpsilon,
    Tuning,
    WeightNoise,
)
from foreshock.core.reading import from_json_text

_Kind = TypeVar("_Kind", bound=Override)


class Overrides:
    """The overrides of a run by what ordered them; the same order given twice counts once.

    Nothing here is ever rewound. What it says of a step depends on that step alone.
    """

    def __init__(self) -> None:
        self._by_key: dict[tuple[str, str], Override] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def knows(self, key: str, override: Override) -> bool:
        """Whether `key` has ordered just this."""
        return self._by_key.get((override.kind, key)) == override

    def add_record(self, record: Mapping[str, Any]) -> None:
        """Take in a journal record, if it holds an override; the last one of a key counts.

        Raises:
            KeyError, ValueError, ConfigError: it is not one that a run writes.
        """
        kind = KINDS.get(record["kind"])
        if kind is not None:
            self._by_key[kind.kind, from_json_text(record["key"])] = kind.from_json(record)

    def of(self, kind: type[_Kind]) -> dict[str, _Kind]:
        """The overrides of one kind, by what ordered them."""
        return {key: one for (_, key), one in self._by_key.items() if isinstance(one, kind)}

    def gate_limit(self, step: int) -> float:
        """Largest gradient norm that the gate commits at a step."""
        gates = self.of(GateLimit).values()
        limits = [gate.limit for gate in gates if gate.first_step <= step <= gate.last_step]
        return min(limits, default=math.inf)

    def lr_factor(self, step: int) -> float:
        """Factor on the learning rate of a step: the product of all that hold."""
        found = self.of(LRFactor).values()
        return math.prod(one.share(one.factor, step) for one in found)

    def tuning(self, step: int) -> Tuning:
        """What else is changed of the update of a step: of several, the strictest."""
        if not self._by_key:
            return AS_BUILT
        caps = [(one.max_lr, one.weight(step)) for one in self.of(LRCap).values()]
        clips = [(one.max_norm, one.weight(step)) for one in self.of(ClipLimit).values()]
        raised = [one for one in self.of(RaisedEpsilon).values() if one.weight(step)]
        lowered = [one.value for one in self.of(LoweredBeta2).values() if one.weight(step)]
        shrunk = self.of(EmbeddingFactor).values()
        return Tuning(
            lr_caps=tuple((rate, weight) for rate, weight in caps if weight),
            clips=tuple((norm, weight) for norm, weight in clips if weight),
            eps_factor=max((one.factor for one in raised), default=1.0),
            eps_least=max((one.least for one in raised), default=0.0),
            beta2_most=min(lowered, default=1.0),
            embedding_factor=min((one.share(one.factor, step) for one in shrunk), default=1.0),
        )

    def edits(self, step: int) -> dict[str, MomentReset | WeightNoise]:
        """What is done to the state just before a step, in the order in which it came."""
        return {
            key: one
            for (_, key), one in self._by_key.items()
            if isinstance(one, MomentReset | WeightNoise) and one.first_step == step
        }

    def in_force(self, step: int) -> list[str]:
        """What is overridden at a step, in words, for a person."""
        tuning, rate, gate = self.tuning(step), self.lr_factor(step), self.gate_limit(step)
        said = [
            (gate < math.inf, f"updates with a gradient norm above {gate:.4g} are skipped"),
            (rate != 1, f"the learning rate is multiplied by {rate:.4g}"),
            (bool(tuning.lr_caps), f"the learning rate is at most {_least(tuning.lr_caps):.4g}"),
            (bool(tuning.clips), f"gradients are clipped to {_least(tuning.clips):.4g}"),
            (
                tuning.eps_factor > 1 or tuning.eps_least > 0,
                f"eps is multiplied by {tuning.eps_factor:.4g}, and at least {tuning.eps_least:g}",
            ),
            (tuning.beta2_most < 1, f"beta2 is at most {tuning.beta2_most:g}"),
            (
                tuning.embedding_factor != 1,
                f"gradients of embeddings are multiplied by {tuning.embedding_factor:.4g}",
            ),
        ]
        return [text for holds, text in said if holds]


def _least(limits: Sequence[tuple[float, float]]) -> float:
    return min((limit for limit, _ in limits), default=math.inf)
