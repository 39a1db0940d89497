"""The gate and the update: exact whether made or skipped."""

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from foreshock.core.action import Capability
from foreshock.core.errors import ConfigError
from foreshock.update import Update, trained_parameters

pytestmark = pytest.mark.usefixtures("way")

INF = math.inf

Make = Callable[[Any], torch.optim.Optimizer]

OPTIMIZERS: dict[str, Make] = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1),
    "fused adamw": lambda p: torch.optim.AdamW(p, lr=0.1, fused=True),
    "fused amsgrad": lambda p: torch.optim.AdamW(p, lr=0.1, fused=True, amsgrad=True),
    "fused adam": lambda p: torch.optim.Adam(p, lr=0.1, fused=True, weight_decay=0.1),
    "sgd momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "fused sgd momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
    "fused sgd": lambda p: torch.optim.SGD(p, lr=0.1, fused=True, weight_decay=0.1),
    "fused adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1, fused=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.1, momentum=0.9, centered=True),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=0.1),
    "adamw, tensor lr": lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.1), fused=True),
}
every_optimizer = pytest.mark.parametrize("name", OPTIMIZERS)


class Trained:
    """Three tensors under an optimizer, the same each time it is made."""

    def __init__(self, make: Make, **options: Any) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3, bias=False))
        self.optimizer = make(self.model.parameters())
        self.parameters = trained_parameters(self.model, self.optimizer)
        self.update = Update(self.optimizer, self.parameters, **options)

    def give(self, seed: int, scale: float = 1.0) -> None:
        generator = torch.Generator().manual_seed(seed)
        for _, parameter in self.parameters:
            parameter.grad = torch.randn(parameter.shape, generator=generator) * scale

    def step(self, gate_limit: float = INF, lr_factor: float = 1.0) -> bool:
        _, norm = self.update.gradient_sizes()
        return bool(self.update.commit_or_skip(norm, gate_limit, lr_factor))

    def state(self) -> dict[str, torch.Tensor]:
        found = {path: one.detach().clone() for path, one in self.parameters}
        for place, moments in self.optimizer.state_dict()["state"].items():
            for key, value in moments.items():
                if value is not None:
                    found[f"{place}.{key}"] = torch.as_tensor(value).clone()
        return found


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def test_norms_equal_torchs() -> None:
    trained = Trained(OPTIMIZERS["adamw"])
    trained.give(1)
    (norms, *_), norm = trained.update.gradient_sizes()
    grads = [parameter.grad for _, parameter in trained.parameters]
    assert norms.dtype == torch.float64
    assert norms.tolist() == pytest.approx([one.norm().item() for one in grads], rel=1e-6)
    total = torch.nn.utils.get_total_norm(grads)
    assert norm.item() == pytest.approx(total.item(), rel=1e-6)
    assert norm.dtype == torch.float32


def test_what_has_no_gradient_counts_as_zero() -> None:
    trained = Trained(OPTIMIZERS["adamw"])
    (norms, *_), norm = trained.update.gradient_sizes()
    assert norms.tolist() == [0, 0, 0] and norm == 0
    trained.give(1)
    trained.parameters[1][1].grad = None
    (norms, *_), _ = trained.update.gradient_sizes()
    assert norms[1] == 0 and norms[0] > 0 and norms[2] > 0
    before = trained.state()["0.bias"]
    assert trained.step()
    assert torch.equal(trained.state()["0.bias"], before)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e30])
