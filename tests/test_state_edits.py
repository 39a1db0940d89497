"""Moments set to zero and noise on weights: exact, repeatable, and nothing else touched."""

import math
from typing import Any

import pytest
import torch
from torch import nn

from foreshock.attachment import site_of
from foreshock.core.override import MomentReset, WeightNoise
from foreshock.state_edits import MOMENTS, add_noise, make_edit, places_of, reset_moments, seed_of
from foreshock.update import trained_parameters

OPTIMIZERS: dict[str, Any] = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1),
    "fused adamw": lambda p: torch.optim.AdamW(p, lr=0.1, fused=True),
    "amsgrad": lambda p: torch.optim.AdamW(p, lr=0.1, amsgrad=True),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.1),
    "radam": lambda p: torch.optim.RAdam(p, lr=0.1),
    "adamax": lambda p: torch.optim.Adamax(p, lr=0.1),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "fused sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.1, momentum=0.9, centered=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "adadelta": lambda p: torch.optim.Adadelta(p, lr=0.1),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=0.1),
}


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(9, 8)
        layer = lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)  # noqa: E731
        self.blocks = nn.ModuleList([layer() for _ in range(2)])
        self.head = nn.Linear(8, 9)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden)


def small() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3, bias=False))


def give(model: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_reset_optimizer_is_a_fresh_one(name: str) -> None:
    model = small()
    optimizer = OPTIMIZERS[name](model.parameters())
    for seed in range(5):
        give(model, seed)
        optimizer.step()
    assert reset_moments(optimizer, list(model.parameters())) == 3
    fresh = small()
    fresh.load_state_dict(model.state_dict())
    other = OPTIMIZERS[name](fresh.parameters())
    for seed in range(10, 14):
        for one, by in ((model, optimizer), (fresh, other)):
            give(one, seed)
            by.step()
        for ours, theirs in zip(model.parameters(), fresh.parameters(), strict=True):
            assert torch.equal(ours, theirs)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_count_is_kept_where_that_is_asked_for(name: str) -> None:
    model = small()
    optimizer = OPTIMIZERS[name](model.parameters())
    for seed in range(5):
        give(model, seed)
        optimizer.step()
    first, *rest = model.parameters()
    kept = {key: torch.as_tensor(v).clone() for key, v in optimizer.state[rest[0]].items()}
    counted = {k: v for k, v in optimizer.state[first].items() if k in ("step", "mu_product")}
    counted = {key: float(value) for key, value in counted.items()}
    assert reset_moments(optimizer, [first], restart_count=False) == 1
    for key, value in optimizer.state[first].items():
        if key in counted:
            assert float(value) == counted[key]
        else:
            assert key in MOMENTS
            assert not value.any()
    for key, value in optimizer.state[rest[0]].items():
        assert torch.equal(torch.as_tensor(value), kept[key])


def test_zero_moments_without_the_count_step_too_far() -> None:
    """The closed form in the docstring of the action: (1 - beta1) / sqrt(1 - beta2)."""
    for restart, expected in ((True, 1.0), (False, 0.1 / math.sqrt(0.001))):
        weight = nn.Parameter(torch.zeros(1, dtype=torch.float64))
        optimizer = torch.optim.Adam([weight], lr=1.0, eps=0.0)
        optimizer.state[weight] = {
            "step": torch.tensor(1e6),
            "exp_avg": torch.ones(1, dtype=torch.float64),
            "exp_avg_sq": torch.ones(1, dtype=torch.float64),
        }
        reset_moments(optimizer, [weight], restart_count=restart)
        weight.grad = torch.full((1,), 3.0, dtype=torch.float64)
        optimizer.step()
        assert -weight.item() == pytest.approx(expected, rel=1e-6)


def test_nothing_is_made_where_there_is_no_state() -> None:
    model = small()
    optimizer = torch.optim.AdamW(model.parameters())
    assert reset_moments(optimizer, list(model.parameters())) == 0
    assert not optimizer.state


def test_what_is_no_moment_stays() -> None:
    weight = nn.Parameter(torch.ones(3))
    for kind in (torch.optim.Rprop, torch.optim.ASGD):
        optimizer = kind([weight])
        weight.grad = torch.ones(3)
        optimizer.step()
        before = {key: torch.as_tensor(v).clone() for key, v in optimizer.state[weight].items()}
        assert reset_moments(optimizer, [weight]) == 0
        for key, value in optimizer.state[weight].items():
            assert torch.equal(torch.as_tensor(value), before[key])


def site(model: nn.Module) -> Any:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.arange(9).reshape(1, 9)).square().sum().backward()
    optimizer.step()
    return site_of(model, optimizer, trained_parameters(model, optimizer))


