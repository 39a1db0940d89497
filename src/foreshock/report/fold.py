"""Folds a journal's records, in order, into what a report tells of them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from foreshock.core.errors import ForeshockError
from foreshock.core.incident import IncidentBook
from foreshock.report.aftermath import Aftermath, Pause, needed_of, pause_of, strengthen_of
from foreshock.report.clean import real, whole
from foreshock.report.incidents import DAMAGE, IncidentSummary, Trail, summarise_incident
from foreshock.report.words import UNFINISHED, size

QUIET_STEPS: Final = 20
"""Steps without an alarm that end an episode: `Policy.quiet_steps`."""

_UNREADABLE = (*DAMAGE, ForeshockError)


@dataclass(frozen=True, kw_only=True)
class Episode:
    """Alarms that led to no incident: they healed, or are still being watched.

    `probed` says that the model was probed after them and found whole.
    """

    attempt: int
    first_step: int
    last_step: int
    num_alarms: int
    series: tuple[str, ...]
    probed: bool


@dataclass(frozen=True, kw_only=True)
class Quarantine:
    """One decision to set a window of positions aside."""

    attempt: int
    step: int
    start: int
    stop: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class Advice:
    """What would have been done, under `advise`."""

    attempt: int
    step: int
    rung: str
    why: str
    cause: str
    probability: float


@dataclass(frozen=True, kw_only=True)
class SnapshotSummary:
    """A snapshot that went to disk, and was not dropped since."""

    id: str
    step: int
    attempt: int
    concerns: tuple[str, ...]


@dataclass(kw_only=True)
class Fold:
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
    snapshots_skipped: list[int] = field(default_factory=list[int])
    advice: list[Advice] = field(default_factory=list[Advice])
    notices_failed: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    pauses: dict[str, Pause] = field(default_factory=dict[str, Pause])
    healed: list[Episode] = field(default_factory=list[Episode])
    watched: Episode | None = None
    handover: str = ""
    notes: list[str] = field(default_factory=list[str])
    probed: bool = False
    advised: bool = False
    doubt: tuple[int, int, list[Any]] | None = None
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
        aside: dict[str, list[tuple[int, int]]] = {}
        for key, window in self.keys.items():
            aside.setdefault(key.partition("/")[0], []).append(window)
        for incident, trail in zip(self.book.incidents, self.trails, strict=True):
            plans = {f"plan{record.id!s:.40}" for record in incident.plans}
            windows = [window for plan in plans for window in aside.get(plan, [])]
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
            probed=self.probed,
        )
        going_on = step is not None and self.state in UNFINISHED and step - max(steps) < QUIET_STEPS
        if going_on:
            self.watched = found
        elif not self.advised:
            self.healed.append(found)
        self.episode, self.probed, self.advised = [], False, False

    def _time(self, record: Mapping[str, Any]) -> None:
        if "time" in record:
            seconds = real(record["time"])
            self.started = seconds if self.started is None else self.started
            self.last_seen = seconds

    def _apply(  # noqa: PLR0912 - one case a kind
        self, record: Mapping[str, Any], going_back: int | None
    ) -> None:
        attempt, step = whole(record["attempt"]), whole(record["step"])
        self.last_step = step
        match record["kind"]:
            case "attempt_started":
                self._attempt(attempt, step, going_back)
            case "alarm":
                self._alarm(attempt, whole(record["alarm"]["step"]), record["alarm"]["series"])
            case "plan":
                self.episode, self.probed = [], False
                if self.doubt is not None:
                    self.trails[-1].doubt, self.doubt = self.doubt, None
            case "episode_probed":
                self.probed = record["harmed"] is not True
                if not self.probed:
                    self.doubt = (attempt, step, record["probes"])
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
                for pause in self.pauses.values():
                    pause.over = True
            case "run_finished":
                self.state = "finished"
            case "run_halted":
                self.state = "halted"
            case "run_stopped":
                self.state = "stopped"
            case _:
                self._also(attempt, step, record)

    def _also(self, attempt: int, step: int, record: Mapping[str, Any]) -> None:
        """What no incident depends on: what came after, who was told, how the disk fared."""
        match record["kind"]:
            case "snapshots_dropped":
                gone = {str(one["snapshot"]) for one in record["dropped"]}
                self.snapshots = [one for one in self.snapshots if one.id not in gone]
            case "snapshot_skipped":
                self.snapshots_skipped.append(step)
            case "disk_low":
                free, needed = whole(record["free_bytes"]), whole(record["needed_bytes"])
                self.snapshot_troubles.append(
                    f"step {step}: only {size(free)} were free, for a snapshot of {size(needed)}"
                )
            case "advice":
                self._advised(attempt, step, record)
            case "notice_failed":
                failed = (str(record["channel"]), str(record["reason"]))
                self.notices_failed[failed] = self.notices_failed.get(failed, 0) + 1
            case "mirror_failed":
                failed = (str(record["mirror"]), str(record["reason"]))
                self.notices_failed[failed] = self.notices_failed.get(failed, 0) + 1
            case "paused":
                pause = self.pauses[str(record["key"])] = pause_of(record)
                if self.trails:
                    self.trails[-1].after.pauses.append(pause)
            case "pause_lifted":
                pause = self.pauses[str(record["key"])]
                pause.waited_secs, pause.over = real(record["waited_secs"]), True
            case "strengthen_data":
                self._after(record).strengthen.append(strengthen_of(record))
            case "minimized":
                self._after(record).needed = needed_of(record)
            case _:
                pass

    @property
    def waits_since(self) -> int | None:
        """The step at which the run began to wait for a person, if it does."""
        open_ones = [one.step for one in self.pauses.values() if not one.over]
        return open_ones[-1] if open_ones else None

    def _after(self, record: Mapping[str, Any]) -> Aftermath:
        """What came after the incident that a record names."""
        numbers = [incident.id for incident in self.book.incidents]
        return self.trails[numbers.index(whole(record["incident"]))].after

    def _advised(self, attempt: int, step: int, record: Mapping[str, Any]) -> None:
        top, plan = record["diagnosis"]["candidates"][0], record["plan"]
        self.advised = True
        self.advice.append(
            Advice(
                attempt=attempt,
                step=step,
                rung=str(plan["rung"]),
                why=str(plan["why"]),
                cause=str(top["cause"]),
                probability=real(top["probability"]),
            )
        )

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


def _num_covered(windows: Iterable[tuple[int, int]]) -> int:
    """How many positions lie in at least one window [start, stop)."""
    covered, end = 0, None
    for start, stop in sorted(windows):
        begin = start if end is None else max(start, end)
        covered += max(0, stop - begin)
        end = stop if end is None else max(end, stop)
    return covered