@every_optimizer
def test_clipping_equals_torchs(name: str, scale: float) -> None:
    ours, theirs = Trained(OPTIMIZERS[name], clip=0.5), Trained(OPTIMIZERS[name])
    for seed in range(5):
        ours.give(seed, scale)
        theirs.give(seed, scale)
        assert ours.step()
        grads = [parameter.grad for _, parameter in theirs.parameters]
        norm = torch.sqrt(sum(one.double().square().sum() for one in grads)).float()
        torch.nn.utils.clip_grads_with_norm_(
            [parameter for _, parameter in theirs.parameters], 0.5, norm
        )
        theirs.optimizer.step()
    expected = theirs.state()
    for key, value in ours.state().items():
        torch.testing.assert_close(value, expected[key], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("bad", [math.nan, INF, -INF, "limit", "overflow"])
@every_optimizer
def test_a_skip_leaves_everything_bit_identical(name: str, bad: Any, first: bool) -> None:
    trained, other = Trained(OPTIMIZERS[name], clip=1.0), Trained(OPTIMIZERS[name], clip=1.0)
    if not first:
        for seed in range(3):
            for one in (trained, other):
                one.give(seed)
                assert one.step()
    before = trained.state()
    trained.give(9)
    gradient = trained.parameters[1][1].grad
    match bad:
        case "limit":
            limit = 1e-3
        case "overflow":  # every entry is finite, their norm is beyond fp32
            gradient[:] = 3e38
            limit = INF
        case _:
            gradient[3] = bad
            limit = INF
    assert not trained.step(gate_limit=limit)
    assert same(trained.state(), before)
    assert all(parameter.grad is None for _, parameter in trained.parameters)
    for seed in (10, 11):  # and the run goes on as if the step had never been
        for one in (trained, other):
            one.give(seed)
            assert one.step()
    assert same(trained.state(), other.state())


def test_the_gate_commits_at_its_limit_and_not_above() -> None:
    trained = Trained(OPTIMIZERS["adamw"])
    trained.give(1)
    _, norm = trained.update.gradient_sizes()
    assert not trained.update.commit_or_skip(norm, norm.item() * (1 - 1e-6), 1.0)
    trained.give(1)
    assert trained.step(gate_limit=norm.item())


@every_optimizer
def test_the_rate_override_lasts_one_step_only(name: str) -> None:
    ours, theirs = Trained(OPTIMIZERS[name]), Trained(OPTIMIZERS[name])
    for group in theirs.optimizer.param_groups:
        group["lr"] = group["lr"] * 0.25
    for seed in range(2):
        ours.give(seed)
        theirs.give(seed)
        assert ours.step(lr_factor=0.25)
        theirs.optimizer.step()
    expected = theirs.state()
    for key, value in ours.state().items():
        torch.testing.assert_close(value, expected[key], rtol=1e-6, atol=1e-7)
    assert float(ours.optimizer.param_groups[0]["lr"]) == pytest.approx(0.1)
    assert ours.update.lr(0.25) == pytest.approx(0.025)


@pytest.mark.parametrize("name", ["adamw", "fused adamw"])
def test_rates_come_back_when_the_optimizer_raises(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = Trained(OPTIMIZERS[name], clip=1.0)
    trained.give(0)
    trained.step()
    trained.give(1)

    def fail() -> None:
        raise RuntimeError("no")

    monkeypatch.setattr(trained.optimizer, "step", fail)
    with pytest.raises(RuntimeError, match="no"):
        trained.step(lr_factor=0.5)
    assert trained.optimizer.param_groups[0]["lr"] == 0.1
    assert not hasattr(trained.optimizer, "found_inf")
    assert not hasattr(trained.optimizer, "grad_scale")


def test_groups_keep_their_own_rates() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    groups = [
        {"params": model[0].parameters(), "lr": 0.1},
        {"params": model[1].parameters(), "lr": 0.01},
    ]
    optimizer = torch.optim.SGD(groups)
    update = Update(optimizer, trained_parameters(model, optimizer))
    before = copy.deepcopy(model.state_dict())
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    _, norm = update.gradient_sizes()
    assert update.commit_or_skip(norm, INF, 0.5)
    moved = {key: (before[key] - value).max().item() for key, value in model.state_dict().items()}
    assert moved == pytest.approx(
        {"0.weight": 0.05, "0.bias": 0.05, "1.weight": 0.005, "1.bias": 0.005}, rel=1e-4
    )
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.01]


@pytest.mark.parametrize("clip", [None, 0.1])
def test_sparse_gradients_are_clipped_as_dense_ones(clip: float | None) -> None:
    found = []
    for sparse in (False, True):
        torch.manual_seed(0)
        model = nn.Embedding(9, 4, sparse=sparse)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        update = Update(optimizer, trained_parameters(model, optimizer), clip=clip)
        update.backward(model(torch.tensor([1, 1, 1, 5])).sum())
        _, norm = update.gradient_sizes()
        assert norm.item() == pytest.approx(math.sqrt(4 * (9 + 1)))
        assert update.commit_or_skip(norm, INF, 1.0)
        found.append(model.weight.detach())
    torch.testing.assert_close(found[0], found[1])


def test_an_overflow_under_a_scaler_is_skipped_and_the_scale_falls() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**15, growth_interval=2)
    trained = Trained(OPTIMIZERS["adamw"], scaler=scaler, clip=1.0)
    plain = Trained(OPTIMIZERS["adamw"], clip=1.0)
    x = torch.randn(4, 5)
    for one in (trained, plain):
        one.update.backward(one.model(x).square().mean())
        assert one.step()
    for key, value in plain.state().items():
        torch.testing.assert_close(trained.state()[key], value, rtol=1e-5, atol=1e-6)
    before = trained.state()
    trained.update.backward(trained.model(x * 1e30).square().mean())
    assert not trained.step()
    assert same(trained.state(), before)
    assert scaler.get_scale() == 2.0**14


def test_only_fused_optimizers_need_no_wait() -> None:
    for name, make in OPTIMIZERS.items():
        capable = Capability.SKIP_WITHOUT_HOST_WAIT in Trained(make).update.capabilities
        assert capable == ("fused" in name or "tensor" in name), name


def test_what_cannot_be_gated_is_refused() -> None:
    parameter = nn.Parameter(torch.ones(2))
    named = [("w", parameter)]
    with pytest.raises(ConfigError, match="LBFGS"):
        Update(torch.optim.LBFGS([parameter]), named)
    for clip in (0.0, -1.0, math.nan):
        with pytest.raises(ConfigError, match="clip is"):
            Update(torch.optim.SGD([parameter], lr=0.1), named, clip=clip)


def test_what_is_trained() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    model[0].bias.requires_grad_(False)
    stray = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([{"params": [*model.parameters()]}, {"params": [stray]}], lr=0.1)
    assert [path for path, _ in trained_parameters(model, optimizer)] == [
        "0.weight", "1.bias", "outside.2",
    ]  # fmt: skip
    frozen = nn.Linear(2, 2).requires_grad_(False)
    with pytest.raises(ConfigError, match="no parameter"):
        trained_parameters(frozen, torch.optim.SGD(frozen.parameters(), lr=0.1))
