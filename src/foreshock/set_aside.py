"""What an incident set aside, as the journal tells it, and what the run was before."""

from collections.abc import Mapping, Sequence
from typing import Any, final

from foreshock.core.detector import Alarm
from foreshock.core.errors import RunDirError, SnapshotError
from foreshock.core.incident import IncidentBook
from foreshock.core.incident import Outcome as Ending
from foreshock.core.snapshot import SnapshotRef, in_lineage
from foreshock.data.entry import Key
from foreshock.data.journalled import data_of
from foreshock.data.minimized import entries_of
from foreshock.data.reflow import ALARMED, Outcome
from foreshock.journal import RunView
from foreshock.snapshots.disk import DiskStore


@final
class SetAside:
    """A recovered incident: its windows, its alarms, and what was decided before it.

    Args:
        view: the run, with its records vetted.
        number: of the incident; None is the last recovered one that still holds samples.

    Attributes:
        incident: the incident.
        held: samples that nothing else holds and that are not coming back, by entry.
        own: all of them.
        keys: these, and the blamed ones.
        blamed: samples that had been brought back, and that its first alarms were put down to:
            they may be needed for it, and are not its to give back.
        start: raw position where the first window begins.
        stop: where the last one ends.
        before: the records before its first plan.
        alarmed: detector and series of the alarms that led to that plan.

    Raises:
        RunDirError: there is no such incident, it was not recovered, or holds nothing.
    """

    def __init__(self, view: RunView, number: int | None) -> None:
        self.run_dir = view.run_dir
        _, ledger = data_of(view.identity["stream"], view.records)
        book = IncidentBook(view.records)
        held = {
            one.entry_id: set(ledger.held_by(one.entry_id)) - ledger.coming_back(one.entry_id)
            for one in ledger.entries
        }
        told = [one for one in book.incidents if number in (None, one.id)]
        if not told:
            there = ", ".join(str(one.id) for one in book.incidents) or "none"
            what = "an incident" if number is None else f"incident {number}"
            raise RunDirError(f"{view.run_dir} has no {what}; it has {there}")
        fit = [one for one in told if one.outcome is Ending.RECOVERED]
        fit = [one for one in fit if any(held.get(entry) for entry in entries_of(one))]
        if not fit:
            which = "no incident" if number is None else f"incident {number}"
            raise RunDirError(
                f"{view.run_dir}: {which} was both recovered from and still holds samples: there "
                "is nothing to give back"
            )
        self.incident = fit[-1]
        self.entries = [entry for entry in entries_of(self.incident) if held.get(entry)]
        others = [keys for entry, keys in held.items() if entry not in self.entries]
        by_others = set[Key]().union(*others)
        self.held = {entry: held[entry] - by_others for entry in self.entries}
        self.own = set[Key]().union(*self.held.values())
        windows = [one.window for one in ledger.all_entries if one.entry_id in self.entries]
        self.start = min(window[0] for window in windows if window is not None)
        self.stop = max(window[1] for window in windows if window is not None)
        first = next(
            place
            for place, record in enumerate(view.records)
            if record["kind"] == "plan" and record["incident"] == self.incident.id
        )
        self.before = view.records[:first]
        self.blamed = _blamed(view.records[first:]) - self.own
        self.keys = self.own | self.blamed
        alarms = [Alarm.from_json(one) for one in view.records[first]["alarms"]]
        self.alarmed = {(one.detector, one.series) for one in alarms}

    def snapshot(self, store: DiskStore) -> SnapshotRef:
        """The last healthy snapshot of the incident's past from before its window.

        Raises:
            SnapshotError: none is left.
        """
        rollbacks = [
            (int(one["attempt"]), int(one["step"]))
            for one in self.before
            if one["kind"] == "attempt_started"
        ]
        refs, objections = store.refs()
        fit = [
            ref
            for ref in refs
            if ref.attempt <= self.incident.attempt
            and ref.position <= self.start
            and in_lineage(ref, rollbacks)
            and ref.health.healthy
        ]
        if not fit:
            there = ", ".join(ref.id for ref in refs) or "none"
            why = f" ({'; '.join(objections)})" if objections else ""
            raise SnapshotError(
                f"{self.run_dir}: no healthy snapshot from before position {self.start} is left; "
                f"there are {there}{why}"
            )
        return max(fit, key=lambda ref: (ref.step, ref.attempt))

    @property
    def steps_undone(self) -> int:
        """Steps that the incident's rollbacks took back."""
        steps = [(one.step, one.plan.target_step) for one in self.incident.rollbacks]
        return sum(step - target for step, target in steps if target is not None)


def _blamed(records: Sequence[Mapping[str, Any]]) -> set[Key]:
    """Samples that had come back and were blamed when an incident opened with these records."""
    found: set[Key] = set()
    for record in records:
        if record["kind"] in ("attempt_started", "incident_closed"):
            break
        if record["kind"] == "reflowed" and record["outcome"] == ALARMED:
            found.add(Outcome.from_json(record).key)
    return found
