"""The quarantine ledger: which samples may not train, since when, and why.

It is never rewound. A rollback or a resume rebuilds it from the journal's records, so adding
and releasing are idempotent and records may be replayed any number of times, in order.
"""

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from foreshock.core.errors import StreamError
from foreshock.data.order import Order

Key = tuple[str, int]
"""(source, index): a sample's name whatever the stage, repeat, batch size or world size."""


@dataclass(frozen=True, kw_only=True)
class LedgerEntry:
    """One decision to set data aside: named samples, or a window of positions.

    Args:
        entry_id: names the decision; the same id is the same decision.
        reason: in words, with the value and the limit.
        ids: the samples as (source, index); empty when `window` is given.
        window: raw positions [start, stop) of the run's order.
        incident: the incident it belongs to, if any.
        rule: the data rule that decided, if any.

    Raises:
        StreamError: neither or both of `ids` and `window`, or an empty or negative window.

    >>> entry = LedgerEntry(entry_id="3/1", reason="loss spike", window=(64, 96), incident=3)
    >>> LedgerEntry.from_json(entry.to_json()) == entry
    True
    """

    entry_id: str
    reason: str
    ids: tuple[Key, ...] = ()
    window: tuple[int, int] | None = None
    incident: int | None = None
    rule: str | None = None

    def __post_init__(self) -> None:
        if bool(self.ids) == (self.window is not None):
            raise StreamError(
                f"entry {self.entry_id!r}: ids={self.ids[:3]}, window={self.window}; give one"
            )
        if self.window is not None and not 0 <= self.window[0] < self.window[1]:
            raise StreamError(
                f"entry {self.entry_id!r}: window={self.window}; needs 0 <= start < stop"
            )

    def to_json(self) -> dict[str, Any]:
        """Return the entry as JSON-able values."""
        return {
            "entry_id": self.entry_id,
            "reason": self.reason,
            "ids": [list(key) for key in self.ids],
            "window": None if self.window is None else list(self.window),
            "incident": self.incident,
            "rule": self.rule,
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> "LedgerEntry":
        """Rebuild an entry from `to_json()`.

        Raises:
            StreamError: a field is missing, unknown or malformed.
        """
        try:
            ids = tuple((str(source), int(index)) for source, index in record["ids"])
            window = record["window"]
            if window is not None:
                start, stop = window
                window = (int(start), int(stop))
            return cls(**{**record, "ids": ids, "window": window})
        except (KeyError, TypeError, ValueError) as error:
            raise StreamError(f"not a ledger entry: {record!r} ({error})") from error


class Ledger:
    """The set of quarantined samples, as the union of its active entries.

    A window is expanded to (source, index) through the order it was given in, so the same
    samples are also skipped in later repeats and stages, at any batch and world size. It
    holds from its own start on and not before: what stands earlier in the order had trained
    when the window was set aside, and a replay from there must train it again. Named samples
    are held everywhere. A sample is held as long as at least one active entry names it. A
    released entry never becomes active again: a replayed record must not undo a later release.

    Args:
        order: expands windows; without it only entries with ids are accepted.

    >>> ledger = Ledger()
    >>> ledger.add(LedgerEntry(entry_id="a", reason="mojibake", ids=(("web", 7), ("web", 9))))
    >>> ledger.holds("web", 7), ledger.num_samples
    (True, 2)
    >>> ledger.release("a")
    >>> ledger.holds("web", 7), ledger.num_samples
    (False, 0)
    """

    def __init__(self, order: Order | None = None) -> None:
        self._order = order
        self._entries: dict[str, LedgerEntry] = {}
        self._released: set[str] = set()
        self._held_from: defaultdict[Key, list[int]] = defaultdict(list)

    @property
    def entries(self) -> tuple[LedgerEntry, ...]:
        """The active entries, in the order in which they were added."""
        return tuple(e for name, e in self._entries.items() if name not in self._released)

    @property
    def num_samples(self) -> int:
        """How many distinct samples are held."""
        return len(self._held_from)

    def add(self, entry: LedgerEntry) -> None:
        """Hold the entry's samples; nothing happens if its id was added before.

        Raises:
            StreamError: the id is known with another content, or the window cannot be
                expanded (no order, or it reaches beyond the order's end).
        """
        known = self._entries.get(entry.entry_id)
        if known is not None and known != entry:
            raise StreamError(
                f"entry {entry.entry_id!r} is already in the ledger with another content: "
                f"{known} against {entry}; a new decision needs a new id"
            )
        if known is None:
            for key in self.samples(entry):
                self._held_from[key].append(_first_position(entry))
            self._entries[entry.entry_id] = entry

    def release(self, entry_id: str) -> None:
        """Give the entry's samples back, for good; nothing happens the second time.

        Samples come back from the stream's next visit on; positions that were skipped
        while the entry was active are not visited again.

        Raises:
            StreamError: no entry has this id.
        """
        if entry_id not in self._entries:
            raise StreamError(f"entry_id={entry_id!r}: the ledger holds {list(self._entries)[:9]}")
        if entry_id not in self._released:
            self._released.add(entry_id)
            entry = self._entries[entry_id]
            for key in self.samples(entry):
                self._held_from[key].remove(_first_position(entry))
                if not self._held_from[key]:
                    del self._held_from[key]

    def was_released(self, entry_id: str) -> bool:
        """Whether this decision was taken back; a rule then may not take it again."""
        return entry_id in self._released

    def holds(self, source: str, index: int, position: float = math.inf) -> bool:
        """Whether the sample is in quarantine at a raw position; by default, anywhere."""
        key = (source, index)
        return key in self._held_from and min(self._held_from[key]) <= position

    def samples(self, entry: LedgerEntry) -> frozenset[Key]:
        """Return the distinct samples that an entry names, its window expanded."""
        if entry.window is None:
            return frozenset(entry.ids)
        if self._order is None:
            raise StreamError(
                f"entry {entry.entry_id!r}: window={entry.window} needs an order to expand it; "
                "build the ledger as Ledger(order)"
            )
        located = map(self._order.locate, range(*entry.window))
        return frozenset((found.source, found.index) for found in located)

    def num_by_reason(self) -> dict[str, int]:
        """Count held samples by rule, or by reason where no rule decided.

        A sample held for two reasons counts under both.
        """
        samples: dict[str, set[Key]] = {}
        for entry in self.entries:
            samples.setdefault(entry.rule or entry.reason, set()).update(self.samples(entry))
        return {reason: len(keys) for reason, keys in samples.items()}

    def to_json(self) -> dict[str, Any]:
        """Return every entry and every release as JSON-able values."""
        entries = [entry.to_json() for entry in self._entries.values()]
        return {"entries": entries, "released": sorted(self._released)}

    @classmethod
    def from_json(cls, record: Mapping[str, Any], order: Order | None = None) -> "Ledger":
        """Rebuild a ledger from `to_json()`.

        Raises:
            StreamError: the record is malformed, or a window does not fit the order.
        """
        ledger = cls(order)
        try:
            entries, released = list(record["entries"]), list(record["released"])
        except (KeyError, TypeError) as error:
            raise StreamError(f"not a ledger: {error}") from error
        for entry in entries:
            ledger.add(LedgerEntry.from_json(entry))
        for entry_id in released:
            ledger.release(entry_id)
        return ledger


def _first_position(entry: LedgerEntry) -> int:
    return 0 if entry.window is None else entry.window[0]
