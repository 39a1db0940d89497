"""The restart rule by hand, on restarts that went well, and on those that lost something."""

import importlib
import math
from itertools import pairwise

import numpy as np
import pytest

from foreshock.catalog import make
from foreshock.core.detector import Alarm, AlarmKind
from foreshock.core.errors import ConfigError
from foreshock.detectors.restart_discontinuity import RestartDiscontinuity
from foreshock.monitor import Monitor


def alarms_of(values, restarts=(), **settings) -> list[Alarm]:
    """The alarms of a run that was taken up anew before each of these steps."""
    rule = RestartDiscontinuity(**settings)
    block = np.asarray(values, np.float64)
    block = block.reshape(len(block), -1)
    state = rule.init([f"loss/{place}" for place in range(block.shape[1])])
    found: list[Alarm] = []
    bounds = [0, *restarts, len(block)]
    for low, high in pairwise(bounds):
        if low:
            state = rule.resumed(state)
        state, more = rule.update(state, np.arange(low, high), block[low:high])
        found += more
    return found


def test_the_first_alarm_by_hand() -> None:
    # Before: 1, 2, 3, 4 eight times: median 2.5, quartiles 2 and 4 (the 9th and 24th of 32):
    # 1 / 1.349 = 0.7413 from 2 and 3; the tails 1 and 4: 3 / 3.29 = 0.9119. So 3 * 0.9119 =
    # 2.7356 away alarms: at 5.24, and at -0.24, but not at 5.23.
    before = [1.0, 2.0, 3.0, 4.0] * 8
    for level, quiet in ((5.24, False), (5.23, True), (-0.24, False), (-0.23, True)):
        found = alarms_of([*before, *[level] * 9], [32])
        assert (found == []) is quiet, level
        for alarm in found:
            assert (alarm.step, alarm.onset_step) == (36, 32)
            assert (alarm.value, alarm.baseline) == (level, 2.5)
            assert alarm.threshold == pytest.approx(2.5 + math.copysign(2.7356, level), abs=1e-3)
            assert alarm.kind is AlarmKind.DISCONTINUITY


def test_without_a_restart_nothing_is_ever_reported() -> None:
    assert alarms_of([1.0] * 100 + [9.0] * 100) == []


def test_one_hard_batch_after_a_restart_is_nothing() -> None:
    values = [2.0, 2.1] * 20 + [9.0, 2.0, 9.0, 2.1, 2.0] + [2.0] * 20
    assert alarms_of(values, [40]) == []


def test_good_restarts_are_quiet() -> None:
    """1,600 restarts under each noise, of a level and of a falling loss: at most one alarms."""
    rng = np.random.default_rng(1)
    shape = (800, 40)
    falling = 2 + 8 / (1 + np.arange(800)[:, None] / 100)
    restarts = list(range(20, 800, 20))
    for noise in (rng.standard_normal(shape), rng.standard_t(3, shape)):
        assert len(alarms_of(2.5 + 0.1 * noise, restarts)) <= 1
        assert len(alarms_of(falling + 0.1 * noise, restarts)) <= 1


@pytest.mark.parametrize("change", [0.3, -0.3])
def test_a_known_change_is_found_at_the_fifth_reading(change: float) -> None:
    rng = np.random.default_rng(2)
    values = 2.5 + 0.03 * rng.standard_normal((200, 60))
    values[100:] += change
    found = alarms_of(values, [100])
    assert len(found) == 60
    assert {(a.step, a.onset_step) for a in found} == {(104, 100)}


def test_a_small_change_of_a_very_calm_loss_is_no_trouble() -> None:
    values = [2.0, 2.0001] * 20
    assert alarms_of([*values, *[2.03] * 10], [40]) == []
    assert alarms_of([*values, *[2.05] * 10], [40]) != []


def test_restarts_in_quick_succession_are_judged_by_what_was_before_the_first() -> None:
    values = [2.0] * 40 + [3.0] * 3 + [3.0] * 3 + [3.0] * 5
    found = alarms_of(values, [40, 43, 46])
    assert [(a.step, a.onset_step, a.baseline) for a in found] == [(50, 46, 2.0)]


def test_too_short_a_run_is_not_judged() -> None:
    assert alarms_of([1.0] * 15 + [9.0] * 10, [15]) == []
    assert alarms_of([1.0] * 16 + [9.0] * 10, [16]) != []


def test_a_nan_is_no_reading() -> None:
    values = [2.0] * 40 + [math.nan] * 3 + [3.0, math.inf, 3.0, 3.0, 3.0, 3.0]
    assert [(a.step, a.onset_step) for a in alarms_of(values, [40])] == [(48, 43)]


def test_the_monitor_passes_a_restart_on_and_a_snapshot_carries_it() -> None:
    def fresh() -> Monitor:
        return Monitor(
            ["loss/global"],
            detectors=[RestartDiscontinuity()],
            causes=[make("causes", "unknown")],
            quiet_steps=5,
        )

    monitor = fresh()
    for step in range(1, 41):
        assert monitor.observe(1, step, True, np.array([2.0])) == []
    monitor.resumed()
    assert monitor.observe(2, 41, True, np.array([3.0])) == []
    again = fresh()
    again.load_tree(monitor.to_tree())
    for found in (monitor, again):
        told = [found.observe(2, step, True, np.array([3.0])) for step in range(42, 47)]
        assert [len(alarms) for alarms in told] == [0, 0, 0, 1, 0]
        assert found.episode == [], "it is advisory"


def test_a_guard_that_takes_up_a_run_says_so(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    programs = importlib.import_module("tests.guard.programs")  # it needs torch

    heard: list[int] = []
    monkeypatch.setattr(Monitor, "resumed", lambda monitor: heard.append(monitor.last_step))
    for resume in (False, True):
        program = programs.make()
        options = {"max_steps": 20 + 5 * resume, "resume": resume}
        with programs.guarded(program, tmp_path / "run", **options) as guard:
            for batch in guard:
                programs.take_step(program, guard, batch)
        assert heard == [20] * resume


@pytest.mark.parametrize(
    "setting",
    [{"before_readings": 0}, {"after_readings": 0}, {"z": 0.0}, {"share": math.nan}],
)
def test_settings_that_make_no_sense_are_refused(setting: dict) -> None:
    with pytest.raises(ConfigError, match=f"restart_discontinuity.*{next(iter(setting))}"):
        RestartDiscontinuity(**setting)
