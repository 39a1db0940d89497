"""What is needed of a quarantine, and what it costs against a fixed practice."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

Key = tuple[str, int]
"""A sample's source and its index there."""

PALM_STEPS_BACK: Final = 100
PALM_BATCHES_SKIPPED: Final = (200, 500)
"""Chowdhery et al. 2022, PaLM, section 5.1: https://arxiv.org/abs/2204.02311."""


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """What an incident cost, against a fixed practice: PaLM's, 100 steps back, 200 to 500
    batches skipped.

    Attributes:
        per_sample: mean number of tokens in a sample; None where none could be recognised, and
            all the rest is counted in samples.
        recomputed: in steps that were undone and trained again.
        set_aside_before: in quarantine before this.
        set_aside_after: in what stays there.
        palm: lost by the fixed practice, at 200 and at 500 batches.
    """

    per_sample: float | None
    recomputed: int
    set_aside_before: int
    set_aside_after: int
    palm: tuple[int, int]

    @classmethod
    def of(
        cls,
        per_sample: float | None,
        *,
        samples_per_step: int,
        steps_undone: int,
        held_before: int,
        held_after: int,
    ) -> "Tokens":
        """From steps and samples.

        >>> cost = Tokens.of(
        ...     128.0, samples_per_step=16, steps_undone=20, held_before=400, held_after=80
        ... )
        >>> cost.palm, cost.times_fewer
        ((614400, 1228800), (12.0, 24.0))
        """
        unit = 1.0 if per_sample is None else per_sample
        steps = [PALM_STEPS_BACK + skipped for skipped in PALM_BATCHES_SKIPPED]
        return cls(
            per_sample=per_sample,
            recomputed=round(steps_undone * samples_per_step * unit),
            set_aside_before=round(held_before * unit),
            set_aside_after=round(held_after * unit),
            palm=(
                round(steps[0] * samples_per_step * unit),
                round(steps[1] * samples_per_step * unit),
            ),
        )

    @property
    def times_fewer(self) -> tuple[float, float] | None:
        """How many times fewer are lost than by the fixed practice; None if none are."""
        lost = self.recomputed + self.set_aside_after
        return (self.palm[0] / lost, self.palm[1] / lost) if lost else None


@dataclass(frozen=True, kw_only=True)
class Minimal:
    """What is needed to bring an incident back, and what is not.

    Attributes:
        incident: number of the incident.
        verdict: in a sentence.
        needed: samples without which it does not come back.
        undecided: samples that stay in quarantine because the budget ended, or because nothing
            could be told of them.
        given_back: the others, by the entry that holds them.
        minimal: whether each sample that stays was seen to be needed.
        reproduced: whether the incident came again with all of them.
        without_any: whether it came again without any.
        exact: whether losses up to the onset were those that the run recorded, bit by bit;
            None where none could be compared.
        snapshot: where replays began.
        num_replays: replays made.
        budget: replays allowed.
        steps_replayed: steps trained in all.
        tokens: what it cost, and what the fixed practice would have.
    """

    incident: int
    verdict: str
    needed: tuple[Key, ...]
    undecided: tuple[Key, ...]
    given_back: Mapping[str, tuple[Key, ...]]
    minimal: bool
    reproduced: bool
    without_any: bool
    exact: bool | None
    snapshot: str
    num_replays: int
    budget: int
    steps_replayed: int
    tokens: Tokens

    @property
    def num_given_back(self) -> int:
        """Samples that are given back."""
        return len({key for keys in self.given_back.values() for key in keys})

    def to_json(self) -> dict[str, Any]:
        """A strict JSON object: the fields of its record."""
        fields = asdict(self)
        fields["given_back"] = {
            entry: [list(key) for key in keys] for entry, keys in self.given_back.items()
        }
        for name in ("needed", "undecided"):
            fields[name] = [list(key) for key in getattr(self, name)]
        fewer = self.tokens.times_fewer
        fields["tokens"] |= {
            "palm": list(self.tokens.palm),
            "times_fewer": None if fewer is None else [round(one, 2) for one in fewer],
        }
        return fields
