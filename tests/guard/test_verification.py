"""Probes decide whether a recovery is one, and leave no trace."""

import dataclasses
import random
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from foreshock.core.probe import Probe
from foreshock.recipes import Cadence
from foreshock.snapshots.codec import digest
from foreshock.verification import compare, measure
from tests.guard.programs import guarded, make, poisoned_stages, recipe, run, take_step


@dataclass(frozen=True, kw_only=True)
class Scripted(Probe):
    """Gives the next value of a script each time it is asked, then 0."""

    name: ClassVar[str] = "scripted"
    values: list[float]
    modes: list[Any] = field(default_factory=list)

    def measure(self, model):
        self.modes.append((model.training, torch.is_grad_enabled()))
        torch.rand(3), random.random(), np.random.random()
        return [self.values.pop(0)] * 4 if self.values else [0.0] * 4


@dataclass(frozen=True, kw_only=True)
class AfterRollback(Probe):
    """Says that the model is worse until the run has gone back to `whole_from` or before."""

    name: ClassVar[str] = "after_rollback"
    guard: list[Any]
    worse: int

    def measure(self, model):
        guard = self.guard[0]
        back = [r for r in guard._journal.records if r["kind"] == "measured_before"]
        verifying = guard._journal.records[-1]["kind"] != "attempt_started"
        return [1.0 if verifying and len(back) <= self.worse else 0.0] * 4


def poisoned(tmp_path, probe, **options):
    training = make(stages=poisoned_stages(480, 32, 1600), tracked=True)
    guard = guarded(training, tmp_path / "run", probes=[probe], **options)
    return training, guard


def rollbacks(guard):
    return [
        record.plan.target_step
        for incident in guard.book.incidents
        for record in incident.rollbacks
    ]


def test_a_model_that_got_worse_is_taken_further_back(tmp_path):
    holder: list[Any] = []
    training, guard = poisoned(tmp_path, AfterRollback(guard=holder, worse=2))
    holder.append(guard)
    run(training, guard)
    (incident,) = guard.book.incidents
    verified = [r for r in guard.records if r["kind"] == "verification"]
    first = [r["verification"]["passed"] for r in verified if not r["verification"].get("again")]
    assert first == [False, False, True]
    assert len(incident.rollbacks) == 3
    assert incident.outcome == "recovered"
    targets = rollbacks(guard)
    assert targets == sorted(targets, reverse=True)
    windows = [
        call.arguments["stop"] - call.arguments["start"]
        for record in incident.rollbacks
        for call in record.plan.actions
        if call.name == "quarantine"
    ]
    assert windows == sorted(set(windows))  # each sets more aside, or goes further back


def test_a_model_that_stays_worse_is_handed_over(tmp_path):
    holder: list[Any] = []
    training, guard = poisoned(
        tmp_path,
        AfterRollback(guard=holder, worse=99),
        recipe=recipe(max_rollbacks_per_incident=3),
    )
    holder.append(guard)
    run(training, guard)
    assert "3 rollbacks did not cure" in guard.halted
    assert len(rollbacks(guard)) == 3
    assert guard.book.incidents[-1].outcome == "halted"


def test_a_failed_verification_where_the_data_ends_is_acted_on(tmp_path):
    """The run has settled just when its data is used up: the verdict still counts."""
    holder: list[Any] = []
    clean = make(stages=poisoned_stages(480, 32, 1600))
    first = guarded(clean, tmp_path / "first")
    run(clean, first)
    closed = first.book.incidents[0].closed_step
    quarantined = first.num_quarantined
    after = closed * 8 - 480 - 32 + quarantined
    training = make(stages=poisoned_stages(480, 32, after), tracked=True)
    guard = guarded(training, tmp_path / "run", probes=[AfterRollback(guard=holder, worse=1)])
    holder.append(guard)
    run(training, guard)
    verdicts = [r for r in guard._journal.records if r["kind"] == "verification"]
    assert verdicts[0]["verification"]["passed"] is False
    assert len(rollbacks(guard)) >= 2 or guard.halted


def test_probing_changes_no_bit_of_the_run(tmp_path):
    results = []
    for probes in ([], [Scripted(values=[])]):
        training = make(stages=poisoned_stages(480, 32, 400), tracked=True)
        guard = guarded(training, tmp_path / f"run{len(probes)}", probes=probes)
        results.append(run(training, guard))
        assert guard.book.incidents
    assert results[0] == results[1]
    assert probes[0].modes
    assert set(probes[0].modes) == {(False, False)}


