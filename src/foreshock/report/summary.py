"""A run directory as one value: what a tired engineer needs within a minute."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from foreshock.core.errors import ForeshockError
from foreshock.core.incident import IncidentBook
from foreshock.journal import RunView
from foreshock.report.clean import clean, real, strict, whole
from foreshock.report.curves import Lineage, read_lineage
from foreshock.report.incidents import DAMAGE, IncidentSummary, Trail, summarise_incident
from foreshock.report.words import verdict

QUIET_STEPS: Final = 20
"""Steps without an alarm that end an episode: `Policy.quiet_steps`."""

MAX_NOTES: Final = 12
"""Notes that are spelled out. Our choice: who has more needs the journal itself."""

_UNREADABLE = (*DAMAGE, ForeshockError)


@dataclass(frozen=True, kw_only=True)
class AttemptSummary:
    """One attempt: how it began, and how much of it was undone later."""

    attempt: int
    began_by: str
    from_step: int
    last_step: int
    num_steps: int
    num_undone: int


@dataclass(frozen=True, kw_only=True)
class Episode:
    """Alarms that led to no incident: they healed, or are still being watched."""

    attempt: int
    first_step: int
    last_step: int
    num_alarms: int
    series: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Quarantine:
    """One decision to set a window of positions aside."""

    attempt: int
    step: int
    start: int
    stop: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class SnapshotSummary:
    """A snapshot that went to disk; rotation may have removed it since."""

    id: str
    step: int
    attempt: int
    concerns: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """A run as its journal tells it.

    Attributes:
        state: "finished", "halted", or "open" (still running or cut off: the journal
            cannot tell these two apart).
        verdict: the run in one sentence.
        step: where the run stands.
        num_steps_trained: rows of readings, those that were undone later included.
        skips: reason to number of updates.
        rejected: data rule to number of samples it refused.
        num_quarantined: samples set aside in all, those that rules refused included.
        healed: episodes that led to no incident and are over.
        watched: the episode that was going on at the end, if any.
        handover: the note for the person to whom the run was handed.
        notes: what could not be read, or is worth knowing about the report itself.
    """

    run_dir: str
    program: str
    versions: dict[str, str]
    settings: dict[str, Any]
    started: float | None
    last_seen: float | None
    state: str
    verdict: str
    step: int
    attempts: tuple[AttemptSummary, ...]
    num_steps_trained: int
    num_steps_undone: int
    incidents: tuple[IncidentSummary, ...]
    skips: dict[str, int]
    skipped_steps: tuple[int, ...]
    rejected: dict[str, int]
    quarantines: tuple[Quarantine, ...]
    num_quarantined: int
    snapshots: tuple[SnapshotSummary, ...]
    snapshot_troubles: tuple[str, ...]
    healed: tuple[Episode, ...]
    watched: Episode | None
    handover: str
    notes: tuple[str, ...]

    @property
    def num_skips(self) -> int:
        """Updates that the gate skipped."""
        return sum(self.skips.values())

    def to_json(self) -> dict[str, Any]:
        """A strict JSON object."""
        fields = {name: value for name, value in vars(self).items() if name != "incidents"}
        for name in ("attempts", "quarantines", "snapshots", "healed"):
            fields[name] = [vars(one) for one in fields[name]]
        fields["watched"] = None if self.watched is None else vars(self.watched)
        fields["num_skips"] = self.num_skips
        return {
            **strict(fields),
            "incidents": [incident.to_json() for incident in self.incidents],
        }


def summarise(view: RunView, lineage: Lineage | None = None) -> RunSummary:
    """Fold a run's journal into its summary.

    A run that has not ended, or was cut off at any byte, is told as far as it goes. A
    record that is sound but not understood is passed over, and `notes` says so.

    Args:
        view: the run, from `Journal.read`.
        lineage: its readings, if they have been read already.
    """
    if lineage is None:
        lineage = read_lineage(view)
    fold = _Fold()
    for line, record in enumerate(view.records, start=1):
        fold.take(line, clean(record))
    attempts = _attempts(lineage, fold)
    step = fold.last_step
    if fold.state == "open" and attempts:
        step = attempts[-1].last_step
    fold.end_episode(step)
    identity = clean(view.identity)
    incidents = fold.incidents()
    notes = list(fold.notes) + list(lineage.notes)
    if view.torn_bytes:
        notes.append(
            f"the last {view.torn_bytes:,} bytes of decisions.jsonl are no whole record: "
            "the run was cut off while writing, or is writing now"
        )
    told = [(one.outcome, one.cause, one.onset_step, one.ending) for one in incidents]
    return RunSummary(
        run_dir=clean(str(view.run_dir)),
        program=str(identity.get("program", "")),
        versions={
            name: str(identity[name])
            for name in ("foreshock", "version", "torch")
            if name in identity
        },
        settings=_mapping(identity.get("settings")),
        started=fold.started,
        last_seen=fold.last_seen,
        state=fold.state,
        verdict=verdict(fold.state, step, told),
        step=step,
        attempts=attempts,
        num_steps_trained=lineage.num_rows,
        num_steps_undone=lineage.num_undone,
        incidents=tuple(incidents),
        skips=fold.skips,
        skipped_steps=tuple(fold.skipped_steps),
        rejected={rule: len(positions) for rule, positions in fold.rejected.items()},
        quarantines=tuple(fold.quarantines),
        num_quarantined=fold.num_quarantined(),
        snapshots=tuple(fold.snapshots),
        snapshot_troubles=tuple(fold.snapshot_troubles),
        healed=tuple(fold.healed),
        watched=fold.watched if fold.state == "open" else None,
        handover=fold.handover,
        notes=_at_most(notes, MAX_NOTES),
    )


@dataclass(kw_only=True)
class _Fold:
    """What the records up to here amount to."""

    book: IncidentBook = field(default_factory=IncidentBook)
    trails: list[Trail] = field(default_factory=list[Trail])
    state: str = "open"
    started: float | None = None
    last_seen: float | None = None
    last_step: int = 0
    began: dict[int, tuple[str, int]] = field(default_factory=dict[int, tuple[str, int]])
    skips: dict[str, int] = field(default_factory=dict[str, int])
    skipped_steps: list[int] = field(default_factory=list[int])
    rejected: dict[str, set[int]] = field(default_factory=dict[str, set[int]])
    quarantines: list[Quarantine] = field(default_factory=list[Quarantine])
    snapshots: list[SnapshotSummary] = field(default_factory=list[SnapshotSummary])
    snapshot_troubles: list[str] = field(default_factory=list[str])
    healed: list[Episode] = field(default_factory=list[Episode])
    watched: Episode | None = None
    handover: str = ""
    notes: list[str] = field(default_factory=list[str])
    keys: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    episode: list[tuple[int, int, str]] = field(default_factory=list[tuple[int, int, str]])

    def take(self, line: int, record: Mapping[str, Any]) -> None:
        """Take in one record; one that is not understood becomes a note."""
        try:
            self._time(record)
            num_incidents = len(self.book.incidents)
            unfinished = self.book.unfinished_plan
            self.book.apply(record)
            if len(self.book.incidents) > num_incidents:
                self.trails.append(Trail(time=self.last_seen))
            going_back = unfinished is not None and unfinished.plan.target_step is not None
            self._apply(record, unfinished.id if unfinished is not None and going_back else None)
        except _UNREADABLE as error:
            kind = str(record.get("kind"))[:40]
            self.notes.append(
                f"line {line} of decisions.jsonl ({kind}) was passed over: "
                f"{type(error).__name__}: {error!s:.120}"
            )
            del self.trails[len(self.book.incidents) :]
            while len(self.trails) < len(self.book.incidents):
                self.trails.append(Trail(time=self.last_seen))

    def incidents(self) -> list[IncidentSummary]:
        """The incidents that can be told."""
        found: list[IncidentSummary] = []
        for incident, trail in zip(self.book.incidents, self.trails, strict=True):
            windows = [
                self.keys[key]
                for record in incident.plans
                for key in self.keys
                if key.partition("/")[0] == f"plan{record.id}"
            ]
            try:
                found.append(summarise_incident(incident, trail, _num_covered(windows)))
            except _UNREADABLE as error:
                self.notes.append(
                    f"incident {incident.id!s:.40} cannot be told: {type(error).__name__}: "
                    f"{error!s:.120}"
                )
        return found

    def num_quarantined(self) -> int:
        """Distinct positions set aside, by windows and by rules."""
        windows = [(one.start, one.stop) for one in self.quarantines]
        windows += [(at, at + 1) for positions in self.rejected.values() for at in positions]
        return _num_covered(windows)

    def end_episode(self, step: int | None = None) -> None:
        """End the present episode; at the end of the records, one may still be going on."""
        if not self.episode:
            return
        steps = [step for _, step, _ in self.episode]
        found = Episode(
            attempt=self.episode[0][0],
            first_step=min(steps),
            last_step=max(steps),
            num_alarms=len(steps),
            series=tuple(dict.fromkeys(series for *_, series in self.episode)),
        )
        going_on = step is not None and self.state == "open" and step - max(steps) < QUIET_STEPS
        if going_on:
            self.watched = found
        else:
            self.healed.append(found)
        self.episode = []

    def _time(self, record: Mapping[str, Any]) -> None:
        if "time" in record:
            seconds = real(record["time"])
            self.started = seconds if self.started is None else self.started
            self.last_seen = seconds

    def _apply(self, record: Mapping[str, Any], going_back: int | None) -> None:
        attempt, step = whole(record["attempt"]), whole(record["step"])
        self.last_step = step
        match record["kind"]:
            case "attempt_started":
                self._attempt(attempt, step, going_back)
            case "alarm":
                self._alarm(attempt, whole(record["alarm"]["step"]), record["alarm"]["series"])
            case "plan":
                self.trails[-1].attempts[record["plan_id"]] = attempt
                self.episode = []
            case "verification":
                self.trails[-1].verifications.append((attempt, step, record["verification"]))
            case "incident_closed":
                self.trails[-1].closed_attempt = attempt
            case "skip":
                reason = str(record["reason"]).partition(" above ")[0]
                self.skips[reason] = self.skips.get(reason, 0) + 1
                self.skipped_steps.append(step)
            case "quarantined":
                start, stop = record["entry"]["window"]
                start, stop = whole(start), whole(stop)
                self.keys[str(record["key"])] = (start, stop)
                reason = str(record["entry"]["reason"])
                self.quarantines.append(
                    Quarantine(attempt=attempt, step=step, start=start, stop=stop, reason=reason)
                )
            case "rejected":
                rule = str(record["entry"]["rule"])
                self.rejected.setdefault(rule, set()).add(whole(record["position"]))
            case "snapshot":
                self._snapshot(record["snapshot"])
            case "snapshot_passed_over" | "snapshot_failed":
                self.snapshot_troubles.append(f"step {step}: {record['reason']}")
            case "halted":
                self.handover, self.state = str(record["note"]), "halted"
            case "run_finished":
                self.state = "finished"
            case "run_halted":
                self.state = "halted"
            case _:
                pass

    def _attempt(self, attempt: int, step: int, going_back: int | None) -> None:
        self.state = "open"
        if going_back is not None:
            self.trails[-1].arrivals[going_back] = (attempt, step)
        by = "rollback" if going_back is not None else "resume" if self.began else "start"
        self.began[attempt] = (by, step)

    def _alarm(self, attempt: int, step: int, series: object) -> None:
        if self.book.open is not None:
            return
        if self.episode:
            before, last, _ = self.episode[-1]
            if before != attempt or step - last >= QUIET_STEPS:
                self.end_episode()
        self.episode.append((attempt, step, str(series)))

    def _snapshot(self, fields: Mapping[str, Any]) -> None:
        self.snapshots.append(
            SnapshotSummary(
                id=str(fields["id"]),
                step=whole(fields["step"]),
                attempt=whole(fields["attempt"]),
                concerns=tuple(str(one) for one in fields["health"]["concerns"]),
            )
        )


def _attempts(lineage: Lineage, fold: _Fold) -> tuple[AttemptSummary, ...]:
    found: list[AttemptSummary] = []
    rows = {part.attempt: part for part in lineage.parts}
    for attempt in sorted({*rows, *fold.began}):
        part = rows.get(attempt)
        first = part.start if part is not None else 0
        by, start = fold.began.get(attempt, ("", first))
        found.append(
            AttemptSummary(
                attempt=attempt,
                began_by=by,
                from_step=start,
                last_step=part.last_step if part is not None and part.num_rows else start,
                num_steps=part.num_rows if part is not None else 0,
                num_undone=part.num_undone if part is not None else 0,
            )
        )
    return tuple(found)


def _num_covered(windows: Iterable[tuple[int, int]]) -> int:
    """How many positions lie in at least one window [start, stop)."""
    covered, end = 0, None
    for start, stop in sorted(windows):
        begin = start if end is None else max(start, end)
        covered += max(0, stop - begin)
        end = stop if end is None else max(end, stop)
    return covered


def _at_most(notes: list[str], number: int) -> tuple[str, ...]:
    more = [f"and {len(notes) - number:,} more of this kind"] if len(notes) > number else []
    return tuple(notes[:number] + more)


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
