"""The canary: the rank that computes in another precision is named, and nothing is changed."""

import copy
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FSDPModule,
    FullyShardedDataParallel,
    MixedPrecisionPolicy,
    fully_shard,
)
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from foreshock.core.errors import ConfigError, ProgramError
from foreshock.ranks.batch import share_batch
from foreshock.ranks.canary import Canary
from foreshock.ranks.isolation import canary_running, leave_no_trace
from tests.ranks.processes import CPU, on_ranks

Batch = dict[str, Any]


class Block(nn.Module):
    """Linear, BatchNorm, dropout: state in buffers, chance, and gradients of several kinds."""

    def __init__(self, *, reentrant: bool = False) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8)
        self.drop = nn.Dropout(0.2)
        self.unused = nn.Parameter(torch.ones(3))
        self._reentrant = reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self._reentrant and torch.is_grad_enabled():
            return checkpoint(self._inner, x, use_reentrant=True)
        return self._inner(x)

    def _inner(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.drop(self.norm(self.linear(x))).relu()


def net(**settings: Any) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), Block(**settings), Block(**settings), nn.Linear(8, 2))


def loss_fn(model: nn.Module, batch: Batch) -> torch.Tensor:
    noise = random.random() + np.random.rand()
    return (model(batch["x"]) - batch["y"]).square().mean() * (1 + noise)


def batch_of(rank: int) -> Batch:
    generator = torch.Generator().manual_seed(rank)
    return {
        "x": torch.randn(16, 8, generator=generator),
        "y": torch.randn(16, 2, generator=generator),
    }


def through_bf16(module: nn.Module) -> None:
    """The kernel of this rank silently computes in another precision."""

    def rounded(_: nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return tuple(one + (one.bfloat16().float() - one).detach() for one in inputs)

    module.register_forward_pre_hook(rounded)


def state_of(model: nn.Module) -> dict[str, Any]:
    """Everything that the canary may not change."""

    def bits(tensor: torch.Tensor | None) -> Any:
        if tensor is None:
            return None
        local = tensor.detach()
        local = getattr(local, "_local_tensor", local)
        return local.numpy().tobytes()

    return {
        "random": (random.getstate(), str(np.random.get_state()), bits(torch.get_rng_state())),
        "parameters": {name: bits(one) for name, one in model.named_parameters()},
        "gradients": {name: bits(one.grad) for name, one in model.named_parameters()},
        "gradient objects": {name: id(one.grad) for name, one in model.named_parameters()},
        "buffers": {name: (id(one), bits(one)) for name, one in model.named_buffers()},
        "modes": [one.training for one in model.modules()],
    }


def plain(rank: int, world: int) -> nn.Module:
    return net()


def reentrant(rank: int, world: int) -> nn.Module:
    return net(reentrant=True)


def ddp(rank: int, world: int) -> nn.Module:
    return DistributedDataParallel(net(), find_unused_parameters=True)


def ddp_views(rank: int, world: int) -> nn.Module:
    return DistributedDataParallel(net(), find_unused_parameters=True, gradient_as_bucket_view=True)


def fsdp2(rank: int, world: int) -> nn.Module:
    model = net()
    mesh = init_device_mesh("cpu", (world,))
    for block in model[1:3]:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def fsdp2_mixed(rank: int, world: int) -> nn.Module:
    """Parameters in bf16, reduction in fp32; all others stay plain."""
    model = net()
    mesh = init_device_mesh("cpu", (world,))
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16, reduce_dtype=torch.float32, output_dtype=torch.float32
    )
    for block in model[1:3]:
        fully_shard(block.linear, mesh=mesh, mp_policy=policy)
    return model


def hsdp(rank: int, world: int) -> nn.Module:
    model = net()
    mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("replicate", "shard"))
    for block in model[1:3]:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


MAKERS = [plain, reentrant, ddp, ddp_views, fsdp2, fsdp2_mixed, hsdp]


def watched(rank: int, world: int, makers: list[Callable[..., nn.Module]], odd: int) -> list[str]:
    said: list[str] = []
    for make in makers:
        said += _watched(rank, world, make, odd)
    return said


