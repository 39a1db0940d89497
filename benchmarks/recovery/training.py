"""The run that is killed: a small GPT on real text, with two incidents on its way.

One weight becomes NaN before step 14, which ends in a rollback; from step 41 on ten batches
come in another alphabet, which ends in a rollback and a quarantine. Snapshots are dense, so
that a moment drawn at random is often one of a snapshot, a rollback, a restore or a record.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

from foreshock.core.errors import Halted
from foreshock.data.stream import Stage, Stream
from foreshock.driver import seed_everything
from foreshock.durable import Disk, RealDisk
from foreshock.guard import Guard
from foreshock.lab.gpt import GPT, GPTConfig
from foreshock.lab.programs import next_byte_loss
from foreshock.lab.text import TextWindows, load_text
from foreshock.ranks.ordered_sum import ordered_mean
from foreshock.recipes import Cadence, Recipe, standard

Layout = Literal["one", "ddp", "fsdp2"]

BATCH = 8
CONTEXT = 32
STEPS = 70
NUM_BEFORE = 40 * BATCH
NUM_FOREIGN = 10 * BATCH
NUM_AFTER = 40 * BATCH
NUM_WINDOWS = NUM_BEFORE + NUM_FOREIGN + NUM_AFTER
HURT_AFTER_STEP = 13

CADENCE = Cadence(memory_steps=5, memory_keep=3, disk_steps=10, disk_keep=2)


class Ended(NamedTuple):
    """What a run came to, as one of its ranks says.

    Attributes:
        digest: of the whole state at the end.
        halted: the handover note, or None.
        step: optimizer steps taken.
    """

    digest: str
    halted: str | None
    step: int


def text_windows(path: Path) -> None:
    """Write the text of the runs to a file, so that each process need not gather it anew."""
    size = NUM_WINDOWS * (CONTEXT + 1)
    text = load_text("code", limit_bytes=2 * size, seed=0).train[:size]
    path.write_bytes(text)


def stages(text: bytes) -> list[Stage]:
    """Clean windows, windows in another alphabet, clean windows; each is trained once."""
    windows = TextWindows(text, CONTEXT).windows
    table = np.random.default_rng(0).permutation(256).astype(np.uint8)
    foreign = table[windows[NUM_BEFORE : NUM_BEFORE + NUM_FOREIGN]]
    parts = {
        "before": windows[:NUM_BEFORE],
        "foreign": foreign,
        "after": windows[NUM_BEFORE + NUM_FOREIGN :],
    }
    return [
        Stage(name=name, sources={name: TextWindows(part.tobytes(), CONTEXT)})
        for name, part in parts.items()
    ]


def recipe(cadence: Cadence = CADENCE) -> Recipe:
    """The standard recipe at a dense cadence; without rules at the door: they would refuse it."""
    return dataclasses.replace(standard({"rules": False}), cadence=cadence)


def model_of(width: int = 32, depth: int = 2, *, dropout: float = 0.1, seed: int = 0) -> GPT:
    """A small GPT over bytes."""
    config = GPTConfig(width=width, depth=depth, heads=2, context=CONTEXT, dropout=dropout)
    return GPT(config, torch.Generator().manual_seed(seed))


def laid_out(model: GPT, layout: Layout, world: int) -> nn.Module:
    """The model on its ranks, with sums over ranks that a restart does not round otherwise."""
    if layout == "ddp":
        replica = nn.parallel.DistributedDataParallel(model)
        if world > 2:
            replica.register_comm_hook(None, ordered_mean)
        return replica
    if layout == "fsdp2":
        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
    return model


def train(
    rank: int,
    world: int,
    run_dir: Path,
    text: bytes,
    *,
    layout: Layout = "one",
    cadence: Cadence = CADENCE,
    disk: Disk | None = None,
    resume: bool | None = None,
    before_step: Callable[[Guard], None] | None = None,
    timeout_secs: float = 60.0,
) -> Ended:
    """Begin the run or take it up, and train it to its end.

    Args:
        rank: of this process, in the default process group if `world` is above 1.
        world: number of ranks.
        run_dir: where the run is recorded.
        text: what `text_windows` wrote.
        layout: how the model lies on the ranks.
        cadence: when snapshots are taken.
        disk: where files go; the real disk by default.
        resume: as `Guard` takes it.
        before_step: called before each step.
        timeout_secs: how long ranks wait for each other.
    """
    seed_everything(100 + rank)  # dropout is each rank's own
    gpt = model_of()
    model = laid_out(gpt, layout, world)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    guard = Guard(
        model,
        optimizer,
        Stream(stages(text), batch_size=BATCH, seed=0, rank=rank, world_size=world),
        run_dir=run_dir,
        scheduler=torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 2 * STEPS),
        clip=1.0,
        recipe=recipe(cadence),
        name="benchmarks.recovery",
        max_steps=STEPS,
        resume=resume,
        disk=disk if disk is not None else RealDisk(),
        clock=lambda: 0.0,
        timeout_secs=timeout_secs,
    )
    noise = torch.Generator().manual_seed(rank)
    guard.track("noise", noise)
    model.train()
    with guard:
        try:
            for batch in guard:
                if guard.step_number == HURT_AFTER_STEP and not guard.book.incidents:
                    _hurt(gpt)
                if before_step is not None:
                    before_step(guard)
                drawn = torch.rand((), generator=noise).item()
                guard.step(next_byte_loss(model, batch) * (1 + 0.01 * drawn))
        except Halted as halt:
            return Ended("", str(halt), guard.step_number)
        return Ended(str(guard.records[-1]["digest"]), None, guard.step_number)


def _hurt(model: GPT) -> None:
    """A NaN in a weight, on every rank that holds some of it."""
    weight: Any = model.get_parameter("blocks.0.ffn.up.weight")
    local = weight.to_local() if hasattr(weight, "to_local") else weight
    with torch.no_grad():
        if local.numel():
            local.view(-1)[0] = torch.nan
