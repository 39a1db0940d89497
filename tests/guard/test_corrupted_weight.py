"""A weight that a flipped bit made huge, where neither loss nor gradient shows it."""

import math

import pytest
import torch

from tests.guard.programs import guarded, make, take_step

STRUCK, STEPS = 153, 190


def with_unused():
    """A training, and a weight of it without a gradient, as rows of tokens that never come."""
    training = make(scheduler=None)
    unused = torch.nn.Parameter(torch.linspace(0.5, 1.5, 8))
    training.model.unused = unused
    training.optimizer.add_param_group({"params": [unused]})
    return training, unused


@pytest.mark.parametrize("value", [6e36, -3e20, 500.0])
def test_it_is_found_at_the_next_reading_and_undone(tmp_path, value):
    training, unused = with_unused()
    guard = guarded(training, tmp_path / "run", max_steps=STEPS)
    training.model.train()
    with guard:
        for batch in guard:
            if (guard.attempt, guard.step_number) == (1, STRUCK - 1):
                with torch.no_grad():
                    unused[3] = value
            take_step(training, guard, batch)
    (incident,) = guard.book.incidents
    (plan,) = incident.plans
    assert (incident.onset_step, incident.alarm_step) == (151, 160)
    assert (incident.cause, plan.plan.rung, plan.plan.target_step) == (
        "weight_corruption", "rollback", 150
    )  # fmt: skip
    assert guard.num_quarantined == 0
    assert math.isclose(float(unused[3]), float(torch.linspace(0.5, 1.5, 8)[3]), rel_tol=0.5)


def test_one_that_grew_by_little_is_left_to_a_probe(tmp_path):
    training, unused = with_unused()
    guard = guarded(training, tmp_path / "run", max_steps=STEPS)
    training.model.train()
    with guard:
        for batch in guard:
            if guard.step_number == STRUCK - 1:
                with torch.no_grad():
                    unused[3] = 9.0  # three times the norm
            take_step(training, guard, batch)
    assert guard.book.incidents == []
    assert "norm_jump" in {
        one["alarm"]["detector"] for one in guard.records if one["kind"] == "alarm"
    }
