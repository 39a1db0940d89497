"""Reflow: samples of an entry come back one by one, in other batches, and are watched."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from foreshock.core.errors import StreamError
from foreshock.core.reading import from_json_number, from_json_text, from_json_whole, json_number
from foreshock.data.entry import Key

WELL, ALARMED, PASSED_OVER = "well", "alarmed", "passed_over"
OUTCOMES = (WELL, ALARMED, PASSED_OVER)

MAX_WATCH_STEPS = 100
"""Steps a sample is watched, at most: a causal onset reaches no further back."""


@dataclass(frozen=True, kw_only=True)
class Reflow:
    """The decision to bring an entry's samples back.

    Sample k stands before the raw position `start + k * every_samples`, beside what stands
    there anyway: no other sample is displaced or lost, and neither batch size nor world size
    enters.

    Args:
        entry_id: the entry whose samples come back.
        start: raw position before which the first one stands.
        every_samples: raw positions from one to the next, at least 1.
        watch_steps: optimizer steps that each is watched for, 1 to 100.

    Raises:
        StreamError: a value outside these limits.
    """

    entry_id: str
    start: int
    every_samples: int
    watch_steps: int

    def __post_init__(self) -> None:
        if self.start < 0 or self.every_samples < 1:
            raise StreamError(
                f"reflow of {self.entry_id!r}: start={self.start}, every_samples="
                f"{self.every_samples}; needs start >= 0 and at least 1 sample between two"
            )
        if not 1 <= self.watch_steps <= MAX_WATCH_STEPS:
            raise StreamError(
                f"reflow of {self.entry_id!r}: watch_steps={self.watch_steps}; needs 1 to "
                f"{MAX_WATCH_STEPS}"
            )

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON-able values."""
        return asdict(self)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> "Reflow":
        """Rebuild it from a record with its fields; others are ignored.

        Raises:
            StreamError: a field is missing or malformed.
        """
        try:
            numbers = {
                name: from_json_whole(record[name])
                for name in ("start", "every_samples", "watch_steps")
            }
            return cls(entry_id=from_json_text(record["entry_id"]), **numbers)
        except (KeyError, ValueError) as error:
            raise StreamError(f"not a reflow: {record!r:.200} ({error!s:.200})") from error


class Returning(NamedTuple):
    """One sample that comes back.

    Attributes:
        entry_id: the entry that it is held by.
        key: its name.
        slot: raw position before which it stands now.
        address: raw position where it stood and was skipped: its name in provenance.
    """

    entry_id: str
    key: Key
    slot: int
    address: int


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of a sample that was brought back.

    Args:
        entry_id: the entry that it is held by.
        key: its name.
        slot: raw position before which it stood.
        outcome: "well" (it is released), "alarmed" (it stays, for good) or "passed_over" (it
            was not brought back, and stays held).
        position: watermark at which this was decided; "well" releases from there on.
        reason: in words.
        trained_step: optimizer step that it trained in, where known.
        loss: its loss when it trained, where the loop gave losses of samples.
        batch_median: median loss of the samples beside it on its rank, likewise.
    """

    entry_id: str
    key: Key
    slot: int
    outcome: str
    position: int
    reason: str
    trained_step: int | None = None
    loss: float | None = None
    batch_median: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON-able values."""
        losses = {"loss": self.loss, "batch_median": self.batch_median}
        told = {name: None if one is None else json_number(one) for name, one in losses.items()}
        return {**asdict(self), "key": list(self.key), **told}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> "Outcome":
        """Rebuild it from a record with its fields; others are ignored.

        Raises:
            StreamError: a field is missing or malformed.
        """
        try:
            source, index = record["key"]
            if record["outcome"] not in OUTCOMES:
                raise ValueError(f"outcome={record['outcome']!r:.40}; must be one of {OUTCOMES}")
            losses = {
                name: None if record.get(name) is None else from_json_number(record[name])
                for name in ("loss", "batch_median")
            }
            return cls(
                entry_id=from_json_text(record["entry_id"]),
                key=(from_json_text(source), from_json_whole(index)),
                slot=from_json_whole(record["slot"]),
                outcome=record["outcome"],
                position=from_json_whole(record["position"]),
                reason=from_json_text(record["reason"]),
                trained_step=None
                if record.get("trained_step") is None
                else from_json_whole(record["trained_step"]),
                **losses,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise StreamError(f"not an outcome: {record!r:.200} ({error!s:.200})") from error


class Course:
    """A reflow under way: which sample has which slot, and what came of it.

    Args:
        reflow: the decision.
        keys: the samples, in the order in which they come.
    """

    def __init__(self, reflow: Reflow, keys: Sequence[Key]) -> None:
        self.reflow = reflow
        self.keys = tuple(keys)
        self.stop = math.inf
        """Raw position at which another reflow of the entry took over."""
        self.outcomes: dict[int, Outcome] = {}
        """By the sample's number in `keys`."""
        self._first_open = 0

    def slot(self, number: int) -> int:
        """The raw position before which a sample stands."""
        return self.reflow.start + number * self.reflow.every_samples

    def number_at(self, position: int) -> int | None:
        """Which sample stands before a raw position, if any."""
        number, rest = divmod(position - self.reflow.start, self.reflow.every_samples)
        there = not rest and 0 <= number < len(self.keys) and position < self.stop
        return number if there else None

    def num_before(self, position: float) -> int:
        """How many samples have their slot below a raw position."""
        stop = min(position, self.stop)
        if stop <= self.reflow.start:
            return 0
        if stop == math.inf:
            return len(self.keys)
        gone = -(-(int(stop) - self.reflow.start) // self.reflow.every_samples)
        return min(len(self.keys), gone)

    def undecided(self, position: int) -> range:
        """Numbers that may be undecided among those with a slot up to a raw position."""
        while self._first_open in self.outcomes:
            self._first_open += 1
        return range(self._first_open, self.num_before(position + 1))

    def spoken_for(self, start: int) -> set[Key]:
        """The samples that a reflow from `start` on may not bring back.

        They have their slot before it, or have alarmed again.
        """
        given = range(self.num_before(start))
        passed = {n for n, one in self.outcomes.items() if one.outcome == PASSED_OVER}
        alarmed = {n for n, one in self.outcomes.items() if one.outcome == ALARMED}
        return {self.keys[n] for n in ({*given} - passed) | alarmed}

    def settle(self, outcome: Outcome) -> Outcome | None:
        """Note what came of a sample, once; what holds, or None if no slot here is its."""
        number, rest = divmod(outcome.slot - self.reflow.start, self.reflow.every_samples)
        if rest or not 0 <= number < len(self.keys) or self.keys[number] != outcome.key:
            return None
        return self.outcomes.setdefault(number, outcome)
