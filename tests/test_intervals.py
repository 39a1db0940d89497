"""Signals measured every few steps: nothing stands in between, and nobody is misled by it."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from foreshock.attachment import site_of
from foreshock.catalog import members
from foreshock.core.detector import Alarm, Detector
from foreshock.core.reading import ABSENT, is_absent
from foreshock.core.signal import MISSING, Attached, Exactness, Moment, Phase, Signal, Site, Values
from foreshock.core.timeline import Timeline
from foreshock.detectors.median_ratio import MedianRatio
from foreshock.detectors.nonfinite import Nonfinite
from foreshock.detectors.spike import Spike
from foreshock.monitor import Monitor
from foreshock.observation import Observation
from foreshock.signals.activation_norm import ActivationNormSignal
from foreshock.signals.activations import ActivationsSignal
from foreshock.signals.grad_extremes import GradExtremesSignal
from foreshock.signals.gradients import GradientSignal
from foreshock.signals.output_logits import OutputLogitsSignal
from foreshock.update import Update, trained_parameters

ABSENT_BITS = np.array(ABSENT).view(np.uint32)[()]


class _Counting(Attached):
    def __init__(self, name: str) -> None:
        self.series = (f"{name}/steps", f"{name}/nan", f"{name}/sometimes")
        self.prepared: list[int] = []

    def prepare(self, moment: Moment) -> None:
        self.prepared.append(moment.step)

    def measure(self, moment: Moment) -> Any:
        return [float(moment.step)]

    def finish(self, partials: Values, committed: bool) -> Values:
        (step,) = partials
        return np.array([step, np.nan, MISSING if step % 2 else step])


@dataclass(frozen=True, kw_only=True)
class Counting(Signal):
    name: ClassVar[str] = "counting"
    unit: ClassVar[str] = "1"
    phase: ClassVar[Phase] = Phase.GRADIENT
    exactness: ClassVar[Exactness] = Exactness.EXACT
    passes: ClassVar[str] = "none"

    def attach(self, site: Site) -> Attached:
        return _Counting(self.name)


@dataclass(frozen=True, kw_only=True)
class CountingLate(Counting):
    name: ClassVar[str] = "late"
    phase: ClassVar[Phase] = Phase.UPDATE


@dataclass(frozen=True, kw_only=True)
class CountingOften(Counting):
    name: ClassVar[str] = "often"


PARAMETER = nn.Parameter(torch.ones(2))
SITE = Site(model=None, optimizer=None, parameters=(("w", PARAMETER),))


def moment(step: int) -> Moment:
    none = torch.zeros(1)
    return Moment(step=step, loss=none[0], grad_norms=none, grad_norm=none[0], lr=0.1)


def run(observation: Observation, first: int, last: int) -> dict[int, dict[str, float]]:
    """Make steps; what was measured in each, after a look at the bits of what was not."""
    found: dict[int, dict[str, float]] = {}
    for step in range(first, last + 1):
        observation.before_update(moment(step))
        observation.after_update(moment(step), torch.tensor(True))
        (row,) = observation.read(drain=True)
        absent = row.values.view(np.uint32) == ABSENT_BITS
        assert row.values.dtype == np.float32
        assert (is_absent(row.values) == absent).all()
        named = zip(observation.series, row.values.tolist(), absent.tolist(), strict=True)
        found[row.step] = {name: value for name, value, gone in named if not gone}
    return found


@pytest.mark.parametrize("lag", [0, 2])
@pytest.mark.parametrize("interval", [1, 2, 3, 7])
def test_measured_at_multiples_of_the_interval_and_absent_in_between(
    interval: int, lag: int
) -> None:
    signals = (CountingLate(interval_steps=interval), Counting(), CountingOften(interval_steps=2))
    observation = Observation(signals, SITE, lag)
    found = run(observation, 1, 15)
    for step, values in found.items():
        due = {"counting": True, "often": step % 2 == 0, "late": step % interval == 0}
        kinds = ("steps", "nan") if step % 2 else ("steps", "nan", "sometimes")
        expected = {f"{name}/{kind}" for name, is_due in due.items() if is_due for kind in kinds}
        assert values.keys() == expected
        for name, value in values.items():
            assert math.isnan(value) if name.endswith("nan") else value == step
    late = dict(observation.attached)[signals[0]]
    assert late.prepared == [step for step in range(1, 16) if step % interval == 0]
    assert observation.intervals["late/steps"] == interval
    assert observation.intervals["counting/nan"] == 1


def test_going_back_keeps_the_phase() -> None:
    observation = Observation((Counting(interval_steps=3),), SITE, 0)
    run(observation, 1, 8)
    for last in (7, 4, 0, 5):
        observation.forget(last)
        found = run(observation, last + 1, last + 7)
        assert [step for step, values in found.items() if values] == [
            step for step in range(last + 1, last + 8) if step % 3 == 0
        ]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.blocks = nn.ModuleList(
            [nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8)) for _ in range(2)]
        )
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 11, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = x + block(x)
        return self.head(self.norm(x))


class Training:
    """A model under signals that gather while it runs."""

    def __init__(self, interval: int = 1) -> None:
        torch.manual_seed(0)
        self.model = Net()
        self.model.train()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        named = trained_parameters(self.model, self.optimizer)
        self.update = Update(self.optimizer, named)
        signals = (
            ActivationNormSignal(interval_steps=interval),
            ActivationsSignal(interval_steps=interval, channels=True),
            OutputLogitsSignal(interval_steps=interval),
            GradientSignal(interval_steps=interval),
        )
        site = site_of(self.model, self.optimizer, named)
        self.observation = Observation(signals, site, 0)

    def micro_step(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        tokens = torch.randint(11, (4, 16), generator=generator)
        self.update.backward(self.model(tokens).square().mean() * (1 + seed))

    def finish(self, step: int) -> dict[str, float]:
        (norms, *_), total = self.update.gradient_sizes()
        one = Moment(step=step, loss=total, grad_norms=norms, grad_norm=total, lr=0.1)
        with torch.no_grad():
            self.observation.before_update(one)
            self.observation.after_update(one, torch.tensor(True))
        self.update.drop_gradients()  # the weights stay, so that steps can be compared
        (row,) = self.observation.read(drain=True)
        kept = ~is_absent(row.values)
        named = zip(self.observation.series, row.values.tolist(), kept.tolist(), strict=True)
        return {name: value for name, value, there in named if there}


def test_micro_steps_that_were_dropped_leave_nothing_behind() -> None:
    clean, dropped = Training(), Training()
    for seed in (1, 2):
        clean.micro_step(seed)
    expected = clean.finish(1)
    for seed in (9, 7, 8):
        dropped.micro_step(seed)
    dropped.update.drop_gradients()
    dropped.observation.drop_step()
    for seed in (1, 2):
        dropped.micro_step(seed)
    assert dropped.finish(1) == expected
    assert expected.keys() == set(clean.observation.series)


def test_an_early_look_at_the_gradients_is_dropped_with_the_step() -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    site = site_of(model, optimizer, trained_parameters(model, optimizer))
    observation = Observation((GradExtremesSignal(exact=True),), site, 0)
    for drop in (observation.drop_step, observation.forget):
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, 9.0)
        observation.before_clip(moment(1))
        drop()
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, 2.0)
        found = run(observation, 1, 1)
        assert found[1]["grad_absmax/global"] == 2.0


@pytest.mark.parametrize("last", [3, 4, 5])
def test_going_back_forgets_the_forwards_of_the_step_in_progress_and_keeps_the_phase(
    last: int,
) -> None:
    clean, back = Training(interval=3), Training(interval=3)
    expected: dict[int, dict[str, float]] = {}
    for step in range(1, 10):
        clean.micro_step(step)
        expected[step] = clean.finish(step)
    assert [step for step, values in expected.items() if values] == [3, 6, 9]
    for step in range(1, 9):
        back.micro_step(step)
        back.finish(step)
    back.micro_step(100)  # half of step 9, which would have been measured
    back.update.drop_gradients()
    back.observation.forget(last)
    for step in range(last + 1, 10):
        back.micro_step(step)
        assert back.finish(step) == expected[step]


A, B, C = "loss/global", "grad_norm/global", "update_ratio/global"
VALUES = st.one_of(
    st.floats(min_value=0.5, max_value=2.0, width=32),
    st.sampled_from([math.nan, math.inf, 50.0, 1000.0]),
)


def over_thinned(
    detector: Detector, name: str, pairs: list[tuple[int, float]]
) -> list[tuple[int, str, str, float]]:
    """Alarms of a detector that is only ever given the measured steps of one series."""
    state, found = detector.init([name]), []
    for step, value in pairs:
        state, alarms = detector.update_step(state, step, [value])
        found += alarms
    return told(found)


def told(alarms: list[Alarm]) -> list[tuple[int, str, str, float]]:
    return [(one.step, one.series, str(one.kind), repr(one.value)) for one in alarms]


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(VALUES, VALUES, VALUES, st.booleans()), min_size=60, max_size=140),
    st.integers(2, 5),
    st.integers(2, 5),
)
def test_alarms_are_those_over_the_measured_steps_alone(
    rows: list[tuple[float, float, float, bool]], often: int, seldom: int
) -> None:
    intervals = {A: 1, B: often, C: seldom}
    detectors = [kind() for kind in members("detectors").values()]
    monitor = Monitor(
        [A, B, C],
        update_series=frozenset({C}),
        detectors=detectors,
        causes=[make() for make in members("causes").values()],
        quiet_steps=5,
        intervals=intervals,
    )
    alarms: list[Alarm] = []
    pairs: dict[str, list[tuple[int, float]]] = {A: [], B: [], C: []}
    for step, (a, b, c, committed) in enumerate(rows, start=1):
        values = np.array([a, b, c], np.float32)
        for place, name in enumerate((A, B, C)):
            if step % intervals[name]:
                values[place] = ABSENT
            elif committed or name != C:
                pairs[name].append((step, float(values[place])))
        alarms += monitor.observe(1, step, committed, values)
    expected = [
        one for detector in detectors for name in (A, B, C)
        if name.split("/")[0] in detector.watches
        for one in over_thinned(detector, name, pairs[name])
    ]  # fmt: skip
    assert sorted(told(alarms)) == sorted(expected)
    for name in (A, B):
        assert monitor.timeline.steps_of(name).tolist() == [step for step, _ in pairs[name]]
        np.testing.assert_array_equal(
            monitor.timeline.values(name), [value for _, value in pairs[name]]
        )


def test_a_restored_monitor_goes_on_in_the_same_phase() -> None:
    def made() -> Monitor:
        return Monitor(
            [A, B], detectors=[Spike(), MedianRatio(), Nonfinite()], quiet_steps=5,
            intervals={B: 3}, causes=[make() for make in members("causes").values()],
        )  # fmt: skip

    def feed(monitor: Monitor, first: int, last: int) -> list[tuple[int, str, str, float]]:
        rng, found = np.random.default_rng(0), []
        for step in range(1, last + 1):
            row = rng.normal(2.0, 0.05, 2).astype(np.float32)
            if step in (450, 451):
                row *= 100
            if step % 3:
                row[1] = ABSENT
            if step >= first:
                found += monitor.observe(1, step, True, row)
        return told(found)

    whole, begun, resumed = made(), made(), made()
    expected = feed(whole, 1, 480)
    feed(begun, 1, 400)
    resumed.load_tree(begun.to_tree())
    assert feed(resumed, 401, 480) == expected
    assert {(step, series) for step, series, *_ in expected} >= {(450, A), (451, A), (450, B)}
    assert (451, B) not in {(step, series) for step, series, *_ in expected}


def test_a_timeline_leaves_out_what_is_absent_but_no_nan() -> None:
    line = Timeline([A, B], 8, dtype=np.float32)
    for step in range(1, 7):
        b = ABSENT if step % 3 else np.float32(math.nan if step == 3 else step)
        line.append(1, step, step != 6, np.array([step, b], np.float32))
    assert line.steps_of(B).tolist() == [3, 6]
    np.testing.assert_array_equal(line.values(B), [math.nan, 6.0])
    assert line.values(B, 4).tolist() == [6.0]
    assert line.values(B, committed_only=True).tolist() == pytest.approx([math.nan], nan_ok=True)
    assert [reading.step for reading in line.readings(B)] == [3, 6]
    other = Timeline([B, C], 8, dtype=np.float32)
    other.load_tree(line.to_tree())
    assert other.steps_of(B).tolist() == [3, 6] and len(other.values(C)) == 0
    assert (other.table[:, 0].view(np.uint32) == line.table[:, 1].view(np.uint32)).all()