def _watched(rank: int, world: int, make: Callable[..., nn.Module], odd: int) -> list[str]:
    model = make(rank, world)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    running: list[bool] = []
    inner[0].register_forward_hook(lambda *_: running.append(canary_running()))
    canary = Canary(model, loss_fn, CPU)

    own = (
        0 if make in (plain, reentrant, fsdp2_mixed) else rank
    )  # what nobody reduces must stay alike

    def train(num_steps: int, *, watched: bool) -> list[float]:
        random.seed(own)
        np.random.seed(own)
        torch.manual_seed(own)
        losses: list[float] = []
        for step in range(num_steps):
            for micro in range(2):
                if isinstance(model, DistributedDataParallel):
                    model.require_backward_grad_sync = micro == 1
                for one in model.modules():
                    if isinstance(one, FSDPModule):  # gradients wait in the unsharded parameters
                        one.set_requires_gradient_sync(micro == 1)
                loss = loss_fn(model, batch_of(own + 10 * step + 5 * micro))
                loss.backward()
                losses.append(loss.item())
                if watched:
                    before = state_of(model)
                    report = canary.run(batch_of(rank), seed=step)
                    assert report.agreed and not report.bitwise, (make.__name__, str(report))
                    assert len(set(report.losses)) == 1 and report.compared == "gradients"
                    after = state_of(model)
                    for part, value in before.items():
                        assert after[part] == value, (make.__name__, part)
            optimizer.step()
            optimizer.zero_grad()
        return losses

    weights = copy.deepcopy(model.state_dict())
    moments = copy.deepcopy(optimizer.state_dict())
    without = train(2, watched=False)
    assert running == [False] * len(running)
    end = [state_of(model)[part] for part in ("random", "parameters", "modes")]
    model.load_state_dict(weights)
    optimizer.load_state_dict(moments)
    for group in optimizer.param_groups:
        for one in group["params"]:
            optimizer.state.pop(one, None)
    running.clear()
    assert train(2, watched=True) == without, make.__name__
    assert [state_of(model)[part] for part in ("random", "parameters", "modes")] == end
    assert running.count(True) >= 4 and running.count(False) == 4

    model.eval()
    inner[1].norm.eval()
    assert canary.run(batch_of(rank), seed=0).agreed  # in train mode, and put back
    assert not any(one.training for one in model.modules())
    model.train()

    if rank == odd:
        through_bf16(inner[3] if make is fsdp2_mixed else inner[2].linear)
    report = canary.run(batch_of(rank), seed=5)
    assert not report.agreed and report.compared == "gradients"
    assert all(one.name for one in report.bitwise)
    if world > 2:
        (one,) = report.odd
        assert one.rank == odd and 1e-4 < sorted(one.differences)[6] < 0.02, (make.__name__, one)
    return [f"{make.__name__}: {report}"]


def first_line(make: Callable[..., nn.Module], world: int, odd: int) -> str:
    return f"{make.__name__}: rank {odd} differs from the other {world - 1} in "


def test_of_two_ranks_a_difference_is_seen_and_nothing_is_changed() -> None:
    results = on_ranks(watched, 2, [fsdp2], 1)
    assert results[0] == results[1]
    for said in results[0]:
        assert "gradients differ over ranks without a majority, first (in backward order)" in said


@pytest.mark.slow
def test_of_four_the_rank_with_another_precision_is_named() -> None:
    results = on_ranks(watched, 4, MAKERS, 2)
    assert results == [results[0]] * 4
    for make, said in zip(MAKERS, results[0], strict=True):
        assert said.startswith(first_line(make, 4, 2)), said
        assert "first (in backward order) 3." in said, said  # the loss differs already


