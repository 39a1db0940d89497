"""Recovery decides and acts the same whenever the process dies, and is never stuck."""

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from foreshock.core.comparison import Comparison, compare
from foreshock.core.detector import Alarm, AlarmKind
from foreshock.core.incident import Outcome
from foreshock.core.policy import Policy
from foreshock.core.snapshot import Health, SnapshotRef
from foreshock.journal import Journal
from foreshock.quiet_disk import QuietDisk
from foreshock.recovery import Recovery
from foreshock.supervision import Supervisor
from tests.core.test_policy import blamed

EVERY = 7


class Died(BaseException):
    """The process is gone."""


@dataclass
class World:
    """A run whose data of steps 57 and 58 hurts it until enough of it is set aside.

    Eight positions a step, a durable snapshot every seven steps. Everything that decides is
    real; only the training is not. It dies at the write of its journal that it is told.
    """

    cured: int = 3
    dies_at: int = -1
    outliers_every: int = 0
    max_rollbacks: int = 14
    advise: bool = False
    can_act: bool = True
    records: list[Any] = field(default_factory=list)
    aside: dict[str, tuple[int, int]] = field(default_factory=dict)
    told: list[str] = field(default_factory=list)
    num_writes: int = 0

    def __post_init__(self) -> None:
        self.start()

    # ---- the process ----------------------------------------------------------------

    def start(self) -> None:
        self.step, self.attempt, self.halt_note, self.key = 0, 1, None, ""
        self.probed_step = 0
        self.journal = Journal.follow(
            QuietDisk(), Path("run"), {}, self.records, lambda: 0.0, last_attempt=1
        )
        for record in self.records:
            if record["kind"] == "halted":
                self.halt_note = record["note"]
        write, self.journal.write = self.journal.write, self.write  # type: ignore[method-assign]
        self.really_write = write
        self.supervisor = Supervisor(
            self,  # type: ignore[arg-type]
            Policy(
                max_rollbacks_per_incident=self.max_rollbacks,
                preferences={},
                watch_only=not self.can_act,
            ),
            self.journal,
            has_scaler=False,
            findings=lambda _first, _last: None,
            snapshots=self.refs,
            position_after=lambda step: 8 * step,
            lag_steps=0,
            advise=self.advise,
        )
        self.recovery = Recovery(self, self, self.supervisor, self.tell)  # type: ignore[arg-type]

    def write(self, kind: str, **fields: Any) -> Any:
        if self.num_writes == self.dies_at:
            self.num_writes += 1
            raise Died
        self.num_writes += 1
        record = self.really_write(kind, **fields)
        self.records.append(record)
        return record

    def tell(self, kind: str, _content: Any) -> None:
        self.told.append(kind)

    def run(self, to_step: int = 700) -> None:
        """Train on, resuming whenever it dies, to a step or a halt."""
        fresh = True
        while True:
            try:
                if not fresh:
                    self.start()
                    self.recovery.resume()
                while True:
                    while True:  # as a Guard does between two steps
                        if self.recovery.carry_out_plan():
                            if self.halt_note is not None:
                                break
                        elif not (
                            self.recovery.probe_if_in_doubt() or self.recovery.verify_if_settled()
                        ):
                            break
                    if self.halt_note is not None or self.step >= to_step:
                        return
                    self.step += 1
            except Died:
                fresh = False

    # ---- what watches ---------------------------------------------------------------

    @property
    def last_step(self) -> int:
        return self.step

    @property
    def alarmed(self) -> list[int]:
        held = any(start <= 8 * 56 < stop for start, stop in self.aside.values())
        steps = [] if held else [57, 58]
        if self.outliers_every:
            steps += range(61, 600, self.outliers_every)
        return [step for step in steps if step <= self.step]

    @property
    def last_alarm_step(self) -> int:
        return max(self.alarmed, default=0)

    @property
    def episode(self) -> list[Alarm]:
        alive = self.alarmed and self.step - self.alarmed[-1] < 20
        steps = self.alarmed if alive else []
        return [
            Alarm(kind=AlarmKind.SPIKE, detector="spike", series="loss/global", step=step,
                  onset_step=step, value=9.0)
            for step in steps
        ]  # fmt: skip

    consecutive_skips = 0

    def first_doubt(self) -> int | None:
        return next((step for step in self.alarmed if step > self.probed_step), None)

    def answered(self, *, whole: bool) -> None:
        self.probed_step = self.last_alarm_step

    def diagnose(self, *_given: Any, **_told: Any) -> Any:
        return blamed("data_batch", onset=self.episode[0].step)

    def limit(self, _series: str) -> None:
        return None

    def resumed(self) -> None:
        pass

    # ---- what is rewound ------------------------------------------------------------

    @property
    def progress(self) -> Any:
        return SimpleNamespace(step=self.step, attempt=self.attempt)

    def has_begun(self) -> bool:
        return True

    def refs(self) -> list[SnapshotRef]:
        health = Health(concerns=("open",)) if self.supervisor.book.open else Health()
        return [
            SnapshotRef(id=f"s{step}", attempt=1, step=step, position=8 * step, durable=True,
                        digest="", health=Health() if step < 57 else health)
            for step in range(0, self.step + 1, EVERY)
        ]  # fmt: skip

    def go_back(self, snapshot_id: str | None = None) -> Any:
        steps = [one["step"] for one in self.records if one["kind"] == "trained"]
        newest = max(steps, default=self.at_death())
        self.step = int(snapshot_id[1:]) if snapshot_id else newest - newest % EVERY
        self.attempt += 1
        return SimpleNamespace(ref=SimpleNamespace(step=self.step, id=f"s{self.step}"))

    def at_death(self) -> int:
        """The last step that the journal knows of, of the present past."""
        return int(self.records[-1]["step"]) if self.records else 0

    # ---- what is done ---------------------------------------------------------------

    def begin(self, plan: int, number: int) -> None:
        self.key = f"plan{plan}/{number}"

    def quarantine(self, start: int, stop: int, reason: str) -> str:
        self.journal.write("quarantined", attempt=1, step=self.step, reason=reason)
        assert self.aside.setdefault(self.key, (start, stop)) == (start, stop)
        return "set aside"

    def rollback(self, snapshot_id: str, step: int) -> str:
        assert self.supervisor.book.unfinished_plan is not None  # durable before it is done
        self.go_back(snapshot_id)
        assert self.step == step
        self.probed_step = 0
        self.journal.write("attempt_started", attempt=self.attempt, step=step)
        return "went back"

    def halt(self, note: str) -> str:
        self.journal.write("halted", attempt=self.attempt, step=self.step, note=note)
        self.halt_note = note
        return "halted"

    def __getattr__(self, name: str) -> Any:
        if name in ("scale_lr", "tighten_clip", "raise_epsilon", "lower_beta2", "reset_moments",
                    "perturb_order", "perturb_weights"):  # fmt: skip
            return lambda *_given, **_told: name
        raise AttributeError(name)

    def keep_reference(self, _plans: Any, _onset: int) -> None:
        pass

    def harm_since(self, _onset: int) -> list[Comparison]:
        hurt = not self.aside
        return compare({"p": [0.0] * 4}, {"p": [float(hurt)] * 4})

    def finish_writing(self) -> None:
        pass

    def verify(self, _plans: Any, _onset: int) -> dict[str, Any]:
        backs = self.supervisor.book.num_rollbacks
        incident = self.supervisor.book.open
        late = incident is None or incident.reopened_step is not None
        hurt = backs < self.cured and (late or backs != 1)  # the first one shows late
        (found,) = compare({"p": [0.0] * 4}, {"p": [float(hurt)] * 4})
        return {"passed": found.passed, "probes": [found.to_json()], "note": ""}


