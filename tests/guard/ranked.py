"""The tiny program of these tests on several ranks: replicas, and the same global batch."""

import dataclasses
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from foreshock.attempts import Attempts
from foreshock.core.errors import Halted
from foreshock.data.ledger import LedgerEntry
from foreshock.data.stream import Stage, Stream
from foreshock.driver import seed_everything
from foreshock.durable import RealDisk
from foreshock.guard import Guard
from foreshock.probes.held_out_loss import HeldOutLoss
from foreshock.ranks.agreement import Ranks
from foreshock.ranks.ordered_sum import ordered_mean
from foreshock.recipes import Cadence
from foreshock.snapshots.checksum import checksum
from foreshock.update import Update
from tests.guard.programs import (
    OPTIMIZERS,
    SCHEDULERS,
    Sentences,
    TinyModel,
    loss_of,
    poisoned_stages,
    recipe,
)

DENSE = Cadence(memory_steps=5, memory_keep=3, disk_steps=10, disk_keep=2)
AT_ONCE = dataclasses.replace(DENSE, asynchronous=False)
"""For tests that name snapshots on disk."""
BATCH = 8  # but 12 on three ranks


class Ended(NamedTuple):
    """What a run on one rank came to.

    Attributes:
        digest: of its whole state.
        halted: the handover note, or None.
        records: all that was decided.
        quarantined: (source, index) of every sample set aside.
        losses: by attempt and step, as joined over ranks.
        weights: at the end.
    """

    digest: str
    halted: str | None
    records: list[dict[str, Any]]
    quarantined: list[tuple[str, int]]
    losses: dict[tuple[int, int], float]
    weights: dict[str, torch.Tensor]


Hook = Callable[[Guard, nn.Module, int], None]


def stages() -> list[Stage]:
    return poisoned_stages(300, 80, 200)


