"""What the model is compared with: which states are measured, kept, and how far they count."""

import math
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch

from foreshock.core.comparison import FAMILY_ERROR, compare
from foreshock.core.probe import Probe
from foreshock.core.snapshot import Health, SnapshotRef
from foreshock.journal import Journal
from foreshock.quiet_disk import QuietDisk
from foreshock.wholeness import NEIGHBOURS, Wholeness


@dataclass(frozen=True, kw_only=True)
class Level(Probe):
    """Sixteen items around the level that a state has."""

    name: ClassVar[str] = "level"
    scene: "Scene"

    def measure(self, model):
        at = self.scene.at
        jitter = [0.001 * ((7 * item + 3 * at) % 5) for item in range(self.scene.num_items)]
        return [self.scene.levels.get(at, self.scene.level(at)) + one for one in jitter]


@dataclass
class Scene:
    """States in memory every ten steps, whose level moves by 0.01 to and fro."""

    step: int = 200
    at: int = 200
    num_items: int = 16
    in_memory: list[int] = field(default_factory=lambda: list(range(100, 201, 10)))
    levels: dict[int, float] = field(default_factory=dict)
    ill: list[int] = field(default_factory=list)
    records: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.journal = Journal.follow(QuietDisk(), Path("run"), {}, [], lambda: 0.0, last_attempt=1)
        self.whole = self.process()

    def process(self) -> Wholeness:
        state = SimpleNamespace(in_memory=self.refs)
        attempts: Any = SimpleNamespace(
            progress=self, state=state, look_at=self.look_at, held=self.refs
        )
        whole = Wholeness(
            attempts, model=torch.nn.Linear(1, 1), probes=[Level(scene=self)], write=self.write
        )
        for record in self.journal.records:
            whole.apply(record)
        return whole

    def level(self, at: int) -> float:
        return 2.0 + 0.01 * ((at // 10) % 2)

    def refs(self) -> list[SnapshotRef]:
        return [
            SnapshotRef(id=f"s{step}", attempt=1, step=step, position=step, durable=False,
                        digest="", health=Health(concerns=("hurt",) * (step in self.ill)))
            for step in self.in_memory
        ]  # fmt: skip

    def look_at(self, refs, look):
        seen = []
        for ref in refs:
            self.at = ref.step
            seen.append((ref, look()))
        self.at = self.step
        return seen

    def write(self, kind: str, **fields: Any) -> None:
        self.whole.apply(self.journal.write(kind, attempt=1, step=self.step, **fields))

    def go_to(self, step: int) -> None:
        self.step = self.at = step

    def ref(self, step: int) -> SnapshotRef:
        return next(one for one in self.refs() if one.step == step)

    def back_to(self, step: int, plan: int = 1) -> None:
        ref = self.ref(step)
        self.go_to(step)
        self.in_memory = [one for one in self.in_memory if one <= step]
        self.whole.went_back(ref, step, plan)

    def verify(self, *plans: int, onset: int = 190) -> dict[str, Any]:
        return self.whole.verify(plans, onset)


def test_six_neighbours_are_measured_where_memory_has_them() -> None:
    scene = Scene()
    scene.back_to(180)
    (record,) = scene.journal.records
    assert record["at_step"] == 180 and record["plan_id"] == 1
    assert record["neighbour_steps"] == [120, 130, 140, 150, 160, 170]
    assert len(record["neighbours"]) == NEIGHBOURS


def test_ten_times_the_distance_may_move_by_its_root() -> None:
    """A fall that ten steps cannot have made, and a hundred may."""
    movements = {}
    for at in (190, 280):
        scene = Scene()
        scene.back_to(180)
        scene.go_to(at)
        (probe,) = scene.verify(1)["probes"]
        movements[at] = probe["movement"]
    assert movements[280] == pytest.approx(math.sqrt(10) * movements[190])


def test_what_is_kept_outlives_the_process() -> None:
    scene = Scene()
    scene.back_to(180)
    scene.go_to(280)
    before = scene.verify(1)
    scene.whole = scene.process()
    assert scene.verify(1) == before
    assert before["against"] == "s180"


def test_an_incident_in_place_is_compared_with_the_state_before_it_however_late() -> None:
    scene = Scene()
    scene.whole.keep_reference([4], 187)
    scene.whole.keep_reference([4, 5], 187)  # once an incident
    (record,) = scene.journal.records
    assert (record["at_step"], record["snapshot"]) == (180, "s180")
    scene.in_memory = []
    scene.go_to(400)
    scene.levels[400] = 9.0
    found = scene.verify(4, 5)
    assert (found["passed"], found["against"]) == (False, "s180")
    assert scene.verify(6)["probes"] == []  # another incident's


def test_a_process_resumed_from_before_the_onset_measures_when_it_comes_there() -> None:
    scene = Scene(step=150, at=150, in_memory=[150])
    scene.whole.keep_reference([4], 187)
    (due,) = scene.journal.records
    assert (due["kind"], due["at_step"]) == ("measure_due", 186)
    scene.whole.keep_reference([4], 187)
    scene.whole = scene.process()
    scene.in_memory = [150, 160, 170, 180]
    for step in range(151, 190):
        scene.go_to(step)
        scene.whole.measure_if_due()
    due, measured = scene.journal.records
    assert (measured["at_step"], measured["plan_id"]) == (186, 4)
    assert measured["neighbour_steps"] == [150, 160, 170, 180]


def test_without_neighbours_the_movements_known_from_before_count() -> None:
    """Else a healthy model is called worse the further back a recovery has to go."""
    scene = Scene()
    scene.back_to(180, plan=1)
    scene.in_memory = [40]
    scene.back_to(40, plan=2)
    assert scene.journal.records[-1]["neighbours"] == []
    scene.go_to(55)
    assert scene.verify(2)["passed"]
    scene.levels[55] = 4.0
    assert not scene.verify(2)["passed"]
    alone = Scene(in_memory=[40])
    alone.back_to(40)
    alone.go_to(55)
    assert not alone.verify(1)["passed"]  # nothing is known of how far it moves


def test_values_that_are_not_finite_come_back_from_the_journal() -> None:
    scene = Scene(levels={170: math.nan})
    scene.back_to(180)
    scene.whole = scene.process()
    scene.go_to(190)
    assert scene.verify(1)["passed"]


def test_other_probes_than_those_that_measured_are_not_compared() -> None:
    scene = Scene()
    scene.back_to(180)
    scene.num_items = 20
    scene.go_to(190)
    found = scene.verify(1)
    assert found["against"] == "the state before step 190"
    assert found["probes"][0]["num_items"] == 20
    scene.in_memory = []
    assert scene.verify(1)["note"].endswith("no earlier state is at hand")


def test_a_state_trained_again_is_not_taken_for_proved() -> None:
    """What was gone back to is older than asked for; the harm comes again on the way back."""
    scene = Scene(in_memory=[40, 50, 60, 70, 80, 90, 100])
    scene.go_to(100)
    scene.whole.went_back(scene.ref(100), 180, 1)
    hurt = dict.fromkeys(range(120, 400), 9.0)
    scene.levels = hurt
    for step in range(101, 211):
        scene.go_to(step)
        scene.whole.measure_if_due()
    found = scene.verify(1, onset=190)
    assert found["passed"] is False
    assert found["against"] == "step 180, trained again from step 100"
    assert found["also_against"] == "s100"
    (probe,) = found["probes"]
    assert (probe["probe"], probe["passed"], probe["against"]) == ("level", False, "s100")
    scene.whole = scene.process()
    assert scene.verify(1, onset=190) == found
    # Whole, it passes: over eleven times the way it may move by the root of that.
    scene.levels = {}
    found = scene.verify(1, onset=190)
    assert found["passed"] and found["also_against"] == "s100"
    assert "not proved itself" in found["note"]
    assert [("against" in one) for one in found["probes"]] == [False]


def test_a_state_from_before_the_trouble_stays_the_reference_when_it_is_trained_again() -> None:
    scene = Scene()
    scene.back_to(180, plan=1)
    scene.in_memory = [40, 50, 60, 70, 80, 90, 100]
    scene.go_to(100)
    scene.whole.went_back(scene.ref(100), 180, 2)
    scene.levels = dict.fromkeys(range(120, 400), 9.0)
    for step in range(101, 211):
        scene.go_to(step)
        scene.whole.measure_if_due()
    found = scene.verify(1, 2)
    assert (found["passed"], found["against"]) == (False, "s180")
    assert "also_against" not in found


def test_going_further_back_compares_with_what_was_gone_back_to() -> None:
    scene = Scene()
    scene.back_to(180, plan=1)
    scene.back_to(160, plan=2)
    scene.go_to(200)
    found = scene.verify(1, 2)
    assert (found["passed"], found["against"]) == (True, "s160")
    assert "also_against" not in found and found["note"] == ""


def test_a_recovery_not_verified_again_yet_proves_none_that_follows_it() -> None:
    """The first incident's recovery left the model hurt below its first verification's notice."""
    scene = Scene()
    scene.back_to(180, plan=1)
    scene.in_memory = list(range(180, 301, 10))
    scene.levels = dict.fromkeys(range(200, 500), 9.0)
    scene.go_to(300)
    scene.back_to(290, plan=2)
    scene.go_to(330)
    assert scene.verify(2, onset=300)["passed"]  # its own: hurt against hurt
    found = scene.verify(1, 2, onset=300)
    assert (found["passed"], found["against"], found["also_against"]) == (False, "s290", "s180")
    scene.levels = {}
    assert scene.verify(1, 2, onset=300)["passed"]


def test_what_was_gone_back_to_in_spite_of_concerns_is_no_reference() -> None:
    scene = Scene(in_memory=[40, 50, 60, 70, 80, 90, 100], ill=[100])
    scene.go_to(100)
    scene.whole.went_back(scene.ref(100), 180, 1)
    first, due = scene.journal.records
    assert (first["kind"], first["at_step"], first["snapshot"]) == ("measured_before", 90, "s90")
    assert (due["kind"], due["at_step"], due["trained_from"]) == ("measure_due", 180, 100)


def test_the_run_s_start_alone_proves_nothing_and_is_not_compared_with() -> None:
    """How far healthy training moves is not known: whatever an untrained model does better
    would fail every recovery."""
    scene = Scene(in_memory=[0], levels={0: 1.0})
    scene.go_to(0)
    scene.whole.went_back(scene.ref(0), 180, 1)
    for step in range(1, 211):
        scene.go_to(step)
        scene.whole.measure_if_due()
    found = scene.verify(1)
    assert found["passed"] and "also_against" not in found
    assert "nothing older tells how far" in found["note"]


def test_two_comparisons_share_the_family_s_error(monkeypatch: pytest.MonkeyPatch) -> None:
    shares: list[float] = []

    def noted(*given: Any, family_error: float, **others: Any) -> list[Any]:
        shares.append(family_error)
        return compare(*given, family_error=family_error, **others)

    monkeypatch.setattr("foreshock.wholeness.compare", noted)
    scene = Scene()
    scene.back_to(180, plan=1)
    scene.go_to(200)
    scene.verify(1)
    scene.in_memory = list(range(180, 301, 10))
    scene.go_to(300)
    scene.back_to(290, plan=2)
    scene.go_to(330)
    scene.verify(1, 2, onset=300)
    assert shares == [FAMILY_ERROR, FAMILY_ERROR / 2, FAMILY_ERROR / 2]
