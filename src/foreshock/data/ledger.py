"""The quarantine ledger: which samples may not train, since when, and why.

It is never rewound. A rollback or a resume rebuilds it from the journal's records, so every
change is idempotent and records may be replayed any number of times, in order.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Reversible, Sequence
from typing import Any, Protocol

from foreshock.core.errors import StreamError
from foreshock.data.entry import Key, LedgerEntry
from foreshock.data.order import SampleId
from foreshock.data.reflow import (
    ALARMED,
    PASSED_OVER,
    WELL,
    Course,
    Outcome,
    Reflow,
    Returning,
    step_of,
)

__all__ = ["Key", "Ledger", "LedgerEntry", "Places"]

FindKey = Callable[[Key, str], Key | None]
"""From a sample's last known name and its stable id to its name now; None if it is gone."""


class Places(Protocol):
    """What a ledger asks of an order of positions; see `Order`."""

    def locate(self, position: int) -> SampleId: ...
    def last_visit(self, source: str, index: int, before: int) -> int | None: ...


class Ledger:
    """The set of quarantined samples, as the union of what its entries hold.

    A window is expanded to (source, index) through the order as it is when the entry is
    added, so the same samples are also skipped in later repeats and stages, at any batch and
    world size. An entry holds a sample from its first position on, until the position it was
    released at: a replay of what lies before either is exact. A sample is held where at least
    one entry holds it. What was released is never held again by the same entry: a replayed
    record must not undo a later release.

    Args:
        order: expands windows; without it only entries with ids are accepted.
        find: follows stable ids to where their rows are now; without it they stay unused.

    >>> ledger = Ledger()
    >>> ledger.add(LedgerEntry(entry_id="a", reason="mojibake", ids=(("web", 7), ("web", 9))))
    >>> ledger.holds("web", 7), ledger.num_samples
    (True, 2)
    >>> ledger.release("a", [("web", 7)], position=100)
    1
    >>> ledger.holds("web", 7), ledger.holds("web", 7, 99), ledger.num_samples
    (False, True, 1)
    """

    def __init__(self, order: Places | None = None, find: FindKey | None = None) -> None:
        self._order = order
        self._find = find
        self._entries: dict[str, LedgerEntry] = {}
        self._keys: dict[str, dict[Key, None]] = {}
        self._holds: dict[Key, dict[str, tuple[int, float]]] = {}
        self._num_open: Counter[Key] = Counter()
        self._courses: list[Course] = []

    # ---- what is held -----------------------------------------------------------------

    @property
    def all_entries(self) -> tuple[LedgerEntry, ...]:
        """Every entry, in the order in which they were added."""
        return tuple(self._entries.values())

    @property
    def entries(self) -> tuple[LedgerEntry, ...]:
        """The entries that still hold a sample, in the order in which they were added."""
        return tuple(one for one in self.all_entries if self.held_by(one.entry_id))

    @property
    def courses(self) -> tuple[Course, ...]:
        """Every reflow, those that another has taken over from included."""
        return tuple(self._courses)

    @property
    def num_samples(self) -> int:
        """How many distinct samples are held."""
        return len(self._num_open)

    def __contains__(self, entry_id: object) -> bool:
        return entry_id in self._entries

    def holds(self, source: str, index: int, position: float = math.inf) -> bool:
        """Whether the sample is in quarantine at a raw position; by default, from now on."""
        key = (source, index)
        if position == math.inf:
            return key in self._num_open
        spans = self._holds.get(key)
        return spans is not None and any(a <= position < b for a, b in spans.values())

    def samples(self, entry_id: str) -> tuple[Key, ...]:
        """The distinct samples that an entry names, in the order in which they stand."""
        return tuple(self._keys_of(entry_id))

    def held_by(self, entry_id: str) -> list[Key]:
        """The samples that an entry still holds."""
        keys = self._keys_of(entry_id)
        return [key for key in keys if self._holds[key][entry_id][1] == math.inf]

    def was_released(self, entry_id: str) -> bool:
        """Whether this decision was taken back as a whole."""
        return entry_id in self._entries and not self.held_by(entry_id)

    def num_by_reason(self) -> dict[str, int]:
        """Count held samples by rule, or by reason where no rule decided.

        A sample held for two reasons counts under both.
        """
        samples: dict[str, set[Key]] = {}
        for entry in self._entries.values():
            if held := self.held_by(entry.entry_id):
                samples.setdefault(entry.rule or entry.reason, set()).update(held)
        return {reason: len(keys) for reason, keys in samples.items()}

    def to_json(self) -> dict[str, Any]:
        """Return all of it as JSON-able values, equal where two ledgers are."""
        released = [
            [entry_id, *key, start, stop]
            for key, spans in self._holds.items()
            for entry_id, (start, stop) in spans.items()
            if stop != math.inf
        ]
        return {
            "entries": [entry.to_json() for entry in self._entries.values()],
            "released": sorted(released),
            "reflows": [
                {**one.reflow.to_json(), "outcomes": [o.to_json() for o in one.outcomes.values()]}
                for one in self._courses
            ],
        }

    # ---- what changes it --------------------------------------------------------------

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
            keys = dict.fromkeys(self._expand(entry))
            for key in keys:
                self._holds.setdefault(key, {})[entry.entry_id] = (entry.first_position, math.inf)
                self._num_open[key] += 1
            self._entries[entry.entry_id], self._keys[entry.entry_id] = entry, keys

    def release(self, entry_id: str, keys: Iterable[Key] | None = None, position: int = 0) -> int:
        """Give samples of an entry back, for good; nothing happens the second time.

        They come back at the stream's next visit from `position` on; what was skipped while
        the entry held them is not visited again (see `start_reflow`).

        Args:
            entry_id: the entry.
            keys: some of its samples; None is all.
            position: the watermark of the run, so that a replay of what lies before skips
                what was skipped then. 0 is "as if never held".

        Returns:
            How many samples were released that had not been before.

        Raises:
            StreamError: no entry has this id, or it does not name one of the samples.
        """
        known = self._keys_of(entry_id)
        chosen = list(known) if keys is None else list(dict.fromkeys(keys))
        self._refuse_strange(entry_id, chosen)
        fresh = [key for key in chosen if self._holds[key][entry_id][1] == math.inf]
        for key in fresh:
            self._holds[key][entry_id] = (self._holds[key][entry_id][0], position)
            self._num_open[key] -= 1
            if not self._num_open[key]:
                del self._num_open[key]
        return len(fresh)

    def hold_from(self, position: int) -> None:
        """Let every hold begin at `position` at the latest: from there on the order is new."""
        for spans in self._holds.values():
            for entry_id, (start, stop) in spans.items():
                spans[entry_id] = (min(start, position), stop)

    def start_reflow(self, reflow: Reflow) -> int:
        """Bring an entry's samples back; the same reflow again changes nothing.

        Another one takes over from its start on: what of its samples the earlier ones have not
        brought back by then gets a slot of the new one. What has alarmed again is left out.

        Returns:
            How many samples have a slot.

        Raises:
            StreamError: no entry has this id, or without an order.
        """
        if self._order is None:
            raise StreamError(f"reflow of {reflow.entry_id!r}: needs an order")
        earlier = self._courses_of(reflow.entry_id)
        for course in earlier:
            if course.reflow == reflow:
                return len(course.keys)
        keys = self.to_bring_back(reflow.entry_id, reflow.start, reflow.ids)
        for course in earlier:
            course.take_over(set(keys), reflow.start)
        self._courses.append(Course(reflow, keys))
        return len(keys)

    def to_bring_back(
        self, entry_id: str, start: int, ids: Collection[Key] | None = None
    ) -> list[Key]:
        """The samples that a reflow from a raw position on would have slots for.

        Args:
            entry_id: the entry.
            start: the raw position.
            ids: only these; None is all.

        Raises:
            StreamError: no entry has this id, or it does not name one of the samples.
        """
        if ids is not None:
            self._refuse_strange(entry_id, ids)
        wanted = None if ids is None else set(ids)
        gone = {key for one in self._courses_of(entry_id) for key in one.spoken_for(start)}
        return [
            key
            for key in self.held_by(entry_id)
            if key not in gone and (wanted is None or key in wanted)
        ]

    def coming_back(self, entry_id: str) -> set[Key]:
        """The samples of an entry that have a slot, of which nothing is known yet."""
        mine = self._courses_of(entry_id)
        return {course.keys[number] for course in mine for number in course.waiting()}

    def was_skipped(self, entry_id: str, key: Key, position: int) -> bool:
        """Whether the run has passed a sample by, below a raw position, because of an entry.

        Raises:
            StreamError: no entry has this id or names the sample, or without an order.
        """
        self._refuse_strange(entry_id, [key])
        if self._order is None:
            raise StreamError(f"entry {entry_id!r}: needs an order to say where {key} stands")
        found = self._order.last_visit(*key, position)
        return found is not None and found >= self._holds[key][entry_id][0]

    def settle(self, outcome: Outcome) -> None:
        """Take in what came of a sample; nothing happens the second time.

        Raises:
            StreamError: no reflow of the entry has this sample there.
        """
        mine = self._courses_of(outcome.entry_id)
        settled = next(filter(None, (one.settle(outcome) for one in reversed(mine))), None)
        if settled is None:
            raise StreamError(
                f"reflow of {outcome.entry_id!r}: sample {outcome.key} has no slot before "
                f"position {outcome.slot}"
            )
        if settled.outcome == WELL:
            self.release(settled.entry_id, [settled.key], settled.position)

    # ---- what comes back --------------------------------------------------------------

    def returning(self, position: int) -> tuple[Returning | None, ...]:
        """What stands before a raw position beside the order's own; None where it is void."""
        if not self._courses:
            return ()
        found = [(one, one.number_at(position)) for one in self._courses]
        return tuple(self._at(one, n) for one, n in found if n is not None)

    def judge(
        self,
        recent: Reversible[tuple[int, Sequence[int]]],
        judged_step: int,
        onset_steps: Sequence[int] = (),
        *,
        position: int,
    ) -> list[Outcome]:
        """Say what came of the samples brought back; journal it, then `settle` each.

        A sample that trained in step g is blamed for an alarm with an onset in the
        `watch_steps` steps from g on, and is well once all of them have been judged without
        one. It depends on nothing but its arguments and the ledger, so a resume decides alike.

        Args:
            recent: (step, raw positions it trained on, rising) of the last steps.
            judged_step: last step whose signals have been looked at.
            onset_steps: onsets of alarms.
            position: watermark of the stream.
        """
        outcomes: list[Outcome] = []
        for course in self._courses:
            for number in course.undecided(position):
                item = self._at(course, number)
                base = {
                    "entry_id": course.reflow.entry_id,
                    "key": course.keys[number],
                    "slot": course.slot(number),
                    "position": position,
                }
                if item is None:
                    if base["slot"] < position:
                        why = self._why_void(course, number)
                        outcomes.append(Outcome(**base, outcome=PASSED_OVER, reason=why))
                    continue
                step = step_of(item, recent, position)
                if step is None:
                    continue
                base["trained_step"] = step if step >= 0 else None
                last = step + course.reflow.watch_steps - 1
                blamed = [onset for onset in onset_steps if step <= onset <= last]
                if blamed and step >= 0:
                    why = f"it came back in step {step}, and an alarm began in step {blamed[0]}"
                    outcomes.append(Outcome(**base, outcome=ALARMED, reason=why))
                elif judged_step >= last:
                    why = f"no alarm in {course.reflow.watch_steps} steps"
                    outcomes.append(Outcome(**base, outcome=WELL, reason=why))
        return outcomes

    def _courses_of(self, entry_id: str) -> list[Course]:
        return [one for one in self._courses if one.reflow.entry_id == entry_id]

    def _at(self, course: Course, number: int) -> Returning | None:
        """A sample as it comes back, or None if its slot is void."""
        return None if self._why_void(course, number) else self._returning(course, number)

    def _returning(self, course: Course, number: int) -> Returning:
        assert self._order is not None
        key, slot = course.keys[number], course.slot(number)
        address = self._order.last_visit(*key, slot)
        assert address is not None
        return Returning(course.reflow.entry_id, key, slot, address)

    def _why_void(self, course: Course, number: int) -> str:
        """Why a sample does not come back in its slot; empty if it does."""
        assert self._order is not None
        known = course.outcomes.get(number)
        if known is not None and known.outcome != WELL:
            return known.reason
        key, slot, own = course.keys[number], course.slot(number), course.reflow.entry_id
        spans = self._holds[key]
        start, stop = spans[own]
        if not start <= slot < stop:
            return "its entry no longer holds it there"
        if others := [e for e, (a, b) in spans.items() if e != own and a <= slot < b]:
            return f"entry {others[0]} holds it as well"
        address = self._order.last_visit(*key, slot)
        if address is None or address < start:
            return "it has not been skipped yet: once released, it trains where it stands"
        return ""

    def _refuse_strange(self, entry_id: str, keys: Iterable[Key]) -> None:
        known = self._keys_of(entry_id)
        if strange := [key for key in keys if key not in known]:
            raise StreamError(f"entry {entry_id!r} does not name the samples {strange[:3]}")

    def _keys_of(self, entry_id: str) -> dict[Key, None]:
        if entry_id not in self._entries:
            raise StreamError(
                f"entry_id={entry_id!r:.80}: the ledger holds {list(self._entries)[:9]}"
            )
        return self._keys[entry_id]

    def _expand(self, entry: LedgerEntry) -> list[Key]:
        if entry.window is None:
            if self._find is None or not entry.names:
                return list(entry.ids)
            named = zip(entry.ids, entry.names, strict=True)
            return [key for key in (self._find(*one) for one in named) if key is not None]
        if self._order is None:
            raise StreamError(
                f"entry {entry.entry_id!r}: window={entry.window} needs an order to expand it; "
                "build the ledger as Ledger(order)"
            )
        located = map(self._order.locate, range(*entry.window))
        return [(found.source, found.index) for found in located]