def test_measuring_leaves_no_trace():
    training = make(tracked=True)
    model = training.model
    model.train()
    model.mlp.eval()
    model.mlp[2].train()
    modes = [m.training for m in model.modules()]
    model.embedding.weight.grad = torch.ones_like(model.embedding.weight)
    grad = model.embedding.weight.grad
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    before = digest(model.state_dict())
    measure(model, [Scripted(values=[1.0])])
    assert [m.training for m in model.modules()] == modes
    assert model.embedding.weight.grad is grad
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert np.random.get_state()[1].tolist() == states[2]
    assert digest(model.state_dict()) == before


def test_a_probe_that_raises_leaves_the_mode_and_the_generators():
    @dataclass(frozen=True, kw_only=True)
    class Failing(Probe):
        name: ClassVar[str] = "failing"

        def measure(self, model):
            torch.rand(1)
            raise ZeroDivisionError

    model = make().model.train()
    state = torch.get_rng_state()
    with pytest.raises(ZeroDivisionError):
        measure(model, [Failing()])
    assert model.training
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("after", "passed"),
    [
        ([1.0, 2.0], True),
        ([0.5, 2.0], True),
        ([1.5, 2.5], False),
        ([1.0, float("nan")], False),
        ([float("inf"), 1.0], False),
    ],
)
def test_worse_beyond_noise_fails_and_better_never_does(after, passed):
    (found,) = compare({"p": [1.0, 2.0]}, {"p": after})
    assert found.passed is passed


def test_looking_back_is_exact_while_tracked_state_waits_for_its_owner(tmp_path):
    """A resume that finishes a rollback probes before the loop has tracked anything."""
    training = make(stages=poisoned_stages(480, 32, 400), tracked=True)
    expected = run(training, guarded(training, tmp_path / "whole", probes=[Scripted(values=[])]))
    training = make(stages=poisoned_stages(480, 32, 400), tracked=True)
    guard = guarded(training, tmp_path / "run", probes=[Scripted(values=[])])
    training.model.train()
    with guard:
        for batch in guard:
            take_step(training, guard, batch)
            if guard.book.unfinished_plan is not None:
                break
    again = make(stages=poisoned_stages(480, 32, 400), tracked=True, seed=4)
    again.stream = make(stages=poisoned_stages(480, 32, 400)).stream
    resumed = guarded(again, tmp_path / "run", probes=[Scripted(values=[])], resume=True)
    assert run(again, resumed) == expected


def test_an_incident_that_was_only_skipped_is_compared_with_the_state_before_it(tmp_path):
    """Two large gradients and no more: the gate is lowered, nothing is gone back to.

    The first of them does reach the weights, and the loss diverges for it in time: that is
    another rule's alarm, which is left out here.
    """
    training = make()
    probe = Scripted(values=[])
    cadence = Cadence(memory_steps=5, memory_keep=9, disk_steps=20)
    options = {"probes": [probe], "max_steps": 120}
    chosen = recipe(confirm_steps=2, cadence=cadence)
    detectors = tuple(rule for rule in chosen.detectors if rule.name != "divergence")
    options["recipe"] = dataclasses.replace(chosen, detectors=detectors)
    guard = guarded(training, tmp_path / "run", **options)

    def spoil(guard, training):
        if guard.step_number in (60, 61):
            for parameter in training.model.parameters():
                parameter.register_hook(_grow(guard, (60, 61)))

    run(training, guard, before_step=spoil)
    (incident,) = guard.book.incidents
    assert [record.plan.rung for record in incident.plans] == ["skip"]
    assert incident.verification is not None
    (kept,) = [one for one in guard.records if one["kind"] == "measured_before"]
    assert kept["at_step"] < incident.onset_step <= kept["at_step"] + 5
    assert kept["neighbour_steps"] == [kept["at_step"] - 5 * back for back in (6, 5, 4, 3, 2, 1)]
    assert incident.verification["against"] == kept["snapshot"]
    assert incident.outcome == "recovered"
    verified = [one for one in guard.records if one["kind"] == "verification"]
    assert verified[0]["position"] == 8 * guard.monitor.last_alarm_step  # the last alarm's
    if verified[1:]:
        assert verified[1]["verification"]["against"] == kept["snapshot"]


def _grow(guard, steps):
    return lambda gradient: gradient * (1e4 if guard.step_number in steps else 1.0)
