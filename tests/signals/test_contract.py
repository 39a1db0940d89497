"""What every signal keeps, present and future."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from foreshock.catalog import members
from foreshock.core.names import series_name, split_series
from foreshock.core.signal import Exactness, Level, Phase, Signal, is_missing
from tests.signals.sites import CASES, Case, case

SIGNALS = members("signals")
ON_SEVERAL_RANKS = ("rank_spread", "replicas", "sealed_shards")
every_signal = pytest.mark.parametrize("signal", SIGNALS.values(), ids=SIGNALS.keys())
every_case = pytest.mark.parametrize("name", CASES)


def hooks_of(model: torch.nn.Module) -> list[int]:
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return [len(getattr(module, kind)) for module in model.modules() for kind in kinds]


def measured(attached: Any, partials: Any) -> list[float]:
    """The values as Observation makes them of partials: a tensor [K], or K numbers."""
    if isinstance(partials, torch.Tensor):
        assert partials.ndim == 1
    flat = np.array([float(one) for one in partials])
    assert len(attached.reductions) in (0, len(flat))
    with np.errstate(all="ignore"):
        values = np.asarray(attached.finish(flat, True), np.float64)
    assert values.shape == (len(attached.series),)
    return np.where(is_missing(values), -7.0, values).tolist()


def one_step(signal: type[Signal], case: Case, micro_steps: int = 1) -> dict[str, float] | None:
    """Measure one step as a Guard does, update included."""
    attached = signal().attach(case.site)
    if attached is None:
        return None
    moment = case.moment(micro_steps)
    with torch.no_grad():
        if signal.phase is Phase.UPDATE:
            attached.prepare(moment)
            case.update.commit_or_skip(moment.grad_norm, float("inf"), 1.0)
        values = measured(attached, attached.measure(moment))
    attached.detach()
    return dict(zip(attached.series, values, strict=True))


@every_signal
def test_is_a_frozen_dataclass_that_says_what_it_is(signal: type[Signal]) -> None:
    options = signal.__dataclass_params__
    assert options.frozen
    assert all(item.kw_only for item in dataclasses.fields(signal))
    assert signal.unit
    assert signal.passes
    assert isinstance(signal.phase, Phase)
    assert isinstance(signal().exactness, Exactness)
    assert isinstance(signal.level, Level)
    assert signal.__doc__
    signal()


@every_case
@every_signal
def test_gives_a_finite_value_for_each_of_its_series(signal: type[Signal], name: str) -> None:
    found = one_step(signal, case(name))
    if found is None:
        return
    assert len(set(found)) == len(found) > 0
    for series, value in found.items():
        assert series_name(*split_series(series)) == series
        assert value == value and abs(value) != float("inf"), series


@every_case
@every_signal
def test_two_micro_steps_of_the_same_data_are_one_step(signal: type[Signal], name: str) -> None:
    once, twice = one_step(signal, case(name)), one_step(signal, case(name), micro_steps=2)
    low = name in ("fp16", "bf16")
    assert twice == (None if once is None else pytest.approx(once, rel=2e-2 if low else 1e-4))


@every_case
@every_signal
def test_detaching_leaves_the_model_as_it_was(signal: type[Signal], name: str) -> None:
    touched, untouched = case(name), case(name)
    attached = signal().attach(touched.site)
    if attached is not None:
        moment = touched.moment()
        with torch.no_grad():
            attached.prepare(moment)
            attached.measure(moment)
        attached.detach()
        attached.detach()
    assert hooks_of(touched.model) == hooks_of(untouched.model)
    before, after = untouched.model.state_dict(), touched.model.state_dict()
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert torch.equal(touched.feed(), untouched.feed())


@every_signal
def test_state_survives_a_round_trip_and_the_original_going_on(signal: type[Signal]) -> None:
    def steps(attached: Any, case: Case, count: int) -> list[list[float]]:
        found = []
        for _ in range(count):
            moment = case.moment()
            with torch.no_grad():
                attached.prepare(moment)
                found.append(measured(attached, attached.measure(moment)))
            case.optimizer.step()
            case.optimizer.zero_grad()
        return found

    name = "a small GPT"
    first, second = case(name), case(name)
    attached = signal().attach(first.site)
    if attached is None:
        assert signal.name in ON_SEVERAL_RANKS
        return
    steps(attached, first, 2)
    second.model.load_state_dict(first.model.state_dict())
    state = attached.state_dict()
    expected = steps(attached, first, 2)
    other = signal().attach(second.site)
    assert other is not None
    other.load_state_dict(state)
    assert steps(other, second, 2) == expected
