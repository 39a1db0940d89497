"""Going back: to the same trajectory, with the quarantine kept, and to an end."""

import numpy as np
import pytest
import torch

from foreshock.core.errors import Halted
from foreshock.data.stream import Stage
from foreshock.durable import RealDisk
from foreshock.faults.optimizer_moments import OptimizerMoments
from foreshock.journal import read_provenance
from foreshock.recipes import Cadence
from tests.guard.programs import (
    Sentences,
    clean_stages,
    guarded,
    make,
    poisoned_stages,
    recipe,
    run,
    take_step,
)


@pytest.mark.parametrize(
    ("optimizer", "scaler", "accumulate"),
    [("adamw", False, 1), ("fused", True, 1), ("adamw", True, 2)],
)
def test_the_same_data_again_gives_the_same_run(tmp_path, optimizer, scaler, accumulate):
    options = {"max_steps": 80, "accumulate": accumulate, "clip": 1.0}
    plain = make(optimizer=optimizer, scaler=scaler, tracked=True)
    expected = run(plain, guarded(plain, tmp_path / "plain", **options))
    broken = make(optimizer=optimizer, scaler=scaler, tracked=True)
    hurt = []

    def damage(guard, training):
        if guard.step_number == 52 and not hurt:
            fault = OptimizerMoments(intensity=1.0)
            fault.inject(training.model, training.optimizer, np.random.default_rng(0))
            hurt.append(True)

    guard = guarded(broken, tmp_path / "broken", **options)
    digest = run(broken, guard, before_step=damage)
    (incident,) = guard.book.incidents
    assert incident.cause == "optimizer_state_corrupt"
    assert [record.plan.rung for record in incident.plans] == ["rollback"]
    assert guard.num_quarantined == 0
    assert guard.attempt == 2
    assert digest == expected


def trained_positions(guard):
    """The positions that each step of the lineage which remains has trained."""
    final: dict[int, tuple[int, ...]] = {}
    for record in guard._journal.records:
        if record["kind"] != "attempt_started":
            continue
        final = {step: where for step, where in final.items() if step <= record["step"]}
        path = guard._journal.run_dir / "data" / f"attempt-{record['attempt']:05d}.bin"
        if path.exists():
            provenance = read_provenance(RealDisk(), path)
            final |= {step: tuple(where) for step, where in provenance.items()}
    return final


CASES = [(1, 480), (4, 480), (10, 300), (25, 480), (40, 300), (10, 16), (25, 16), (40, 960)]


def check_an_end(tmp_path, batches, before, after):
    training = make(stages=poisoned_stages(before, 8 * batches, after))
    guard = guarded(training, tmp_path / "run")
    run(training, guard)
    windows = []
    for incident in guard.book.incidents:
        for record in incident.plans:
            for call in record.plan.actions:
                if call.name == "quarantine":
                    windows.append((call.arguments["start"], call.arguments["stop"]))
    assert guard.attempt <= 12
    final = trained_positions(guard)
    trained = [p for where in final.values() for p in where]
    assert len(trained) == len(set(trained))
    assert trained == sorted(trained)
    for start, stop in windows:  # what was set aside is not in the run that remains
        assert not [p for p in trained if start <= p < stop]
    total = training.stream.order.total
    aside = {p for start, stop in windows for p in range(start, min(stop, total))}
    assert set(trained) | aside == set(range(total))
    assert guard.halted is None or (tmp_path / "run/handover.md").read_text()
    return guard, windows


@pytest.mark.parametrize(("batches", "before"), [(4, 480), (25, 480)])
def test_what_was_set_aside_is_not_met_twice(tmp_path, batches, before):
    guard, windows = check_an_end(tmp_path, batches, before, 800)
    assert windows
    assert guard.book.incidents[0].outcome == "recovered"


@pytest.mark.slow
@pytest.mark.parametrize("after", [8, 80, 2000])
@pytest.mark.parametrize(("batches", "before"), CASES)
def test_bad_data_of_any_length_anywhere(tmp_path, batches, before, after):
    check_an_end(tmp_path, batches, before, after)


