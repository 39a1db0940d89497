"""What watching a run live raises is what the same rules raise over its log."""

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from foreshock.core.detector import Alarm, Detector
from foreshock.core.log import Log
from foreshock.inspection.alarms import default_detectors, on_steps, raise_alarms
from foreshock.inspection.inspect import inspect_log
from foreshock.inspection.lineage import returns
from foreshock.inspection.trace import Trace
from foreshock.logs import read_log
from foreshock.monitor import Monitor
from tests.inspection.runs import log_of

DETECTORS = default_detectors()
EXAMPLE = Path(__file__).parents[2] / "docs/examples/crawl-shard.jsonl"


def wild(num_readings: int, seed: int) -> dict[str, np.ndarray]:
    """A run in which about everything happens: spikes, shifts, drifts, NaN, Inf, dead stretches."""
    rng = np.random.default_rng(seed)
    loss = 2 + 3 / (1 + np.arange(num_readings) / 30) + 0.02 * rng.normal(size=num_readings)
    norm = 0.4 * np.exp(0.15 * rng.normal(size=num_readings))
    far = rng.random(num_readings)
    loss[far < 0.02] += 2
    norm[far < 0.03] *= 40
    norm[120:160] *= 3
    loss[(far > 0.99) & (far < 0.995)] = math.nan
    norm[far > 0.993] = math.inf
    middle = num_readings // 2
    loss[middle : middle + 60] += np.linspace(0, 1.5, 60)
    norm[middle:] *= np.exp(np.linspace(0, 2, num_readings - middle))
    loss[-130:] = 1.25
    scale = np.full(num_readings, 65536.0)
    scale[middle:] = 65536.0 / 2.0 ** np.minimum(np.arange(num_readings - middle) // 3, 20)
    return {
        "loss": loss,
        "grad_norm": norm,
        "loss_scale": scale,
        "update_ratio": 2e-3 * np.exp(0.1 * rng.normal(size=num_readings)) * (1 + 5 * (far < 0.05)),
        "param_norm": np.where(
            np.arange(num_readings) == middle + 7,
            1e36,
            np.where(far > 0.998, math.nan, 30 + rng.normal(size=num_readings)),
        ),
        "activation_norm": np.where(far > 0.997, math.inf, 4 + rng.normal(size=num_readings)),
        "clip_share": np.where(np.arange(num_readings) > middle, 1.0, 0.02),
        "lr": np.where(np.arange(num_readings) // 20 * 20 == middle // 20 * 20, 1e-2, 1e-3),
    }


def over_log(log: Log, detector: Detector) -> list[Alarm]:
    traces = {name: Trace.of(series) for name, series in log.runs[0].series.items()}
    found = raise_alarms(traces, (detector,), went_back=returns(traces))
    alarms = [on_steps(a, traces[name]) for name, each in found.items() for a in each]
    clocks = [alarm.step for each in found.values() for alarm in each]
    order = sorted(range(len(alarms)), key=lambda at: (clocks[at], alarms[at].series))
    return [alarms[at] for at in order]


def live(signals: dict[str, np.ndarray], steps: Sequence[int], detector: Detector) -> list[Alarm]:
    """What a monitor raises that is given the rows one by one, and goes back where they do, to
    a snapshot of the step before, as a new process does."""
    monitor = Monitor(
        [f"{name}/global" for name in signals], detectors=(detector,), causes=(), quiet_steps=50
    )
    rows = np.column_stack(list(signals.values()))
    snapshots = {0: monitor.to_tree()}
    found: list[Alarm] = []
    last, attempt = 0, 1
    for step, row in zip(steps, rows, strict=True):
        if step <= last:
            attempt += 1
            monitor.load_tree(snapshots[step - 1])
            monitor.resumed()
        raised = monitor.observe(attempt, step, True, row)
        found += sorted(raised, key=lambda alarm: alarm.series)
        last = step
        if step % 50 == 0:
            snapshots[step] = monitor.to_tree()
    return found


@pytest.mark.parametrize("detector", DETECTORS, ids=lambda one: one.name)
@pytest.mark.parametrize("seed", range(3))
def test_live_watching_raises_what_the_log_does(detector: Detector, seed: int) -> None:
    signals = wild(700, seed)
    steps = range(1, 701)
    assert repr(live(signals, steps, detector)) == repr(over_log(log_of(signals), detector))


@pytest.mark.parametrize("detector", DETECTORS, ids=lambda one: one.name)
@pytest.mark.parametrize("seed", range(3))
def test_after_a_restart_too_it_raises_what_a_resumed_run_does(
    detector: Detector, seed: int
) -> None:
    steps = [*range(1, 321), *range(251, 401), *range(201, 451), *range(201, 301), *range(301, 480)]
    signals = wild(len(steps), seed)
    want = live(signals, steps, detector)
    assert repr(want) == repr(over_log(log_of(signals, steps=steps), detector))


def test_such_a_run_makes_all_but_three_rules_speak() -> None:
    steps = [*range(1, 321), *range(251, 401), *range(201, 451), *range(201, 801)]
    spoke = {
        detector.name
        for detector in DETECTORS
        for seed in range(3)
        if over_log(log_of(wild(len(steps), seed), steps=steps), detector)
    }
    silent = {detector.name for detector in DETECTORS} - spoke
    # They need groups, many spikes, and signals that no log has.
    assert silent <= {"layer_imbalance", "spike_frequency", "ceiling"}


@pytest.mark.parametrize("seed", range(4))
def test_alarms_do_not_depend_on_what_comes_after(seed: int) -> None:
    signals = wild(700, seed)
    signals["loss"][600:] = 0.0  # what some trainers print for NaN
    signals["grad_norm"][620:] = signals["grad_norm"][619]
    whole = inspect_log(log_of(signals)).worst.alarms
    for length in (100, 350, 606, 660):
        part = {name: values[:length] for name, values in signals.items()}
        early = inspect_log(log_of(part)).worst.alarms
        for name in signals:
            before = [alarm for alarm in whole.get(name, ()) if alarm.step <= length]
            assert repr(before) == repr(list(early.get(name, ()))), (name, length)


def test_an_alarm_that_names_what_a_restart_undid_begins_after_it() -> None:
    values = np.concatenate((np.full(150, 65536.0), 65536.0 / 2.0 ** np.arange(30)))
    steps = [*range(1, 151), *range(101, 131)]
    log = log_of({"loss": np.full(180, 2.0), "loss_scale": values}, steps=steps)
    for alarm in inspect_log(log).worst.alarms["loss_scale"]:
        assert alarm.onset_step <= alarm.step


def test_the_causal_onset_is_that_of_the_first_alarm_and_not_of_a_later_one() -> None:
    log = read_log(EXAMPLE)
    (episode,) = (one for one in inspect_log(log).worst.episodes if one.matters)
    raised = inspect_log(log).worst.alarms
    first = [one for each in raised.values() for one in each if one.step == episode.alarm_step]
    assert episode.causal_onset_step in {one.onset_step for one in first}
    later = [one.onset_step for one in raised["loss"] if one.step > (episode.alarm_step or 0)]
    assert min(later) < (episode.causal_onset_step or 0)  # which is what makes this a test
