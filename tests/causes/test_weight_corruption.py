"""A weight norm that moved by more than its updates did."""

import math
from dataclasses import replace

import numpy as np
import pytest

from foreshock.catalog import make, members
from foreshock.causes.weight_corruption import WeightCorruption
from foreshock.core.case import Case
from foreshock.core.cause import Cause, Diagnosis, diagnose
from foreshock.core.symptom import Look, observe
from foreshock.monitor import Monitor

NAMES = ["loss", "grad_norm", "lr", "update_ratio", "update_norm", "param_norm"]
SERIES = [f"{name}/global" for name in NAMES] + ["update_norm/embed", "param_norm/embed"]
UPDATE_SERIES = frozenset(SERIES[3:])
INTERVALS = {"param_norm/global": 10, "param_norm/embed": 10}


def run(
    jumps: float = 1.0, moved: float = 1.0, *, seed: int = 0, without: tuple[str, ...] = ()
) -> Monitor:
    """240 steps; from 235 on the embedding's norm is `jumps` times what it was, and from 231 on
    updates are `moved` times what they were."""
    series = [name for name in SERIES if name.split("/")[0] not in without]
    monitor = Monitor(
        series,
        update_series=UPDATE_SERIES,
        detectors=[make("detectors", name) for name in members("detectors")],
        causes=[make("causes", name) for name in members("causes")],
        quiet_steps=20,
        intervals=INTERVALS,
    )
    rng = np.random.default_rng(seed)
    for step in range(1, 241):
        times = moved if step > 230 else 1.0
        embed = 10.0 + 1e-3 * step
        embed *= jumps if step >= 235 else 1.0
        values = {
            "loss/global": 2.5 + 0.04 * rng.standard_normal(),
            "grad_norm/global": 0.4 + 0.04 * rng.standard_normal(),
            "lr/global": 1e-3 * times,
            "update_ratio/global": 2e-3 * times * (1 + 0.05 * rng.standard_normal()),
            "update_norm/global": 0.05 * times,
            "param_norm/global": math.hypot(20.0 + 2e-3 * step, embed),
            "update_norm/embed": 0.02 * times,
            "param_norm/embed": embed,
        }
        row = np.array([values[name] for name in series], np.float32)
        monitor.observe(1, step, True, row)
    return monitor


def case(monitor: Monitor) -> Case:
    return Case(timeline=monitor.timeline, alarms=tuple(monitor.episode), starts=(0,))


def diagnosed(monitor: Monitor) -> Diagnosis:
    return diagnose(case(monitor), causes(), looks())


def causes() -> list[Cause]:
    return [make("causes", name) for name in members("causes")]


def looks() -> list[Look]:
    return [make("symptoms", name) for name in members("symptoms")]


def weight(monitor: Monitor) -> float:
    """What the norms alone say for it."""
    told = case(monitor)
    told = replace(told, symptoms=observe(told, [make("symptoms", "weights")]))
    return sum(fact.weight for fact in WeightCorruption().weigh(told))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("jumps", [6e35, 12.0])
def test_a_norm_that_no_update_moved_is_corruption(jumps: float, seed: int) -> None:
    found = diagnosed(run(jumps, seed=seed))
    assert (found.top.cause, found.onset_step, found.alarm_step) == ("weight_corruption", 231, 240)
    assert found.top.probability > 0.5
    assert found.top.probability > 2 * found.candidates[1].probability
    fact = max(found.top.evidence, key=lambda one: one.weight)
    assert "param_norm/embed went from 10.23" in fact.statement
    assert "all updates since came to 0.02" in fact.statement
    assert [(reading.step, reading.scope) for reading in fact.readings] == [
        (234, "embed"), (235, "embed")
    ]  # fmt: skip


def test_updates_as_large_as_the_jump_explain_it() -> None:
    monitor = run(1.02, moved=200.0)
    assert weight(monitor) < 0
    assert diagnosed(monitor).top.cause == "lr_too_high"


def test_a_fall_is_corruption_too() -> None:
    monitor = run(0.1)
    assert weight(monitor) > 2
    assert diagnosed(monitor).top.cause == "weight_corruption"


def test_without_update_norms_the_jump_alone_says_less() -> None:
    bare, measured = run(1e20, without=("update_norm",)), run(1e20)
    assert 0 < weight(bare) < weight(measured) / 2


def test_nothing_is_said_for_it_where_no_norm_jumped() -> None:
    assert run().episode == []
    shaken = run(moved=50.0)  # the rate alone
    assert weight(shaken) < -1
    assert diagnosed(shaken).top.cause == "lr_too_high"


def test_it_is_settled_among_all_causes_whatever_order_they_stand_in() -> None:
    told = case(run(6e35))
    one, other = (diagnose(told, each, looks()) for each in (causes(), causes()[::-1]))
    assert [a.cause for a in one.candidates] == [a.cause for a in other.candidates]
    assert [a.evidence for a in one.candidates] == [a.evidence for a in other.candidates]
    assert one.top.probability == pytest.approx(other.top.probability)