def tensor_parallel(rank: int, world: int) -> str:
    """Only ranks with the same shard are compared."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    canary = Canary(model, loss_fn, CPU)
    report = canary.run(batch_of(rank), seed=1)
    assert report.agreed and not report.bitwise and report.num_gradients == 7, str(report)
    assert all(one.grad is None for one in model.parameters())
    fully_shard(model, mesh=mesh["dp"])
    report = Canary(model, loss_fn, CPU).run(batch_of(rank), seed=1)
    assert report.agreed and not report.bitwise and report.num_gradients == 7, str(report)
    return str(report)


@pytest.mark.slow
def test_tensor_parallel_ranks_are_compared_with_their_twins() -> None:
    assert on_ranks(tensor_parallel, 4) == ["all 4 ranks compute the same, bit for bit"] * 4


def edges(rank: int, world: int) -> None:
    model = DistributedDataParallel(net(), find_unused_parameters=True)
    canary = Canary(model, loss_fn, CPU)

    # a failure on one rank is raised on all, and nothing hangs
    def failing(model: nn.Module, batch: Batch) -> torch.Tensor:
        if rank == 1:
            raise RuntimeError("out of memory, say")
        return loss_fn(model, batch)

    before = state_of(model)
    with pytest.raises(ProgramError, match=r"failed on ranks \{1: .*out of memory"):
        Canary(model, failing, CPU).run(batch_of(rank), seed=0)
    assert state_of(model) == before and not canary_running()

    # a batch that cannot be shared is refused on all
    with pytest.raises((ConfigError, ProgramError), match=r"batch\.x is a set"):
        canary.run({"x": {1, 2}}, seed=0)
    shared = share_batch(
        {
            "ids": torch.full((2, rank + 1), rank),
            "more": [(1.5, None), "ü", float("nan"), True],
            "half": torch.ones(3, dtype=torch.bfloat16),
            "none": torch.zeros(0, 4),
            "one": torch.tensor(7),
        }
        if rank == 0
        else None,
        CPU,
    )
    assert torch.equal(shared["ids"], torch.zeros(2, 1, dtype=torch.int64))
    assert shared["more"][:2] == [(1.5, None), "ü"] and shared["more"][3] is True
    assert shared["half"].dtype is torch.bfloat16 and shared["half"].sum() == 3
    assert shared["none"].shape == (0, 4) and shared["one"].item() == 7

    # a gradient that only one rank has, a non-finite one, and one of another rank's sign bit
    def missing(model: nn.Module, batch: Batch) -> torch.Tensor:
        extra = model[1].unused.sum() * 0.0 if rank == 1 else 0.0  # zero is not none
        return loss_fn(model, batch) + extra

    report = Canary(model, missing, CPU).run(batch_of(rank), seed=0)
    assert report.undecided == ("1.unused",) and len(report.bitwise) == 1

    def infinite(model: nn.Module, batch: Batch) -> torch.Tensor:
        loss = loss_fn(model, batch)
        return loss * float("nan") if rank == 1 else loss

    report = Canary(model, infinite, CPU).run(batch_of(rank), seed=0)
    assert len(report.undecided) == 12 and report.undecided[0].startswith("3.")

    # rounding noise: within the tolerance, but said
    def noisy(model: nn.Module, batch: Batch) -> torch.Tensor:
        return loss_fn(model, batch) * (1 + 1e-6 * rank)

    report = Canary(model, noisy, CPU).run(batch_of(rank), seed=0)
    assert report.agreed and len(report.bitwise) == 12
    assert str(report).startswith("all 2 ranks agree within the tolerance; 12 of 14 gradients")
    report = Canary(model, noisy, CPU, sample_elements=10).run(batch_of(rank), seed=0)
    assert report.agreed and report.sampled
    assert not Canary(model, noisy, CPU, tolerance=1e-8).run(batch_of(rank), seed=0).agreed

    # FSDP1 gives no gradient before the reduction: losses are compared, and that is said
    old = FullyShardedDataParallel(nn.Linear(8, 2), device_id=CPU)
    report = Canary(old, loss_fn, CPU).run(batch_of(rank), seed=0)
    assert report.compared == "losses" and report.agreed
    report = Canary(old, noisy, CPU, tolerance=1e-8).run(batch_of(rank), seed=0)
    assert report.undecided == ("loss",)


def test_edges_over_two_ranks() -> None:
    on_ranks(edges, 2)


def test_an_optimizer_in_the_backward_cannot_run_by_accident() -> None:
    model = net(reentrant=True)
    before = state_of(model)
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda one: one.data.zero_())
    with pytest.raises(ProgramError, match="after its gradient is accumulated"):
        Canary(model, loss_fn, CPU).run(batch_of(0), seed=0)
    assert state_of(model) == before
    model = net()
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda one: one.data.zero_())
    before = state_of(model)
    assert Canary(model, loss_fn, CPU).run(batch_of(0), seed=0).agreed
    assert state_of(model) == before


def test_generators_and_replaced_buffers_are_put_back() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))
            self.register_buffer("seen", torch.zeros(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.seen = self.seen + 1  # a new object
            return x * self.weight * torch.rand(1, generator=generator)

    generator = torch.Generator().manual_seed(3)
    model = Counting()
    state, buffer = generator.get_state(), model.seen
    with leave_no_trace(model, [generator]):
        model(torch.ones(1)).sum().backward()
        assert model.seen.item() == 1 and model.weight.grad is not None
    assert torch.equal(generator.get_state(), state) and model.seen is buffer
    assert model.weight.grad is None and buffer.item() == 0