def train(
    rank: int,
    world: int,
    run_dir: Path,
    *,
    resume: bool | None = None,
    dropout: float = 0.0,
    probes: bool = False,
    hook: Hook | None = None,
    disk: Any = None,
    timeout_secs: float = 30.0,
    max_steps: int | None = None,
    accumulate: int = 1,
    options: dict[str, Any] | None = None,
    layout: str = "ddp",
    cadence: Cadence = DENSE,
    optimizer_kind: str = "adamw",
) -> Ended:
    """Train to the end or a halt; `hook` runs before each step."""
    seed_everything(100)
    plain = TinyModel()
    seed_everything(100 + rank)  # dropout is each rank's own
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in plain.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.2, generator=generator)
    plain.attention.dropout = dropout
    for module in plain.modules():
        if isinstance(module, nn.Dropout):
            module.p = dropout
    model: Any = plain
    if layout in ("fsdp", "hsdp"):
        if world == 1:
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        copies = {"fsdp": (world,), "hsdp": (2, world // 2)}[layout]
        mesh = init_device_mesh("cpu", copies, mesh_dim_names=("copy", "shard")[-len(copies) :])
        fully_shard(plain.mlp, mesh=mesh)
        fully_shard(plain, mesh=mesh)
    elif world > 1:
        model = nn.parallel.DistributedDataParallel(plain)
        if world > 2:
            model.register_comm_hook(None, ordered_mean)
    optimizer = OPTIMIZERS[optimizer_kind](plain.parameters())
    held_out = []
    if probes:
        data = Sentences(32, seed=9)
        batches = [torch.stack([data[8 * i + j] for j in range(8)]) for i in range(4)]
        held_out = [HeldOutLoss(batches=batches, loss=loss_of)]
    losses: dict[tuple[int, int], float] = {}

    def listen(kind: str, content: Any) -> None:
        if kind == "step":
            place = content["series"].index("loss/global")
            losses[guard.attempt, content["row"].step] = float(content["row"].values[place])

    guard = Guard(
        model,
        optimizer,
        Stream(
            stages(), batch_size=12 if world == 3 else BATCH, seed=0, rank=rank, world_size=world
        ),
        run_dir=run_dir,
        scheduler=SCHEDULERS["cosine"](optimizer),
        clip=1.0,
        accumulate=accumulate,
        recipe=recipe(cadence=cadence),
        probes=held_out,
        name="ranked",
        resume=resume,
        disk=disk if disk is not None else RealDisk(),
        clock=lambda: 0.0,
        timeout_secs=timeout_secs,
        max_steps=max_steps,
        listener=listen,
        **(options or {}),
    )
    guard.track("noise", torch.Generator().manual_seed(rank))
    model.train()
    with guard:
        try:
            for batch in guard:
                if hook is not None:
                    hook(guard, plain, rank)
                noise = torch.rand((), generator=guard_noise(guard)).item()
                guard.step(loss_of(model, batch) * (1 + 0 * noise))
        except Halted as halt:
            assert str(halt) == guard.halted
        digest = guard.digest() if world == 1 else digest_of(guard)
        ledger = guard._feed.stream.ledger
        aside = sorted({key for entry in ledger.entries for key in ledger.samples(entry.entry_id)})
        weights = {name: whole(one) for name, one in plain.named_parameters()}
        return Ended(digest, guard.halted, list(guard.records), aside, losses, weights)


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of all of a tensor; collective where it is spread."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor.detach().clone()


def guard_noise(guard: Guard) -> torch.Generator:
    """The tracked generator."""
    return guard._state._parts["tracked.noise"]._part._generator


def digest_of(guard: Guard) -> str:
    """The digest that was journalled at the end: asking anew would be a meeting."""
    return guard.records[-1]["digest"]


def hurt(guard: Guard, model: nn.Module, rank: int) -> None:
    """A NaN in the weights before step 13, until the run has planned for it."""
    if guard.step_number == 12 and not guard.book.incidents:
        weight = model.out.weight.detach()
        if not isinstance(weight, DTensor):
            weight[0, 0] = torch.nan
        elif rank == 0:
            weight.to_local()[0, 0] = torch.nan


SHORT: dict[str, Any] = {"hook": hurt, "max_steps": 24, "dropout": 0.1}
"""A run of few steps that goes back once, with dropout of its own on each rank."""


class Killing:
    """Kills this process at the n-th call of one of a class's methods, before or after it."""

    def __init__(self, kind: type, names: tuple[str, ...], number: int, *, after: bool) -> None:
        self._left = number
        self._after = after
        for name in names:
            setattr(kind, name, self._counted(getattr(kind, name)))

    def _counted(self, method: Any) -> Any:
        def counted(this: Any, *args: Any, **options: Any) -> Any:
            self._left -= 1
            last = self._left == 0
            if last and not self._after:
                os.kill(os.getpid(), signal.SIGKILL)
            found = method(this, *args, **options)
            if last:
                os.kill(os.getpid(), signal.SIGKILL)
            return found

        return counted


WRITING = ("write", "append", "truncate", "sync", "sync_dir", "replace", "remove", "remove_tree")


def killed(
    rank: int,
    world: int,
    run_dir: Path,
    victim: int,
    where: str,
    number: int,
    options: dict[str, Any],
) -> Ended:
    """Train, and kill one rank at its n-th meeting, step or change of the disk."""
    if rank == victim:
        match where:
            case "meeting":
                Killing(Ranks, ("exchange",), number, after=bool(number % 2))
            case "step":
                Killing(Update, ("commit_or_skip",), number, after=bool(number % 2))
            case _:
                Killing(RealDisk, WRITING, number, after=bool(number % 2))
    return train(rank, world, run_dir, **options)


def counted(
    rank: int, world: int, run_dir: Path, options: dict[str, Any]
) -> tuple[Ended, list[str], int]:
    """Train; say also which meetings there were, and how often the disk was changed."""
    seen: list[str] = []
    changes = 0
    method = Ranks.exchange

    def met(this: Ranks, what: str, said: bytes) -> list[bytes]:
        seen.append(what)
        return method(this, what, said)

    Ranks.exchange = met
    for name in WRITING:
        before = getattr(RealDisk, name)

        def changed(this: Any, *args: Any, before: Any = before) -> Any:
            nonlocal changes
            changes += 1
            return before(this, *args)

        setattr(RealDisk, name, changed)
    return train(rank, world, run_dir, **options), seen, changes


def sleeps(
    rank: int,
    world: int,
    run_dir: Path,
    sleeper: int,
    timeout_secs: float,
    kind: type = Attempts,
    name: str = "go_back",
    options: dict[str, Any] | None = None,
) -> Ended:
    """Train; one rank sleeps for ever in its rollback, or in another method."""
    if rank == sleeper:

        def never(*_: Any, **__: Any) -> Any:
            while True:
                time.sleep(1)

        setattr(kind, name, never)
    return train(rank, world, run_dir, **{**SHORT, "timeout_secs": timeout_secs, **(options or {})})


def tampered(rank: int, world: int, run_dir: Path, liar: int, what: str) -> Ended:
    """Train; something of one rank is changed behind its back after step 7."""

    def tamper(guard: Guard, model: nn.Module, rank: int) -> None:
        if guard.step_number != 7 or rank != liar:
            return
        match what:
            case "monitor":
                guard.monitor.probed_step = 3
            case "weight":
                with torch.no_grad():
                    model.out.weight[0, 0] += 1e-7
            case "quarantine":
                entry = LedgerEntry(entry_id="x", reason="x", window=(400, 401))
                guard._feed.stream.ledger.add(entry)
            case _:
                raise RuntimeError("the program of this rank has a fault of its own")

    return train(rank, world, run_dir, hook=tamper, max_steps=24, timeout_secs=20.0)


def damaged(rank: int, world: int, run_dir: Path) -> Ended:
    """Train; the memory of one rank makes a NaN of its gradient after the ranks have joined it."""
    if rank == 1:
        method, left = Update.gradient_sizes, [6]

        def spoiled(this: Update) -> Any:
            left[0] -= 1
            if left[0] == 0:
                gradient = this._parameters[0].grad
                assert gradient is not None
                gradient.view(-1)[0] = torch.nan
            return method(this)

        Update.gradient_sizes = spoiled
    return train(rank, world, run_dir, max_steps=11)


def forgetful(rank: int, world: int, run_dir: Path, who: int | None, layout: str) -> Ended:
    """Train; before the rollback memory decays on one rank, or on none is anything left in it."""

    def forget(guard: Guard, model: nn.Module, rank: int) -> None:
        if guard.step_number == 12 and not guard.book.incidents:
            memory = guard._state._memory
            if who is None:
                for ref in memory.refs:
                    memory.discard(ref.id)
            elif rank == who:
                for held in memory._kept:
                    held.slot._buffers[0].view(torch.uint8).view(-1)[0] ^= 1
        hurt(guard, model, rank)

    return train(
        rank, world, run_dir, **{**SHORT, "hook": forget, "layout": layout, "cadence": AT_ONCE}
    )


def broken_gradient(
    rank: int, world: int, run_dir: Path, optimizer_kind: str
) -> tuple[list[int], list[bool], list[float]]:
    """Train on shards; the gradient of one rank's shard is broken once.

    Returns the steps that were skipped, whether the state stayed in each step as it was, and
    the gradient norms that the gate saw.
    """
    sizes, update, number = Update.gradient_sizes, Update.commit_or_skip, 0
    stayed: list[bool] = []
    norms: list[float] = []

    def spoiled(this: Update) -> Any:
        nonlocal number
        number += 1
        if number == 6 and rank == 1:
            gradient = next(p.grad for p in this._parameters if p.grad.to_local().numel())
            gradient.to_local().view(-1)[0] = torch.inf
        return sizes(this)

    def watched(this: Update, norm: torch.Tensor, *args: Any, **options: Any) -> Any:
        norms.append(float(norm))
        before = held(this)
        found = update(this, norm, *args, **options)
        stayed.append(held(this) == before)
        return found

    def held(this: Update) -> str:
        return checksum([this._parameters, this._optimizer.state_dict()["state"]])

    Update.gradient_sizes, Update.commit_or_skip = spoiled, watched
    options = {"layout": "fsdp", "optimizer_kind": optimizer_kind, "max_steps": 8}
    ended = train(rank, world, run_dir, **options)
    skips = [one["step"] for one in ended.records if one["kind"] == "skip"]
    return skips, stayed, norms


class FillingDisk:
    """A real disk that has no room for the tensors of one snapshot."""

    def __init__(self, name: str) -> None:
        self._disk = RealDisk()
        self._name = name

    def write(self, path: Path, chunks: Any) -> None:
        if self._name in str(path) and path.suffix == ".safetensors":
            raise OSError(28, "No space left on device", str(path))
        self._disk.write(path, chunks)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)


def full_disk(rank: int, world: int, run_dir: Path) -> Ended:
    """Train on shards; the disk of the last rank has no room at step 10."""
    disk: Any = FillingDisk("00000010-") if rank == world - 1 else RealDisk()
    return train(rank, world, run_dir, **{**SHORT, "layout": "fsdp", "disk": disk})
