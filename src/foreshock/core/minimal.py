"""What is needed of a quarantine, and what it costs against a fixed practice."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, cast

from foreshock.core.reading import from_json_number, from_json_text, from_json_whole

Key = tuple[str, int]
"""A sample's source and its index there."""

PALM_STEPS_BACK: Final = 100
PALM_BATCHES_SKIPPED: Final = (200, 500)
"""Chowdhery et al. 2022, PaLM, section 5.1: https://arxiv.org/abs/2204.02311."""

_MAX_TEXT: Final = 1000
_MAX_TOKENS: Final = 1 << 50


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """What an incident cost, against a fixed practice: PaLM's, 100 steps back, 200 to 500
    batches skipped.

    Attributes:
        per_sample: mean number of tokens in a sample; None where none could be recognised, and
            all the rest is counted in samples.
        samples_per_step: of the run.
        recomputed: in steps that were undone and trained again.
        set_aside_before: in quarantine before this.
        set_aside_after: in what stays there.
        palm: lost by the fixed practice, at 200 and at 500 batches.
    """

    per_sample: float | None
    samples_per_step: int
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
            samples_per_step=samples_per_step,
            recomputed=round(steps_undone * samples_per_step * unit),
            set_aside_before=round(held_before * unit),
            set_aside_after=round(held_after * unit),
            palm=(
                round(steps[0] * samples_per_step * unit),
                round(steps[1] * samples_per_step * unit),
            ),
        )

    @property
    def lost(self) -> int:
        """Trained again, and set aside still."""
        return self.recomputed + self.set_aside_after

    @property
    def saved(self) -> tuple[int, int]:
        """What the fixed practice would have lost more, at 200 and at 500 batches."""
        return self.palm[0] - self.lost, self.palm[1] - self.lost

    @property
    def times_fewer(self) -> tuple[float, float] | None:
        """How many times fewer are lost than by the fixed practice; None if none are."""
        return (self.palm[0] / self.lost, self.palm[1] / self.lost) if self.lost else None

    def to_json(self) -> dict[str, Any]:
        """A strict JSON object."""
        fewer = self.times_fewer
        return {
            **asdict(self),
            "palm": list(self.palm),
            "lost": self.lost,
            "saved": list(self.saved),
            "times_fewer": None if fewer is None else [round(one, 2) for one in fewer],
        }

    @classmethod
    def from_json(cls, value: Any) -> "Tokens":
        """Undo `to_json`; what follows from the rest is not looked at.

        Raises:
            KeyError, TypeError, ValueError: it is anything else.
        """
        per_sample = value["per_sample"]
        if per_sample is not None:
            per_sample = from_json_number(per_sample)
            if not 0 <= per_sample < _MAX_TOKENS:
                raise ValueError(f"per_sample={per_sample}")
        low, high = value["palm"]
        names = ("samples_per_step", "recomputed", "set_aside_before", "set_aside_after")
        return cls(
            per_sample=per_sample,
            palm=(_count(low), _count(high)),
            **{name: _count(value[name]) for name in names},
        )


@dataclass(frozen=True, kw_only=True)
class Minimal:
    """What is needed to bring an incident back, and what is not.

    Attributes:
        incident: number of the incident.
        num_plans: plans that it had by then; with another, this says nothing of it any more.
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
    num_plans: int
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
        listed = {name: _listed(getattr(self, name)) for name in ("needed", "undecided")}
        given_back = {entry: _listed(keys) for entry, keys in self.given_back.items()}
        plain = {one.name: getattr(self, one.name) for one in fields(self)}
        return {**plain, **listed, "given_back": given_back, "tokens": self.tokens.to_json()}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Minimal":
        """Undo `to_json`: every field of its type and in its range, and none beside them.

        Raises:
            KeyError, TypeError, ValueError: it is anything else.
        """
        names = {one.name for one in fields(cls)}
        if set(value) != names:
            raise ValueError(f"its fields are {sorted(value)!r:.200}")
        counts = ("incident", "num_plans", "num_replays", "budget", "steps_replayed")
        found = cls(
            verdict=_text(value["verdict"]),
            snapshot=_text(value["snapshot"]),
            needed=_keys(value["needed"]),
            undecided=_keys(value["undecided"]),
            given_back={
                _text(entry): _keys(keys)
                for entry, keys in cast("dict[str, Any]", value["given_back"]).items()
            },
            minimal=_flag(value["minimal"]),
            reproduced=_flag(value["reproduced"]),
            without_any=_flag(value["without_any"]),
            exact=None if value["exact"] is None else _flag(value["exact"]),
            tokens=Tokens.from_json(value["tokens"]),
            **{name: _count(value[name]) for name in counts},
        )
        stay = {*found.needed, *found.undecided}
        if any(not stay.isdisjoint(keys) for keys in found.given_back.values()):
            raise ValueError("a sample is given back and stays")
        return found


def _listed(keys: tuple[Key, ...]) -> list[list[str | int]]:
    return [list(key) for key in keys]


def _text(value: object) -> str:
    text = from_json_text(value)
    if len(text) > _MAX_TEXT:
        raise ValueError(f"a text of {len(text)} characters, over {_MAX_TEXT}")
    return text


def _flag(value: object) -> bool:
    if isinstance(value, bool):
        return value
    raise TypeError(f"expected true or false, got {value!r:.80}")


def _count(value: object) -> int:
    found = from_json_whole(value)
    if not 0 <= found <= _MAX_TOKENS:
        raise ValueError(f"{found} is no count")
    return found


def _keys(value: object) -> tuple[Key, ...]:
    if not isinstance(value, list):
        raise TypeError(f"samples are {value!r:.80}, not a list")
    pairs = cast("list[Any]", value)
    keys = tuple((from_json_text(source), _count(index)) for source, index in pairs)
    if len(set(keys)) != len(keys):
        raise ValueError("a sample is named twice")
    return keys
