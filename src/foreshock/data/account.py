"""What was set aside in a run and what came of it, told from its records."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, final

from foreshock.data.entry import Key, LedgerEntry
from foreshock.data.journalled import data_of
from foreshock.data.reflow import ALARMED, WELL, Course, Outcome


@dataclass(frozen=True, kw_only=True)
class EntryAccount:
    """One entry, or all those of one rule.

    Attributes:
        entry: its id, or what the ids have in common.
        num_entries: how many entries this is.
        num_samples: distinct samples that it names.
        num_held: those that it still holds.
        window: raw positions [start, stop), where it is one.
        incident: the incident whose plan set it aside, if any.
        rule: the data rule that did, if any.
        reason: in words.
        num_well: samples that came back and trained without an alarm.
        num_alarmed: samples that came back and alarmed again: they stay, for good.
        num_waiting: samples that have a slot to come back in, or are watched.
    """

    entry: str
    num_entries: int = 1
    num_samples: int
    num_held: int
    window: tuple[int, int] | None
    incident: int | None
    rule: str | None
    reason: str
    num_well: int
    num_alarmed: int
    num_waiting: int

    @property
    def state(self) -> str:
        """In words."""
        if self.num_held == 0:
            base = "released"
        elif self.num_held == self.num_samples:
            base = "held"
        else:
            base = f"{self.num_held:,} of {self.num_samples:,} held"
        parts = [
            f"{number:,} {word}"
            for number, word in (
                (self.num_waiting, "coming back"),
                (self.num_well, "well"),
                (self.num_alarmed, "alarmed again"),
            )
            if number
        ]
        return "; ".join([base, *parts])

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON-able values."""
        window = None if self.window is None else list(self.window)
        return {**asdict(self), "window": window, "state": self.state}


@dataclass(frozen=True, kw_only=True)
class SampleAccount:
    """One sample of an entry.

    Attributes:
        entry: the entry.
        source: its source; "batch" for a loader of the user's own.
        index: its index there.
        position: raw position where it stands in the entry's window, or was refused.
        state: "held", "released", "coming back", "watched", "well", "alarmed again".
        outcome: what came of bringing it back, if that is known.
    """

    entry: str
    source: str
    index: int
    position: int | None
    state: str
    outcome: Outcome | None

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON-able values."""
        told = None if self.outcome is None else self.outcome.to_json()
        return {**asdict(self), "outcome": told}


@final
class Account:
    """A run's quarantine as its journal tells it.

    Args:
        description: the run's stream, as `run.json` has it.
        records: the run's decisions, in order.

    Raises:
        StreamError: the description or a record is malformed.
    """

    def __init__(
        self, description: Mapping[str, Any], records: Sequence[Mapping[str, Any]]
    ) -> None:
        self.order, self.ledger = data_of(description, records)
        self.position = watermark_in(records)
        """The watermark, as far as decisions tell; provenance may know better."""
        self._incidents = {
            one["plan_id"]: one["incident"]
            for one in records
            if one["kind"] == "plan" and type(one.get("incident")) is int
        }
        self._places = {
            one["entry"]["entry_id"]: one.get("position")
            for one in records
            if one["kind"] == "rejected"
        }

    def entries(self) -> list[EntryAccount]:
        """Every entry, in the order in which they were made."""
        return [self._entry(one) for one in self.ledger.all_entries]

    def grouped(self) -> list[EntryAccount]:
        """The same, with what one rule refused in one line."""
        found: list[EntryAccount] = []
        by_rule: dict[str, list[EntryAccount]] = {}
        for one in self.entries():
            if one.rule is None:
                found.append(one)
            else:
                by_rule.setdefault(one.rule, []).append(one)
        return found + [_joined(rule, these) for rule, these in by_rule.items()]

    def samples(self, entry_id: str) -> list[SampleAccount]:
        """Every sample of an entry.

        Raises:
            StreamError: no entry has this id.
        """
        keys = self.ledger.samples(entry_id)
        entry = next(one for one in self.ledger.all_entries if one.entry_id == entry_id)
        held = set(self.ledger.held_by(entry_id))
        known = self._outcomes(entry_id)
        slots = {
            course.keys[number]: course.slot(number)
            for course in self._courses(entry_id)
            for number in course.waiting()
        }
        return [
            SampleAccount(
                entry=entry_id,
                source=key[0],
                index=key[1],
                position=self._position(entry, key),
                state=self._state(key in held, known.get(key), slots.get(key)),
                outcome=known.get(key),
            )
            for key in keys
        ]

    def _state(self, held: bool, outcome: Outcome | None, slot: int | None) -> str:
        words = {WELL: "well", ALARMED: "alarmed again"}
        if outcome is not None and outcome.outcome in words:
            return words[outcome.outcome]
        if not held:
            return "released"
        if slot is None:
            return "held"
        return "coming back" if slot >= self.position else "watched"

    def _position(self, entry: LedgerEntry, key: Key) -> int | None:
        if entry.window is not None:
            found = self.order.last_visit(*key, entry.window[1])
            return found if found is not None and found >= entry.window[0] else None
        place = self._places.get(entry.entry_id)
        return place if type(place) is int else None

    def _courses(self, entry_id: str) -> list[Course]:
        return [one for one in self.ledger.courses if one.reflow.entry_id == entry_id]

    def _outcomes(self, entry_id: str) -> dict[Key, Outcome]:
        found = [one for course in self._courses(entry_id) for one in course.outcomes.values()]
        return {one.key: one for one in found}

    def _entry(self, entry: LedgerEntry) -> EntryAccount:
        outcomes = Counter(one.outcome for one in self._outcomes(entry.entry_id).values())
        waiting = len(self.ledger.coming_back(entry.entry_id))
        held = self.ledger.held_by(entry.entry_id)
        plan = entry.entry_id.removeprefix("plan").partition("/")[0]
        incident = entry.incident
        if incident is None and entry.entry_id.startswith("plan") and plan.isdecimal():
            incident = self._incidents.get(int(plan[:18]))
        return EntryAccount(
            entry=entry.entry_id,
            num_samples=len(self.ledger.samples(entry.entry_id)),
            num_held=len(held),
            window=entry.window,
            incident=incident,
            rule=entry.rule,
            reason=entry.reason,
            num_well=outcomes[WELL],
            num_alarmed=outcomes[ALARMED],
            num_waiting=waiting if held else 0,
        )


def watermark_in(records: Sequence[Mapping[str, Any]]) -> int:
    """The highest raw position that decisions name as passed."""
    found = [0]
    for record in records:
        snapshot = record.get("snapshot")
        places = [record.get("position") if record["kind"] in ("plan", "rejected") else None]
        if record["kind"] == "snapshot" and isinstance(snapshot, Mapping):
            places.append(snapshot.get("position"))
        found += [one for one in places if type(one) is int]
    return max(found)


def _joined(rule: str, these: list[EntryAccount]) -> EntryAccount:
    if len(these) == 1:
        return these[0]
    sums = {
        name: sum(getattr(one, name) for one in these)
        for name in ("num_samples", "num_held", "num_well", "num_alarmed", "num_waiting")
    }
    return EntryAccount(
        entry=f"rule/{rule}",
        num_entries=len(these),
        window=None,
        incident=None,
        rule=rule,
        reason=f"{these[0].reason}, and {len(these) - 1:,} more",
        **sums,
    )
