"""Reflow: samples of an entry come back one by one, in other batches, and are watched."""

from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Reversible, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from foreshock.core.errors import StreamError
from foreshock.core.reading import from_json_number, from_json_text, from_json_whole, json_number
from foreshock.data.entry import Key, keys_from_json

WELL, ALARMED, PASSED_OVER = "well", "alarmed", "passed_over"
OUTCOMES = (WELL, ALARMED, PASSED_OVER)

MAX_WATCH_STEPS = 100
"""Steps a sample is watched, at most: a causal onset reaches no further back."""

_LONG_AGO = -(1 << 60)


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
        ids: only these of its samples; None is all.

    Raises:
        StreamError: a value outside these limits.
    """

    entry_id: str
    start: int
    every_samples: int
    watch_steps: int
    ids: tuple[Key, ...] | None = None

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
        ids = None if self.ids is None else [list(key) for key in self.ids]
        return {**vars(self), "ids": ids}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> "Reflow":
        """Rebuild it from a record with its fields; `ids` may be missing, others are ignored.

        Raises:
            StreamError: a field is missing or malformed.
        """
        try:
            numbers = {
                name: from_json_whole(record[name])
                for name in ("start", "every_samples", "watch_steps")
            }
            ids = None if record.get("ids") is None else keys_from_json(record["ids"])
            return cls(entry_id=from_json_text(record["entry_id"]), ids=ids, **numbers)
        except (KeyError, TypeError, ValueError) as error:
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
        self.outcomes: dict[int, Outcome] = {}
        """By the sample's number in `keys`."""
        self._taken_over: set[int] = set()
        self._first_open = 0

    def slot(self, number: int) -> int:
        """The raw position before which a sample stands."""
        return self.reflow.start + number * self.reflow.every_samples

    def number_at(self, position: int) -> int | None:
        """Which sample stands before a raw position, if any."""
        number, rest = divmod(position - self.reflow.start, self.reflow.every_samples)
        there = not rest and 0 <= number < len(self.keys) and number not in self._taken_over
        return number if there else None

    def take_over(self, keys: Collection[Key], position: int) -> None:
        """Let another reflow have these samples, as far as their slots lie from `position` on."""
        rest = range(self._num_before(position), len(self.keys))
        self._taken_over.update(n for n in rest if self.keys[n] in keys)

    def waiting(self) -> Iterator[int]:
        """Numbers of the samples that have a slot here and no outcome."""
        for number in range(len(self.keys)):
            if number not in self.outcomes and number not in self._taken_over:
                yield number

    def undecided(self, position: int) -> Iterator[int]:
        """Numbers of those among them that have their slot up to a raw position."""
        while self._first_open in self.outcomes or self._first_open in self._taken_over:
            self._first_open += 1
        for number in range(self._first_open, self._num_before(position + 1)):
            if number not in self.outcomes and number not in self._taken_over:
                yield number

    def spoken_for(self, start: int) -> set[Key]:
        """The samples that a reflow from `start` on may not bring back.

        They have their slot before it, or have alarmed again.
        """
        given = set(range(self._num_before(start))) - self._taken_over
        passed = {n for n, one in self.outcomes.items() if one.outcome == PASSED_OVER}
        alarmed = {n for n, one in self.outcomes.items() if one.outcome == ALARMED}
        return {self.keys[n] for n in (given - passed) | alarmed}

    def settle(self, outcome: Outcome) -> Outcome | None:
        """Note what came of a sample, once; what holds, or None if no slot here is its."""
        number, rest = divmod(outcome.slot - self.reflow.start, self.reflow.every_samples)
        if rest or not 0 <= number < len(self.keys) or self.keys[number] != outcome.key:
            return None
        return self.outcomes.setdefault(number, outcome)

    def _num_before(self, position: int) -> int:
        """How many samples have their slot below a raw position."""
        gone = -(-(position - self.reflow.start) // self.reflow.every_samples)
        return max(0, min(len(self.keys), gone))


def step_of(
    item: Returning, recent: Reversible[tuple[int, Sequence[int]]], position: int
) -> int | None:
    """The step in which a sample came back; negative if long ago, None if not yet."""
    at_the_end = item.slot == position  # it may have ended the last batch, or be still to come
    for steps_back, (step, positions) in enumerate(reversed(recent)):
        if at_the_end and steps_back:
            break
        place = bisect_left(positions, item.address)
        if place < len(positions) and positions[place] == item.address:
            return step
    return None if at_the_end else _LONG_AGO