@pytest.mark.parametrize(
    ("groups", "holds"),
    [
        ((), lambda path: True),
        (("head",), lambda path: path.startswith("head.")),
        (("blocks.1",), lambda path: path.startswith("blocks.1.")),
        (("blocks.0.self_attn", "embedding"), lambda path: "0.self_attn" in path or "emb" in path),
        (("block",), lambda path: False),
        (("blocks.1.self_attn", "blocks"), lambda path: path.startswith("blocks.")),
    ],
)
def test_named_groups_are_reset_and_no_others(groups: tuple[str, ...], holds: Any) -> None:
    torch.manual_seed(0)
    where = site(Blocks())
    expected = [place for place, (path, _) in enumerate(where.parameters) if holds(path)]
    assert places_of(where, groups) == expected
    make_edit(where, MomentReset(first_step=1, groups=groups))
    for path, parameter in where.parameters:
        state = where.optimizer.state[parameter]
        assert (float(state["step"]) == 0) == bool(holds(path))
        assert (not state["exp_avg_sq"].any()) == bool(holds(path))


def test_noise_has_the_size_asked_for_and_follows_from_the_seed() -> None:
    torch.manual_seed(0)
    tensors = [torch.randn(300, 400) * 7, torch.randn(50_000), torch.zeros(9), torch.ones(())]
    clean = [one.clone() for one in tensors]
    add_noise(tensors, 0.01, seed=5)
    for one, before in zip(tensors[:2], clean[:2], strict=True):
        rms = before.square().mean().sqrt().item()
        assert (one - before).std().item() == pytest.approx(0.01 * rms, rel=0.02)
        assert (one - before).mean().abs().item() < 5 * 0.01 * rms / math.sqrt(one.numel())
    assert not tensors[2].any()
    assert 0 < abs(tensors[3].item() - 1) < 0.1
    again = [one.clone() for one in clean]
    add_noise(again, 0.01, seed=5)
    assert all(torch.equal(one, other) for one, other in zip(tensors, again, strict=True))
    other = [one.clone() for one in clean]
    add_noise(other, 0.01, seed=6)
    assert not torch.equal(other[0], tensors[0])
    twins = [torch.ones(1000), torch.ones(1000)]
    add_noise(twins, 0.01, seed=5)
    assert not torch.equal(*twins)  # each tensor has noise of its own


def test_noise_by_hand() -> None:
    tensor = torch.tensor([3.0, 4.0])
    drawn = torch.randn(2, generator=torch.Generator().manual_seed(seed_of("8/0")))
    add_noise([tensor], 0.1, seed=8)
    expected = torch.tensor([3.0, 4.0]) + drawn * 0.1 * math.sqrt(12.5)
    torch.testing.assert_close(tensor, expected, rtol=1e-6, atol=0)


def test_noise_draws_from_no_generator_of_the_run() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    add_noise([torch.ones(5, dtype=torch.bfloat16), torch.ones(5, dtype=torch.complex64)], 0.5, 1)
    assert torch.equal(torch.get_rng_state(), before)


def test_noise_keeps_gradients_and_graphs_out_of_it() -> None:
    model = small()
    give(model, 1)
    grads = [one.grad.clone() for one in model.parameters()]
    make_edit(
        site_of(model, (o := torch.optim.SGD(model.parameters())), trained_parameters(model, o)),
        WeightNoise(first_step=1, relative_std=0.01, seed=1),
    )
    for parameter, grad in zip(model.parameters(), grads, strict=True):
        assert parameter.is_leaf
        assert parameter.requires_grad
        assert torch.equal(parameter.grad, grad)
