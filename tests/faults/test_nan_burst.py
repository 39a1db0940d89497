"""NanBurst: so many passes in a row, and where the NaN is born."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from foreshock.core.errors import ConfigError
from foreshock.faults.nan_burst import NanBurst


def build() -> tuple[nn.Sequential, torch.optim.SGD]:
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    return model, torch.optim.SGD(model.parameters())


def one_pass(model: nn.Module) -> tuple[bool, list[str]]:
    """Whether the loss of one pass is finite, and the paths whose gradient is all NaN."""
    model.zero_grad()
    loss = model(torch.ones(5, 3)).square().sum()
    loss.backward()
    gradients = {path: p.grad for path, p in model.named_parameters() if p.grad is not None}
    nan = [path for path, gradient in gradients.items() if gradient.isnan().all()]
    assert all(g.isfinite().all() for path, g in gradients.items() if path not in nan)
    return bool(loss.isfinite()), nan


def inject(fault: NanBurst, model: nn.Module, optimizer: Any, seed: int = 0) -> str:
    return fault.inject(model, optimizer, np.random.default_rng(seed))


@pytest.mark.parametrize("num_passes", [1, 2, 5])
def test_in_the_backward_one_gradient_is_nan_so_many_times(num_passes: int) -> None:
    model, optimizer = build()
    said = inject(NanBurst(num_passes=num_passes), model, optimizer)
    passes = [one_pass(model) for _ in range(num_passes + 2)]
    (path,) = passes[0][1]
    assert path in said
    assert passes == [(True, [path])] * num_passes + [(True, [])] * 2


@pytest.mark.parametrize("num_passes", [1, 3])
def test_in_the_forward_the_loss_is_nan_so_many_times(num_passes: int) -> None:
    model, optimizer = build()
    inject(NanBurst(num_passes=num_passes, place="forward"), model, optimizer)
    passes = [one_pass(model) for _ in range(num_passes + 2)]
    assert [finite for finite, _ in passes] == [False] * num_passes + [True] * 2
    assert all(len(nan) == 4 for _, nan in passes[:num_passes]), "every gradient is NaN"


def test_the_generator_draws_among_modules_with_parameters() -> None:
    places = set[str]()
    for seed in range(20):
        model, optimizer = build()
        said = inject(NanBurst(place="forward"), model, optimizer, seed)
        places.add(said.split()[1])
    assert places == {"0:", "2:"}


def test_the_generator_draws_among_trained_parameters() -> None:
    drawn = set[str]()
    for seed in range(20):
        model, optimizer = build()
        model[0].requires_grad_(False)
        inject(NanBurst(), model, optimizer, seed)
        drawn.update(one_pass(model)[1])
    assert drawn == {"2.weight", "2.bias"}


def test_a_probe_in_between_is_left_alone() -> None:
    model, optimizer = build()
    inject(NanBurst(num_passes=1, place="forward"), model, optimizer)
    model.eval()
    assert model(torch.ones(5, 3)).isfinite().all()
    model.train()
    assert not one_pass(model)[0]
    assert one_pass(model)[0]


def test_outputs_in_tuples_are_spoiled_and_whole_numbers_are_not() -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3, 2))

        def forward(self, x: torch.Tensor) -> Any:
            return x @ self.weight, [torch.arange(3)]

    model = Pair()
    fault = NanBurst(num_passes=1, place="forward")
    assert "the model" in inject(fault, model, torch.optim.SGD(model.parameters()))
    left, (right,) = model(torch.ones(5, 3))
    assert left.isnan().all()
    assert right.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("settings", "named"),
    [({"num_passes": 0}, "num_passes is 0"), ({"place": "loss"}, "'loss'; allowed: backward")],
)
def test_a_setting_that_is_not_allowed_is_named(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        NanBurst(**settings)
