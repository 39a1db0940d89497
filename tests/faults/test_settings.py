"""Faults of the optimizer's settings and of its schedule: what each update is made with."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from foreshock.core.errors import ConfigError
from foreshock.core.fault import ProgramFault
from foreshock.core.override import Tuning
from foreshock.core.program import Program
from foreshock.faults.changed_settings import SETTINGS, ChangedSettings
from foreshock.faults.edge_rate import EdgeRate
from foreshock.faults.large_epsilon import LargeEpsilon
from foreshock.faults.lost_schedule import LostSchedule
from foreshock.faults.short_warmup import ShortWarmup
from foreshock.faults.sustained_lr import SustainedLr
from foreshock.optimizer_settings import overridden
from tests.faults.programs import LR, WARMUP, batch_of, rate_share, small_program, train


def changed(fault: ProgramFault, program: Program | None = None) -> Program:
    return fault.change(program or small_program(), np.random.default_rng(0))[0]


def used(program: Program, steps: int, *, first: int = 0) -> list[Mapping[str, Any]]:
    """The settings that each update was made with; the run is trained on."""
    seen: list[Mapping[str, Any]] = []
    hook = program.optimizer.register_step_pre_hook(
        lambda optimizer, args, kwargs: seen.append(dict(optimizer.param_groups[0]))
    )
    train(program, steps, first=first)
    hook.remove()
    return seen


def rates(program: Program, steps: int, **options: Any) -> list[float]:
    return [one["lr"] for one in used(program, steps, **options)]


def own(steps: int, *, first: int = 0) -> list[float]:
    return [LR * rate_share(step) for step in range(first, first + steps)]


@pytest.mark.parametrize(
    ("fault", "factor"),
    [
        (SustainedLr(intensity=0.5, largest=16), 4.0),
        (SustainedLr(intensity=1.0), 30.0),
        (EdgeRate(intensity=0.5, edge=7), 4.0),
    ],
)
def test_a_raised_rate_follows_the_schedule(fault: ProgramFault, factor: float) -> None:
    program = changed(fault)
    assert rates(program, 6) == pytest.approx([factor * one for one in own(6)])
    assert program.optimizer.param_groups[0]["lr"] == pytest.approx(own(1, first=6)[0])


def test_a_skipped_update_does_not_raise_the_rate_twice() -> None:
    program = changed(SustainedLr(intensity=0.5, largest=16))
    train(program, 2)
    for _ in range(3):  # forward only: the update is skipped
        program.loss(program.model, torch.zeros(1, 13, dtype=torch.int64))
    assert program.optimizer.param_groups[0]["lr"] == pytest.approx(4 * own(1, first=2)[0])
    program.scheduler.step()  # a schedule that goes on over the skipped step
    assert rates(program, 1) == pytest.approx([4 * own(1, first=3)[0]])


def test_a_probe_sees_the_own_settings() -> None:
    program = changed(SustainedLr())
    program.model.eval()
    program.loss(program.model, torch.zeros(1, 13, dtype=torch.int64))
    assert program.optimizer.param_groups[0]["lr"] == pytest.approx(own(1)[0])


def test_a_schedule_that_begins_anew_warms_up_again() -> None:
    program = small_program()
    train(program, 10)
    changed(LostSchedule(mode="restarted"), program)
    assert rates(program, 6, first=10) == pytest.approx(own(6))


def test_a_schedule_that_was_not_restored_stands_at_its_peak() -> None:
    program = small_program()
    train(program, 10)
    changed(LostSchedule(mode="constant"), program)
    assert rates(program, 4) == pytest.approx([LR] * 4)


def test_a_schedule_may_be_lost_in_part() -> None:
    program = small_program()
    train(program, 10)
    changed(LostSchedule(mode="constant", intensity=0.5), program)
    expected = [(one * LR) ** 0.5 for one in own(3, first=10)]
    assert rates(program, 3) == pytest.approx(expected)


@pytest.mark.parametrize("intensity", [1.0, 0.5])
def test_a_short_warm_up_rises_faster_from_where_it_stands(intensity: float) -> None:
    begun = WARMUP // 2
    program = small_program()
    train(program, begun)
    changed(ShortWarmup(intensity=intensity, peak=9.0, steepest=16.0), program)
    top, slope = 9.0**intensity, 16.0**intensity
    first, second, *_ = shares = [rate_share(begun + step) for step in range(6)]
    found = [rate / LR for rate in rates(program, 6, first=begun)]
    assert found[0] == pytest.approx(first), "nothing jumps"
    assert found[1] == pytest.approx(min(top, first + slope * (second - first)))
    highest = max(shares)
    peak = min(top, first + slope * (highest - first))
    after = shares[shares.index(highest) :]
    assert found[-len(after) :] == pytest.approx([peak * one / highest for one in after])


def test_a_short_warm_up_does_nothing_where_the_rate_falls() -> None:
    program = small_program()
    train(program, WARMUP + 2)
    changed(ShortWarmup(), program)
    assert rates(program, 3) == pytest.approx(own(3, first=WARMUP + 2))


@pytest.mark.parametrize("has_schedule", [False, True])
def test_under_an_override_the_rate_does_not_grow(has_schedule: bool) -> None:
    program = changed(SustainedLr(intensity=0.5, largest=16))
    optimizer, seen = program.optimizer, []
    optimizer.register_step_pre_hook(
        lambda optimizer, args, kwargs: seen.append(optimizer.param_groups[0]["lr"])
    )
    for step in range(5):
        program.loss(program.model, batch_of(step)).backward()
        assert optimizer.param_groups[0]["lr"] == pytest.approx(4 * own(5)[step * has_schedule])
        with overridden(optimizer, 0.5, Tuning()):
            optimizer.step()
        if has_schedule:
            program.scheduler.step()
        saved = optimizer.state_dict()["param_groups"][0]["lr"]
        assert saved == pytest.approx(own(6)[(step + 1) * has_schedule])
    assert seen == pytest.approx([2 * own(5)[step * has_schedule] for step in range(5)])


def test_an_epsilon_that_is_raised_for_a_while_comes_back() -> None:
    program = changed(LargeEpsilon(intensity=3 / 8))
    optimizer, seen = program.optimizer, []
    optimizer.register_step_pre_hook(
        lambda optimizer, args, kwargs: seen.append(optimizer.param_groups[0]["eps"])
    )
    for step in range(6):
        program.loss(program.model, batch_of(step)).backward()
        with overridden(optimizer, 1.0, Tuning(eps_factor=10.0 if step < 3 else 1.0)):
            optimizer.step()
    assert seen == pytest.approx([1e-4] * 3 + [1e-5] * 3)
    assert optimizer.param_groups[0]["eps"] == 1e-8


def test_eps_is_held_and_given_back() -> None:
    program = changed(LargeEpsilon(intensity=3 / 8))
    assert [one["eps"] for one in used(program, 2)] == pytest.approx([1e-5] * 2)
    assert program.optimizer.param_groups[0]["eps"] == 1e-8


@pytest.mark.parametrize(
    ("setting", "key", "value"),
    [
        ("weight_decay", "weight_decay", 0.1 * 200**0.5),
        ("beta1", "betas", (0.45, 0.95)),
        ("beta2", "betas", (0.9, 0.95 * 0.55)),
    ],
)
def test_one_setting_is_another(setting: Any, key: str, value: Any) -> None:
    fault = ChangedSettings(setting=setting, intensity=0.5)
    before, after = small_program(), changed(fault)
    (change,) = fault.changes(before, 3)
    assert (change.kind, change.name) == ("configuration", setting)
    found = used(after, 2)
    assert [one[key] for one in found] == [pytest.approx(value)] * 2
    own = before.optimizer.param_groups[0]
    others = set(own) - {key, "lr", "params"}
    assert all(one[name] == own[name] for one in found for name in others)
    assert after.optimizer.param_groups[0][key] == own[key]


def test_the_clip_is_another() -> None:
    fault = ChangedSettings(setting="clip", intensity=1 / 3)
    assert changed(fault).clip == pytest.approx(0.1)
    assert fault.changes(small_program(), 0)[0].after == "0.1"


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_setting_that_the_program_lacks_is_named(setting: Any) -> None:
    model = torch.nn.Linear(2, 2)
    parts: dict[str, Any] = {"loss": None, "stream": None}
    program = Program(model=model, optimizer=torch.optim.SGD(model.parameters()), **parts)
    with pytest.raises(ConfigError, match=f"'{setting}', of which this program has none"):
        changed(ChangedSettings(setting=setting), program)


@pytest.mark.parametrize("fault", [LargeEpsilon(), LostSchedule(), ShortWarmup()])
def test_a_program_without_what_is_lost_is_refused(fault: ProgramFault) -> None:
    model = torch.nn.Linear(2, 2)
    parts: dict[str, Any] = {"loss": None, "stream": None}
    program = Program(model=model, optimizer=torch.optim.SGD(model.parameters()), **parts)
    with pytest.raises(ConfigError, match=type(fault).__name__):
        changed(fault, program)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: SustainedLr(largest=1.0), "largest is 1.0"),
        (lambda: EdgeRate(edge=1.0), "edge is 1.0"),
        (lambda: ShortWarmup(peak=0.5), "peak is 0.5"),
        (lambda: ShortWarmup(peak=4.0, steepest=3.0), "steepest is 3.0"),
        (lambda: LostSchedule(mode="gone"), "'gone'; allowed: restarted"),  # type: ignore[arg-type]
        (lambda: ChangedSettings(setting="seed"), "'seed'; allowed: weight"),  # type: ignore[arg-type]
    ],
)
def test_a_setting_that_is_not_allowed_is_named(make: Any, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        make()
