"""The dtype of reductions as they run: against what each wrapper was told to do."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from foreshock.ranks.reduction_dtype import ReductionWatch, Traffic
from tests.ranks.processes import CPU, on_ranks

_ELEMENTS = 2 * (8 * 8 + 8)


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))


def sharded(mesh: Any, **policy: torch.dtype) -> nn.Module:
    model = net()
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh, mp_policy=MixedPrecisionPolicy(**policy))
    return fully_shard(model, mesh=mesh, mp_policy=MixedPrecisionPolicy(**policy))


def seen_in(model: nn.Module) -> ReductionWatch:
    x = torch.ones(4, 8)
    model(x).float().square().mean().backward()  # DDP rebuilds its buckets after the first
    with ReductionWatch() as watch:
        model(x).float().square().mean().backward()
    return watch


def traffic(num_calls: int, elements: int, dtype: torch.dtype) -> dict[torch.dtype, Traffic]:
    return {dtype: Traffic(num_calls=num_calls, num_bytes=elements * dtype.itemsize)}


def bf16_hook(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """As PyTorch's own, which it allows on NCCL only."""
    compressed = bucket.buffer().to(torch.bfloat16).div_(dist.get_world_size())
    future = dist.all_reduce(compressed, async_op=True).get_future()

    def decompress(done: Any) -> torch.Tensor:
        return bucket.buffer().copy_(done.value()[0])

    return future.then(decompress)


def watched(rank: int, world: int) -> None:
    fp32, bf16, fp16 = torch.float32, torch.bfloat16, torch.float16
    assert seen_in(DistributedDataParallel(net())).seen == {
        "all_reduce": traffic(1, _ELEMENTS, fp32)
    }
    compressed = DistributedDataParallel(net())
    compressed.register_comm_hook(None, bf16_hook)
    watch = seen_in(compressed)
    assert watch.seen == {"all_reduce": traffic(1, _ELEMENTS, bf16)}
    assert watch.dtypes == (bf16,)
    assert str(watch) == f"all_reduce in bfloat16: 1 calls, {2 * _ELEMENTS} bytes"
    own = DistributedDataParallel(net())
    own.register_comm_hook(None, default_hooks.fp16_compress_hook)
    assert seen_in(own).seen == {"all_reduce": traffic(1, _ELEMENTS, fp16)}

    mesh = init_device_mesh("cpu", (world,))
    for policy, dtype in [
        ({}, fp32),
        ({"param_dtype": bf16}, bf16),
        ({"param_dtype": bf16, "reduce_dtype": fp32}, fp32),
        ({"reduce_dtype": bf16}, bf16),
    ]:
        watch = seen_in(sharded(mesh, **policy))
        assert watch.seen == {"reduce_scatter": traffic(2, _ELEMENTS, dtype)}, policy

    model = sharded(mesh, reduce_dtype=bf16)
    with ReductionWatch() as watch:
        model.set_requires_gradient_sync(False)
        model(torch.ones(4, 8)).square().mean().backward()
    assert watch.seen == {} and str(watch) == "no reduction was seen"

    old = FullyShardedDataParallel(net(), device_id=CPU)
    assert list(seen_in(old).seen) == ["reduce_scatter"]

    # the values stay the same
    model = net()
    results = []
    for seeing in (False, True):
        wrapped = DistributedDataParallel(model)
        model.zero_grad()
        if seeing:
            with ReductionWatch():
                wrapped(torch.ones(4, 8)).sum().backward()
        else:
            wrapped(torch.ones(4, 8)).sum().backward()
        results.append([one.grad.clone() for one in model.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


def test_what_ddp_and_fsdp_reduce_in() -> None:
    on_ranks(watched, 2)


def hybrid(rank: int, world: int) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    seen = seen_in(sharded(mesh, reduce_dtype=torch.bfloat16)).seen
    assert seen == {
        "reduce_scatter": traffic(2, _ELEMENTS, torch.bfloat16),
        "all_reduce": traffic(2, _ELEMENTS // 2, torch.bfloat16),
    }


@pytest.mark.slow
def test_what_hybrid_sharding_reduces_in() -> None:
    on_ranks(hybrid, 4)


def test_nothing_is_reduced_by_one_process() -> None:
    with ReductionWatch() as watch:
        net()(torch.ones(4, 8)).sum().backward()
    assert watch.seen == {} and watch.dtypes == ()