def test_bad_data_at_the_very_end(tmp_path):
    """The last steps are read when the data ends, and the plan they bring is carried out.

    No data is left to prove the recovery with, so that the run is handed over.
    """
    guard, windows = check_an_end(tmp_path, 3, 480, 1)
    (window,) = windows
    assert window[1] >= 480 + 16
    assert guard.records[-1]["kind"] == "run_halted"
    assert "before the recovery was proved" in guard.halted


def test_a_window_across_epochs_is_not_met_in_the_next(tmp_path):
    good, bad = Sentences(296, seed=1), Sentences(80, seed=2, poisoned=True)
    mixed = {"good": good, "bad": bad}
    training = make(
        stages=[
            Stage(name="first", sources={"good": good}),
            Stage(name="bad", sources=mixed, weights={"good": 1, "bad": 20}, num_samples=84),
            Stage(name="again", sources=mixed, repeats=2),
        ]
    )
    guard = guarded(training, tmp_path / "run")
    run(training, guard)
    assert guard.book.incidents
    order, ledger = training.stream.order, training.stream.ledger
    for where in trained_positions(guard).values():
        for position in where:
            sample = order.locate(position)
            assert not ledger.holds(sample.source, sample.index, position)


def test_trouble_that_no_data_explains_ends_with_a_note(tmp_path):
    """Every step beyond 30 is hurt, whatever is set aside: the run must not go on for ever."""
    training = make(stages=clean_stages(640))

    def hurt(guard, training):
        if guard.step_number >= 30:
            weight = training.model.last_norm.weight
            weight.register_hook(lambda grad: grad + torch.nan)

    guard = guarded(training, tmp_path / "run", max_steps=400)
    run(training, guard, before_step=hurt)
    assert guard.halted is not None
    assert guard.step_number < 60
    assert "Halted" in (tmp_path / "run/handover.md").read_text()
    assert guard.book.incidents[-1].outcome == "halted"
    assert guard._journal.records[-1]["kind"] == "run_halted"


def test_an_endless_stream_that_is_all_set_aside_is_handed_over(tmp_path):
    training = make(stages=clean_stages(64))
    training.model.train()
    with guarded(training, tmp_path / "run") as guard, pytest.raises(Halted, match="all 64"):
        for batch in guard:
            take_step(training, guard, batch)
            if guard.step_number == 3:
                guard._control.begin(1, 0)
                guard._control.quarantine(0, 64, "everything")
    assert "all 64 samples" in guard.halted
    assert guard.step_number == 3
    resumed = guarded(make(stages=clean_stages(64)), tmp_path / "run", resume=True)
    assert resumed.halted is None  # whoever resumes it knows
    resumed.close()


@pytest.mark.parametrize("budget", [0, 2])
def test_the_budget_of_rollbacks_is_kept(tmp_path, budget):
    training = make()

    def hurt(guard, training):
        if guard.step_number >= 30:
            weight = training.model.last_norm.weight
            weight.register_hook(lambda grad: grad + torch.nan)

    policy = recipe(max_rollbacks_per_incident=budget)
    guard = guarded(training, tmp_path / "run", max_steps=100, recipe=policy)
    run(training, guard, before_step=hurt)
    assert guard.book.num_rollbacks == budget
    assert f"{budget} rollbacks did not cure" in guard.halted


def test_undone_snapshots_do_not_crowd_out_those_that_count(tmp_path):
    training = make()
    cadence = Cadence(memory_steps=5, memory_keep=9, disk_steps=5, disk_keep=3, asynchronous=False)
    training.model.train()
    with guarded(training, tmp_path / "run", recipe=recipe(cadence=cadence)) as guard:
        for batch in guard:
            take_step(training, guard, batch)
            if guard.step_number == 40 and guard.attempt == 1:
                guard._attempts.go_back(at_most_step=20)
            if guard.step_number == 31 and guard.attempt == 2:
                break
    names = sorted(path.name for path in (tmp_path / "run/snapshots").iterdir())
    assert names == ["00000000-a00001", "00000025-a00002", "00000030-a00002"]
