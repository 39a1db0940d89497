"""A journal's records are taken in or refused with one clear error, however they were changed."""

import shutil
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from foreshock.core.errors import ForeshockError, Halted, JournalError
from foreshock.recipes import Cadence
from foreshock.vetting import vet
from tests.guard.programs import guarded, make, poisoned_stages, recipe, run
from tests.guard.test_second_verification import Late
from tests.security.test_hostile_run_dir import altered, places, records_of, write_records

ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 400),
    st.sampled_from([2**53, 2**70, 1e308, 0.5, -0.5, "NaN", "-Infinity", "", "x", "../x"]),
    st.sampled_from([[], {}, [[]], [1], [5, 2], [0, "x"], {"a": 1}, [{}], {"a": ["x"]}, [None]]),
)


@cache
def eventful() -> Path:
    """A run that was skipped, rolled back, verified twice and paused; made once."""
    folder = Path(mkdtemp()) / "run"
    probe = Late(cured=2)
    training = make(stages=poisoned_stages(480, 32, 1600))
    chosen = recipe(cadence=Cadence(memory_steps=5, memory_keep=3, disk_steps=20))
    guard = guarded(training, folder, probes=[probe], recipe=chosen)
    probe.guard.append(guard)
    run(training, guard)
    return folder


@cache
def told() -> list[dict[str, Any]]:
    """Its records, one of each kind that a resume acts on at least."""
    stamp = {"time": 1.0, "attempt": 9, "step": 200}
    made_up = [
        {"kind": "snapshot_chosen", "snapshot": "00000000-a00001", "target_step": 0},
        {"kind": "snapshot_due", "why": "minutes", "secs_at_risk": 1800.0},
        {"kind": "snapshot_passed_over", "reason": "r", "snapshot": "00000007-a00001", "bad": True},
        {"kind": "measure_due", "key": "plan1/1", "plan_id": 1, "at_step": 3},
        {"kind": "paused", "key": "plan9/0", "reason": "r", "timeout_secs": 9.0},
        {"kind": "pause_lifted", "key": "plan9/0", "waited_secs": 1.0},
        {"kind": "gate_limited", "key": "k1", "limit": 2.0, "first_step": 1, "last_step": 2},
        {"kind": "lr_scaled", "key": "k2", "factor": 0.5, "first_step": 900},
        {"kind": "released", "key": "k3", "entry_id": "plan1/0", "ids": None, "position": 9999},
        {"kind": "advice", "advice_id": 1},
    ]
    return records_of(eventful()) + [{**stamp, **one} for one in made_up]


def one_change(data: Any, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The records with one of them changed, dropped, or told twice."""
    at = data.draw(st.integers(0, len(records) - 1))
    kind = data.draw(st.sampled_from(["change", "change", "change", "drop", "twice", "less"]))
    record = records[at]
    if kind == "drop":
        return records[:at] + records[at + 1 :]
    if kind == "twice":
        return [*records[: at + 1], *records[at:]]
    if kind == "less":
        lost = data.draw(st.sampled_from(sorted(record)))
        return [*records[:at], {k: v for k, v in record.items() if k != lost}, *records[at + 1 :]]
    place = data.draw(st.sampled_from(list(places(record))))
    return [*records[:at], altered(record, place, data.draw(ODD)), *records[at + 1 :]]


def test_the_records_of_a_run_are_sound() -> None:
    kinds = {record["kind"] for record in told()}
    assert {"plan", "verification", "measured_before", "quarantined", "snapshot"} <= kinds
    vet(told(), Path("run"))


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_any_change_is_taken_in_or_refused_by_name(data: Any) -> None:
    records = one_change(data, told())
    try:
        vet(records, Path("run"))
    except JournalError as error:
        assert "decisions.jsonl, line " in str(error)
        assert len(str(error)) < 600


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_a_resume_meets_no_other_error(data: Any) -> None:
    records = told()
    resumed(one_change(data, records[: data.draw(st.integers(len(records) // 3, len(records)))]))


@pytest.mark.parametrize("field", ["passed", "again", "reopens", "probes", "note"])
@pytest.mark.parametrize("new", [3, "x", None, [3], {"a": 1}])
def test_a_verification_is_what_a_run_writes(field: str, new: Any) -> None:
    records = told()
    at = next(i for i, one in enumerate(records) if one["kind"] == "verification")
    changed = altered(records[at], ("verification", field), new)
    if (field, new) == ("note", "x"):
        return
    with pytest.raises(JournalError, match=f"line {at + 1} \\(verification\\)"):
        vet([*records[:at], changed, *records[at + 1 :]], Path("run"))
    with pytest.raises(JournalError, match=f"line {at + 1} \\(verification\\)"):
        vet([*records[:at], {**records[at], "verification": new}, *records[at + 1 :]], Path("run"))


def resumed(records: list[dict[str, Any]]) -> None:
    """Resume the run with these records, and train a few steps; only our own errors come."""
    folder = Path(mkdtemp()) / "run"
    shutil.copytree(eventful(), folder)
    write_records(folder, records)
    probe = Late(cured=0)
    training = make(stages=poisoned_stages(480, 32, 1600))
    try:
        guard = guarded(training, folder, probes=[probe], resume=True, max_steps=280)
        probe.guard.append(guard)
        run(training, guard)
    except Halted:
        pass
    except ForeshockError as error:
        assert str(error)
    finally:
        shutil.rmtree(folder.parent)