def decisions(world: World) -> list[Any]:
    book = world.supervisor.book
    return [
        (one.id, one.outcome, [(r.plan, r.finished, len(r.results)) for r in one.plans])
        for one in book.incidents
    ]


@pytest.mark.parametrize("limits", [{"cured": 4}, {"cured": 99, "max_rollbacks": 3}])
def test_it_decides_the_same_whenever_it_dies(limits: dict[str, int]) -> None:
    whole = make(**limits)
    whole.run()
    expected, writes = decisions(whole), whole.num_writes
    outcomes = [outcome for _, outcome, _ in expected]
    assert outcomes == [Outcome.RECOVERED if limits["cured"] == 4 else Outcome.HALTED]
    assert len(expected[0][2]) >= 4
    for death in range(writes):
        world = make(**limits, dies_at=death)
        world.run()
        assert decisions(world) == expected, death
        assert world.aside == whole.aside, death
        plans = [one for one in world.records if one["kind"] == "plan"]
        done = [one["plan_id"] for one in world.records if one["kind"] == "action_done"]
        for plan in plans:
            assert done.count(plan["plan_id"]) == len(plan["plan"]["actions"]), death


def make(**options: Any) -> World:
    return World(**options)


@pytest.mark.parametrize("every", [12, 15, 19])
def test_frequent_outliers_do_not_keep_a_recovery_from_being_verified(every: int) -> None:
    """An episode ends after twenty quiet steps, which such a run never has."""
    world = make(cured=0, outliers_every=every)
    world.run(200)
    (incident,) = world.supervisor.book.incidents
    assert incident.outcome is Outcome.RECOVERED


def test_only_advising_reopens_nothing() -> None:
    world = make(cured=99)
    world.run(70)  # recovered, and the second look is to come
    (incident,) = world.supervisor.book.incidents
    assert incident.outcome is Outcome.RECOVERED and incident.verification is not None
    world.advise = True
    world.start()
    world.recovery.resume()
    world.run(400)
    assert world.supervisor.book.open is None
    assert world.told.count("verification") == 2
    assert world.told.count("strengthen_data") == 1


def test_who_died_just_after_handing_over_leaves_no_open_incident() -> None:
    world = make(cured=99)
    world.run(65)
    assert world.supervisor.book.open is not None
    world.dies_at = world.num_writes + 1
    with pytest.raises(Died):
        world.recovery.hand_over("the data ended")
    world.start()
    world.recovery.resume()
    assert world.supervisor.book.incidents[-1].outcome is Outcome.HALTED


def test_a_recovery_after_one_that_was_verified_once_is_compared_with_that_one_s_state_too():
    asked: list[Any] = []
    control: Any = SimpleNamespace(verify=lambda plans, onset: asked.append((plans, onset)))
    first, second = (
        SimpleNamespace(
            id=number, plans=[SimpleNamespace(id=plan) for plan in plans], onset_step=100 * number,
            outcome=Outcome.RECOVERED, verification={"passed": True, "probes": [{}]},
        )
        for number, plans in ((1, [1, 2]), (2, [3]))
    )  # fmt: skip
    supervisor: Any = SimpleNamespace(book=SimpleNamespace(incidents=[first, second]))
    recovery = Recovery(SimpleNamespace(), control, supervisor, lambda *_: None)  # type: ignore[arg-type]
    recovery._verify(second)
    first.verification["again"] = True
    recovery._verify(second)
    assert asked == [([1, 2, 3], 200), ([3], 200)]
