"""A run directory as one value: what a tired engineer needs within a minute."""

from dataclasses import dataclass
from typing import Any, Final

from foreshock.journal import RunView
from foreshock.report.clean import clean, strict
from foreshock.report.curves import Lineage, read_lineage
from foreshock.report.fold import Advice, Episode, Fold, Quarantine, SnapshotSummary
from foreshock.report.incidents import IncidentSummary
from foreshock.report.words import count, verdict

MAX_NOTES: Final = 12
"""Notes that are spelled out. Our choice: who has more needs the journal itself."""


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
class RunSummary:
    """A run as its journal tells it.

    Attributes:
        state: "finished", "halted", "stopped" (by the system, to go on later), or "open" (still
            running or cut off: the journal cannot tell these two apart).
        verdict: the run in one sentence.
        step: where the run stands.
        num_steps_trained: rows of readings, those that were undone later included.
        skips: reason to number of updates.
        rejected: data rule to number of samples it refused.
        num_quarantined: samples set aside in all, those that rules refused included.
        snapshots_skipped: steps whose durable snapshot stayed in memory, because the one before
            was still being written.
        advice: what would have been done, under `advise`.
        notices_failed: sentences on notifications that were not delivered.
        waits_since: step at which the run began to wait for a person, if it does.
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
    snapshots_skipped: tuple[int, ...]
    advice: tuple[Advice, ...]
    notices_failed: tuple[str, ...]
    waits_since: int | None
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
        for name in ("attempts", "quarantines", "snapshots", "healed", "advice"):
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
    fold = Fold()
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
        snapshots_skipped=tuple(fold.snapshots_skipped),
        advice=tuple(fold.advice),
        notices_failed=_failed(fold),
        waits_since=fold.waits_since if fold.state == "open" else None,
        healed=tuple(fold.healed),
        watched=fold.watched if fold.state == "open" else None,
        handover=fold.handover,
        notes=_at_most(notes, MAX_NOTES),
    )


def _attempts(lineage: Lineage, fold: Fold) -> tuple[AttemptSummary, ...]:
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


def _failed(fold: Fold) -> tuple[str, ...]:
    return tuple(
        f"{count(number, 'notification')} by {channel} not delivered: {reason}"
        for (channel, reason), number in fold.notices_failed.items()
    )


def _at_most(notes: list[str], number: int) -> tuple[str, ...]:
    more = [f"and {len(notes) - number:,} more of this kind"] if len(notes) > number else []
    return tuple(notes[:number] + more)


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
