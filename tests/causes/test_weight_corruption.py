"""A weight norm that moved by more than its updates did."""

import math

import numpy as np
import pytest

from foreshock.catalog import make, members
from foreshock.causes.weight_corruption import WeightCorruption
from foreshock.core.case import Case
from foreshock.core.cause import diagnose
from foreshock.core.timeline import Timeline
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


def weight(monitor: Monitor) -> float:
    case = Case(timeline=monitor.timeline, alarms=tuple(monitor.episode))
    return sum(fact.weight for fact in WeightCorruption().weigh(case))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("jumps", [6e35, 12.0])
def test_a_norm_that_no_update_moved_is_corruption(jumps: float, seed: int) -> None:
    monitor = run(jumps, seed=seed)
    found = monitor.diagnose(None)
    assert (found.top.cause, found.onset_step, found.alarm_step) == ("weight_corruption", 231, 240)
    assert found.top.probability > 0.9
    assert found.data_suspicion < 0.1
    (fact,) = found.top.evidence
    assert "param_norm/embed went from 10.23" in fact.statement
    assert "all updates since came to 0.2" in fact.statement
    assert [(reading.step, reading.scope) for reading in fact.readings] == [
        (230, "embed"), (240, "embed")
    ]  # fmt: skip


def test_updates_as_large_as_the_jump_explain_it() -> None:
    monitor = run(12.0, moved=200.0)
    assert weight(monitor) == -4.0
    found = monitor.diagnose(None)
    assert found.top.cause == "lr_too_high"


def test_a_fall_is_corruption_too() -> None:
    monitor = run(0.1)
    assert weight(monitor) == 5.0
    assert monitor.diagnose(None).top.cause == "weight_corruption"


def test_without_update_norms_the_jump_alone_says_less() -> None:
    assert weight(run(1e20, without=("update_norm",))) == 1.5


def test_nothing_is_said_of_it_where_no_norm_jumped() -> None:
    calm = run()
    assert calm.episode == []
    assert WeightCorruption().weigh(Case(timeline=Timeline(SERIES), alarms=[]))[0].weight == -3.0
    shaken = run(moved=50.0)  # the rate alone
    assert weight(shaken) == -3.0


def test_the_sample_that_an_update_norm_is_of_is_allowed_for() -> None:
    assert weight(run(2.2, moved=25.0)) == -4.0  # 12 against 5, of which 65 % may be unseen
    assert weight(run(4.0, moved=25.0)) == 5.0


def test_it_is_settled_among_all_causes_whatever_order_they_stand_in() -> None:
    monitor = run(6e35)
    case = Case(timeline=monitor.timeline, alarms=tuple(monitor.episode))
    causes = [make("causes", name) for name in members("causes")]
    assert diagnose(case, causes) == diagnose(case, causes[::-1])
