"""LrJump: which updates are larger, and what is left of it afterwards."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from foreshock.core.errors import ConfigError
from foreshock.faults.lr_jump import LrJump


class Run:
    """SGD on a sum: every update is the rate times a gradient of one, so it shows the rate."""

    def __init__(self, lr: Any = 0.5, schedule: Any = None) -> None:
        self.model = nn.Linear(1, 1, bias=False).double()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=lr)
        self.schedule = schedule(self.optimizer) if schedule is not None else None

    def inject(self, fault: LrJump) -> str:
        return fault.inject(self.model, self.optimizer, np.random.default_rng(0))

    def step(self, *, skip: bool = False, micro_steps: int = 1) -> tuple[float, float]:
        """The rate as the group shows it before the update, and the rate the update had."""
        before = self.model.weight.item()
        self.optimizer.zero_grad()
        for _ in range(micro_steps):
            (self.model(torch.ones(1, 1).double()).sum() / micro_steps).backward()
        shown = float(self.optimizer.param_groups[0]["lr"])
        if not skip:
            self.optimizer.step()
        if self.schedule is not None:
            self.schedule.step()
        return shown, before - self.model.weight.item()

    def updates(self, number: int, **options: Any) -> list[float]:
        return [round(self.step(**options)[1], 9) for _ in range(number)]


def falling(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LambdaLR:
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 - 0.1 * step)


def chained(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)


def test_so_many_updates_are_larger_and_then_none() -> None:
    run = Run()
    assert "multiplied by 4 in 2 update(s)" in run.inject(LrJump(factor=4.0, num_updates=2))
    assert run.updates(4) == [2.0, 2.0, 0.5, 0.5]


def test_without_a_number_it_stays() -> None:
    run = Run()
    assert "from now on" in run.inject(LrJump(factor=4.0, num_updates=None))
    assert run.updates(50) == [2.0] * 50


def test_the_group_shows_the_rate_before_the_update_and_its_own_after_it() -> None:
    run = Run()
    run.inject(LrJump(factor=4.0, num_updates=None))
    shown, used = run.step()
    assert (shown, round(used, 9)) == (2.0, 2.0)
    assert run.optimizer.param_groups[0]["lr"] == 0.5


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [(falling, [0.5, 0.45, 0.4, 0.35]), (chained, [0.5, 0.25, 0.125, 0.0625])],
)
def test_a_schedule_goes_on_as_if_nothing_had_been(schedule: Any, rates: list[float]) -> None:
    run = Run(schedule=schedule)
    run.inject(LrJump(factor=10.0, num_updates=2))
    expected = [10 * rates[0], 10 * rates[1], rates[2], rates[3]]
    assert run.updates(4) == pytest.approx(expected)


def test_micro_steps_raise_it_once() -> None:
    run = Run()
    run.inject(LrJump(factor=4.0, num_updates=1))
    assert run.updates(2, micro_steps=3) == [2.0, 0.5]


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
def test_a_skipped_update_does_not_count_and_does_not_raise_it_twice() -> None:
    for schedule in (None, falling):
        run = Run(schedule=schedule)
        run.inject(LrJump(factor=4.0, num_updates=1))
        run.step(skip=True)
        rate = 0.5 if schedule is None else 0.45
        assert run.updates(1) == pytest.approx([4 * rate])
        assert run.updates(1) == pytest.approx([0.5 if schedule is None else 0.4])


def test_a_probe_leaves_the_rate_alone() -> None:
    run = Run()
    run.inject(LrJump(factor=4.0, num_updates=1))
    run.model.eval()
    run.model(torch.ones(1, 1).double())
    assert run.optimizer.param_groups[0]["lr"] == 0.5
    run.model.train()
    assert run.updates(2) == [2.0, 0.5]


def test_a_state_loaded_in_between_does_not_end_it() -> None:
    """A rollback puts new groups into the optimizer: the rate is looked for there."""
    run = Run()
    state = run.optimizer.state_dict()
    run.inject(LrJump(factor=4.0, num_updates=3))
    run.step()
    run.optimizer.load_state_dict(state)
    assert run.updates(3) == [2.0, 2.0, 0.5]


def test_a_rate_that_is_a_tensor_is_not_changed_in_place() -> None:
    rate = torch.tensor(0.5)
    run = Run(lr=rate)
    run.inject(LrJump(factor=4.0, num_updates=1))
    assert run.updates(2) == [2.0, 0.5]
    assert rate.item() == 0.5


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"factor": 0.0}, "factor is 0.0"),
        ({"factor": float("nan")}, "factor is nan"),
        ({"factor": float("inf")}, "factor is inf"),
        ({"num_updates": 0}, "num_updates is 0"),
    ],
)
def test_a_setting_that_is_not_allowed_is_named(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        LrJump(**settings)
