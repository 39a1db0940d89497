"""An incident as its run directory tells it: the case, and where replays of it can begin."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from foreshock.core.case import REFERENCE_STEPS, BatchFinding, Case
from foreshock.core.cause import Diagnosis
from foreshock.core.confirmation import outlier_rate
from foreshock.core.detector import Alarm
from foreshock.core.errors import JournalError, RunDirError, StreamError
from foreshock.core.incident import Incident, IncidentBook
from foreshock.core.program import Program
from foreshock.core.reading import is_absent
from foreshock.core.records import ReadingBlock
from foreshock.core.snapshot import SnapshotRef, in_lineage
from foreshock.core.starts import history_of
from foreshock.core.timeline import Timeline
from foreshock.data.stream import Stream
from foreshock.durable import Disk
from foreshock.journal import Journal, RunView
from foreshock.snapshots.disk import DiskStore
from foreshock.vetting import vet

_RATE_STEPS: Final = 500
_CAPACITY: Final = 2048
_COMMITTED: Final = 1


class Recorded(NamedTuple):
    """What a run measured.

    Attributes:
        series: names, `[S]`.
        rows: by step whether the update was made, and the values `[S]`, float32.
    """

    series: tuple[str, ...]
    rows: Mapping[int, tuple[bool, NDArray[np.float32]]]

    def differing(self, step: int, values: NDArray[np.float32], series: Sequence[str]) -> list[str]:
        """Series of which a step was measured otherwise than here, by the bits.

        Args:
            step: one that the run has.
            values: `[S]` of the same step, of `series`.
            series: those that both have are compared, in this order.
        """
        told = dict(zip(self.series, self.rows[step][1].view(np.uint32), strict=True))
        found = zip(series, values.astype(np.float32).view(np.uint32), strict=True)
        return [name for name, bits in found if name in told and told[name] != bits]

    def values(self, series: str) -> dict[int, float]:
        """One series by step, where it was measured."""
        if series not in self.series:
            return {}
        place = self.series.index(series)
        return {
            step: float(values[place])
            for step, (_, values) in self.rows.items()
            if not is_absent(values[place : place + 1])[0]
        }


def view_for(disk: Disk, run_dir: Path, program: Program) -> RunView:
    """Look at a run that a program is to replay.

    Raises:
        RunDirError: it is no run directory.
        JournalError: its records are damaged.
        StreamError: the program's data is not that of the run.
    """
    view = Journal.read(disk, run_dir)
    vet(view.records, run_dir)
    if not isinstance(program.stream, Stream):
        raise StreamError("a loader gives out each batch once, so its batches cannot be replayed")
    known = view.identity.get("stream") or {}
    if program.stream.describe()["fingerprint"] != known.get("fingerprint"):
        raise StreamError(
            f"{run_dir}: the program's data is not that of the run; give the seed, the steps "
            "and the overrides that it was started with"
        )
    return view


@final
class IncidentCase:
    """An incident up to the plan that opened it.

    Args:
        view: the run, with its records vetted.
        number: of the incident; None is the last.

    Attributes:
        incident: the incident, with all that came of it later.
        diagnosis: the one it was opened with.
        alarms: that led to the plan, in order.
        alarmed: detector and series of each of them.
        num_alarmed: steps in which there was one.
        onset_step: first step at which a signal left its range.
        alarm_step: step of the first alarm.
        plan_step: step at which the plan was made.
        attempt: in which all that was.
        before: the records before the plan.

    Raises:
        RunDirError: there is no such incident, or nothing alarmed in it.
    """

    def __init__(self, view: RunView, number: int | None = None) -> None:
        self.view = view
        incidents = IncidentBook(view.records).incidents
        told = [one for one in incidents if number in (None, one.id)]
        if not told:
            there = ", ".join(str(one.id) for one in incidents) or "none"
            what = "an incident" if number is None else f"incident {number}"
            raise RunDirError(f"{view.run_dir} has no {what}; it has {there}")
        self.incident: Incident = told[-1]
        first = next(
            place
            for place, record in enumerate(view.records)
            if record["kind"] == "plan" and record["incident"] == self.incident.id
        )
        record = view.records[first]
        self.before: Sequence[Mapping[str, Any]] = view.records[:first]
        self.diagnosis = Diagnosis.from_json(record["diagnosis"])
        self.alarms = tuple(Alarm.from_json(one) for one in record["alarms"])
        if not self.alarms:
            raise RunDirError(f"{view.run_dir}: incident {self.incident.id} has no alarm to replay")
        self.alarmed = frozenset((one.detector, one.series) for one in self.alarms)
        self.num_alarmed = len({one.step for one in self.alarms})
        self.onset_step = min(one.onset_step for one in self.alarms)
        self.alarm_step = min(one.step for one in self.alarms)
        self.plan_step = int(record["step"])
        self.attempt = self.incident.attempt
        self._plan_record = record

    @property
    def usual_rate(self) -> float:
        """How many of the steps before the onset had one of its alarms."""
        first = max(1, self.onset_step - _RATE_STEPS)
        found = {
            one["step"]
            for one in self.before
            if one["kind"] == "alarm"
            and first <= one["step"] < self.onset_step
            and (one["alarm"]["detector"], one["alarm"]["series"]) in self.alarmed
        }
        return outlier_rate(len(found), self.onset_step - first)

    @property
    def set_aside_until(self) -> int:
        """Raw position after all that the incident has set aside, or that is suspect."""
        stops = [self._plan_record["position"], *(one.position for one in self.incident.plans)]
        stops += [
            one["entry"]["window"][1]
            for one in self.view.records
            if one["kind"] == "quarantined"
            and one["entry"].get("incident") == self.incident.id
            and one["entry"].get("window")
        ]
        return max(int(one) for one in stops)

    def clean_snapshots(self, store: DiskStore) -> list[SnapshotRef]:
        """The healthy ones of its past from before the onset, the newest first."""
        rollbacks = [
            (int(one["attempt"]), int(one["step"]))
            for one in self.before
            if one["kind"] == "attempt_started"
        ]
        refs = [
            ref
            for ref in store.refs()[0]
            if ref.attempt <= self.attempt
            and ref.step < self.onset_step
            and in_lineage(ref, rollbacks)
            and ref.health.healthy
        ]
        return sorted(refs, key=lambda ref: (-ref.step, -ref.attempt))

    def suspect_snapshots(self, store: DiskStore) -> list[SnapshotRef]:
        """Those that are left from between the onset and the plan, the oldest first."""
        refs = [
            ref
            for ref in store.refs()[0]
            if ref.attempt == self.attempt and self.onset_step <= ref.step <= self.plan_step
        ]
        return sorted(refs, key=lambda ref: ref.step)

    def recorded(self, first_step: int) -> Recorded:
        """What its attempt measured from a step up to the plan; nothing if that is gone."""
        block = self._block(self.attempt, None, (first_step, self.plan_step))
        if block is None:
            return Recorded((), {})
        rows = {
            int(step): (bool(flags & _COMMITTED), values)
            for step, flags, values in zip(
                block.steps.tolist(), block.flags.tolist(), block.values, strict=True
            )
        }
        return Recorded(tuple(block.series), rows)

    def case(
        self,
        *,
        facts: Mapping[str, Any] | None = None,
        batch_findings: Sequence[BatchFinding] | None = None,
    ) -> Case:
        """All that was known when the incident was opened, and what was done about it since.

        The timeline is empty where readings are gone.
        """
        # Of what was done since, all counts: it is known now, at whatever step.
        done = [one for one in self.view.records if one["kind"] in ("plan", "incident_closed")]
        history = history_of(self.before, self.plan_step)
        later = {one.action: one for one in history_of(done).interventions}  # the last of a kind
        return Case(
            timeline=self._timeline(),
            alarms=self.alarms,
            facts={"harm": "", **(facts or {})},
            batch_findings=batch_findings,
            advisories=self._advisories(),
            **{**vars(history), "interventions": tuple(later.values())},
        )

    def _advisories(self) -> tuple[Alarm, ...]:
        first = self.onset_step - REFERENCE_STEPS
        told = [
            Alarm.from_json(one["alarm"])
            for one in self.before
            if one["kind"] == "alarm"
            and one["attempt"] == self.attempt
            and first <= one["step"] <= self.plan_step
        ]
        return tuple(one for one in told if (one.detector, one.series) not in self.alarmed)

    def _timeline(self) -> Timeline:
        last = self._block(self.attempt, None, (self.plan_step - _CAPACITY, self.plan_step))
        if last is None:
            return Timeline(())
        series = tuple(last.series)
        line = Timeline(series, dtype=np.float32)
        begun = [one for one in self.before if one["kind"] == "attempt_started"]
        for one in begun:
            attempt, step = int(one["attempt"]), int(one["step"])
            line.rewind(step)
            same = attempt == self.attempt
            block = last if same else self._block(attempt, series, (step + 1, self.plan_step))
            if block is None or tuple(block.series) != series:
                continue
            for at, flags, row in zip(
                block.steps.tolist(), block.flags.tolist(), block.values, strict=True
            ):
                if not len(line) or at > line.steps[-1]:
                    line.append(attempt, at, bool(flags & _COMMITTED), row)
        return line

    def _block(
        self, attempt: int, series: Sequence[str] | None, steps: tuple[int, int]
    ) -> ReadingBlock | None:
        """Readings of an attempt; None where they are gone or damaged."""
        try:
            return self.view.readings(attempt, series, (max(1, steps[0]), steps[1]))
        except (LookupError, OSError, JournalError):
            return None
