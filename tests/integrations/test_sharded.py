"""FSDP2 under Accelerate and the Trainer, on two processes.

Accelerate shards on GPUs only, though its preparation of a model works on a CPU too: it is told
here to do so. What prepares, shards, clips and joins gradients is its own.
"""

import os

import pytest
import torch

from tests.integrations import scenario
from tests.ranks.processes import on_ranks

accelerate = pytest.importorskip("accelerate")
pytestmark = pytest.mark.slow


def join(rank, world):
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}


def told_to_shard(accelerator):
    accelerator.state.distributed_type = accelerate.DistributedType.FSDP
    accelerator.state.fsdp_plugin = accelerate.FullyShardedDataParallelPlugin(
        fsdp_version=2, cpu_ram_efficient_loading=False
    )
    assert accelerator.is_fsdp2
    return accelerator


def whole(model):
    """The model as it would be without shards."""
    twin = scenario.model()
    assert all(hasattr(one, "full_tensor") for one in model.parameters())
    twin.load_state_dict({name: one.full_tensor() for name, one in model.state_dict().items()})
    return twin


def sharding():
    return told_to_shard(accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2))


def prepared(*, dropout=0.0):
    from tests.integrations import test_accelerate as tried  # noqa: PLC0415

    accelerator = sharding()
    return tried, accelerator, tried.prepared(accelerator, dropout=dropout)


def with_accelerate(rank, world, folder):
    join(rank, world)
    tried, accelerator, parts = prepared()
    guard = tried.guarded(accelerator, parts, folder / "run")
    scenario.train(guard, parts[0])
    scenario.check(
        folder / "run", whole(parts[0]), lambda rows: whole(tried.untouched(sharding())(rows))
    )
    return guard.book.num_rollbacks


def test_accelerate(tmp_path):
    found = on_ranks(with_accelerate, 2, tmp_path)
    assert found[0] == found[1] > 0


def left_and_taken_up(rank, world, folder):
    join(rank, world)

    def run(name, leave_at=None):
        torch.manual_seed(scenario.SEED + rank)
        tried, accelerator, parts = prepared(dropout=0.1)
        torch.manual_seed(scenario.SEED + rank)
        with tried.guarded(accelerator, parts, folder / name) as guard:
            for batch in guard:
                guard.step(parts[0](**batch)["loss"])
                if guard.step_number == leave_at:
                    return None
            return guard.digest()

    expected = run("whole")
    run("run", leave_at=75)
    return expected, run("run")


def test_accelerate_goes_on_exactly(tmp_path):
    for expected, found in on_ranks(left_and_taken_up, 2, tmp_path):
        assert found == expected


def with_the_trainer(rank, world, folder):
    from foreshock.integrations.hf import ForeshockCallback  # noqa: PLC0415
    from tests.integrations import test_hf as tried  # noqa: PLC0415

    join(rank, world)
    size = scenario.BATCH // world

    def trainer(name, rows, **options):
        options["per_device_train_batch_size"] = size
        made = tried.trainer(folder / name, scenario.model(), rows, **options)
        told_to_shard(made.accelerator)
        made.is_fsdp_enabled = True
        return made

    guarded = trainer("out", scenario.Rows())
    callback = ForeshockCallback(folder / "run", recipe=scenario.recipe()).attach(guarded)
    guarded.train()

    def untouched(batches):
        rows = scenario.Rows()
        flat = [rows[row] for batch in batches for row in batch[rank * size : (rank + 1) * size]]
        plain = trainer("twin", flat, max_steps=len(batches))
        plain.get_train_dataloader = lambda: torch.utils.data.DataLoader(
            flat, size, collate_fn=plain.data_collator
        )
        plain.train()
        return whole(plain.model)

    scenario.check(folder / "run", whole(guarded.model), untouched)
    return callback.guard.book.num_rollbacks


def test_the_trainer(tmp_path):
    pytest.importorskip("transformers")
    found = on_ranks(with_the_trainer, 2, tmp_path)
    assert found[0] == found[1] > 0
