"""What each rank does in the tests of sharded snapshots."""

import os
import signal
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from foreshock.core.errors import SnapshotError
from foreshock.core.snapshot import Health, SnapshotRef
from foreshock.durable import Chunk, RealDisk
from foreshock.snapshots.sharded_state import sharded_state, staged
from foreshock.snapshots.sharded_store import ShardedStore


class Narrow(nn.Module):
    """Of another dtype, and so a group of its own under FSDP2."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 3).bfloat16())
        self.register_buffer("counts", torch.arange(5))
        self.register_buffer("seen", torch.tensor([True, False, True]))
        self.register_buffer("scale", torch.tensor(0.1).half())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight.float() * self.scale.float()


class Model(nn.Module):
    """Uneven rows, fewer rows than ranks, tied weights, several dtypes, no elements at all."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embed = nn.Embedding(11, 6)
        self.narrow = Narrow()
        self.mix = nn.Linear(3, 6)
        self.gain = nn.Parameter(torch.randn(1))
        self.table = nn.Parameter(torch.randn(3, 40))
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("nothing", torch.zeros(0, 4))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.mix(self.narrow(self.embed(tokens)))
        return self.head(x) * (self.gain + self.table.square().mean())


def laid_out(layout: str, world: int, seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    model: nn.Module = Model(seed)
    if layout == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    elif layout != "plain":
        shape, names = (
            ((2, world // 2), ("replicate", "shard")) if layout == "hsdp" else ((world,), None)
        )
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
        fully_shard(model.narrow, mesh=mesh)
        fully_shard(model, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, num_steps: int) -> None:
    generator = torch.Generator().manual_seed(100 + rank)
    for _ in range(num_steps):
        tokens = torch.randint(11, (4, 8), generator=generator)
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def tree_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": moments, "run": {"step": 2, "loss": float("nan")}}


def ref_of(step: int) -> SnapshotRef:
    return SnapshotRef(
        id=f"{step:08d}-a00001",
        attempt=1,
        step=step,
        position=8 * step,
        durable=True,
        digest="",
        health=Health(),
    )


class Facts(NamedTuple):
    """What a rank tells of a state: its digest, the whole tensors, and the rank's own state."""

    digest: str
    tensors: dict[str, torch.Tensor]
    own: Any


def facts(store: ShardedStore, tree: dict[str, Any], own: Any) -> Facts:
    found = {}
    for name, tensor in sharded_state(tree).tensors.items():
        found[name] = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor.clone()
    return Facts(store.digest(tree), found, own)


def save(rank: int, world: int, folder: str, layouts: tuple[str, ...]) -> list[Facts]:
    """Train, write a snapshot of each layout, and tell what was in it."""
    told = []
    for layout in layouts:
        store = ShardedStore(RealDisk(), Path(folder, layout))
        model, optimizer = laid_out(layout, world, seed=1)
        train(model, optimizer, rank, 2)
        tree = tree_of(model, optimizer)
        own = {"rank": rank, "torch": torch.Generator().manual_seed(rank).get_state()}
        label = store.write(ref_of(2), tree, own)
        found = facts(store, tree, own)
        assert label.digest == found.digest
        told.append(found)
    return told


def load(
    rank: int, world: int, sources: list[str], layouts: tuple[str, ...], again: str
) -> list[Facts]:
    """Restore each snapshot into each layout; write what was restored below `again`."""
    told = []
    for source in sources:
        for layout in layouts:
            store = ShardedStore(RealDisk(), Path(source))
            model, optimizer = laid_out(layout, world, seed=7 + rank)
            tree = tree_of(model, optimizer)
            tree["run"] = None
            own = store.read_into(ref_of(2).id, tree)
            set_state_dict(
                model,
                optimizer,
                model_state_dict=tree["model"],
                optim_state_dict=tree["optimizer"],
            )
            live = tree_of(model, optimizer) | {"run": tree["run"]}
            told.append(facts(store, live, own))
            if again:
                target = ShardedStore(RealDisk(), Path(again, Path(source).name + layout))
                target.write(ref_of(2), live, own or {})
    return told


class DyingDisk:
    """A real disk whose process is killed at the n-th change, half of a write done."""

    def __init__(self, die_at: int) -> None:
        self._disk = RealDisk()
        self._left = die_at

    def write(self, path: Path, chunks: Iterable[Chunk]) -> None:
        if self._left == 0:
            data = b"".join(bytes(chunk) for chunk in chunks)
            self._disk.write(path, [data[: len(data) // 2]])
        self._count()
        self._disk.write(path, chunks)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._disk, name)
        if name not in ("sync", "sync_dir", "replace", "remove_tree", "make_dir"):
            return method

        def counted(*args: Any) -> Any:
            self._count()
            return method(*args)

        return counted

    def _count(self) -> None:
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self._left -= 1


def die(rank: int, world: int, folder: str, victim: int, die_at: int) -> str:
    """Write one snapshot; one rank is killed at a change of the next."""
    model, optimizer = laid_out("fsdp", world, seed=1)
    train(model, optimizer, rank, 1)
    tree = tree_of(model, optimizer)
    ShardedStore(RealDisk(), Path(folder)).write(ref_of(1), tree, {"rank": rank})
    train(model, optimizer, rank, 1)
    disk: Any = DyingDisk(die_at) if rank == victim else RealDisk()
    try:
        ShardedStore(disk, Path(folder)).write(ref_of(2), tree_of(model, optimizer), {"rank": rank})
    except SnapshotError as error:
        said = str(error)
    else:
        said = "written"
    Path(folder, f"{rank}.said").write_text(said)
    os._exit(0)  # the group is broken


class FullDisk:
    """A real disk that is full for this rank's tensors."""

    def __init__(self) -> None:
        self._disk = RealDisk()

    def write(self, path: Path, chunks: Iterable[Chunk]) -> None:
        if path.suffix == ".safetensors":
            raise OSError(28, "No space left on device", str(path))
        self._disk.write(path, chunks)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)


def disagree(rank: int, world: int, folder: str) -> dict[str, list[str]]:
    """Each fault is the last rank's; what every rank was told, and what was left on disk."""
    last = rank == world - 1
    disk: Any = RealDisk()
    told: dict[str, list[str]] = {}
    number = 10

    def told_of(
        name: str, do: Callable[[ShardedStore, SnapshotRef], Any], given: Any = disk
    ) -> None:
        nonlocal number
        number += 1
        try:
            do(ShardedStore(given, Path(folder)), ref_of(number))
        except (SnapshotError, OSError) as error:
            told[name] = [type(error).__name__, str(error)]
        dist.barrier()
        told[name].append(" ".join(sorted(one.name for one in Path(folder).iterdir())))
        dist.barrier()

    same = {"w": torch.ones(4, 3), "s": 1}
    torch.manual_seed(0)
    good = ShardedStore(disk, Path(folder)).write(ref_of(1), same, {})
    odd = {**same, "w": torch.ones(4, 3) + last}
    told_of("replica", lambda store, ref: store.write(ref, odd, {}))
    wide = {**same, "w": torch.ones(4, 3 + last)}
    told_of("shape", lambda store, ref: store.write(ref, wide, {}))
    value = {**same, "s": rank}
    told_of("value", lambda store, ref: store.write(ref, value, {}))
    objects = {**same, "s": {1} if last else 1}
    told_of("object", lambda store, ref: store.write(ref, objects, {}))
    own = {"own": {1} if last else 1}
    told_of("own", lambda store, ref: store.write(ref, same, own))
    full: Any = FullDisk() if last else disk
    told_of("full", lambda store, ref: store.write(ref, same, {}), full)
    other = {"w": torch.zeros(4, 3 + last), "s": 0}
    told_of("target", lambda store, ref: store.read_into(good.id, other))
    before = torch.zeros(4, 3)
    if rank == 0:
        path = Path(folder, good.id, "rank-00000.safetensors")
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
    dist.barrier()
    told_of("damage", lambda store, ref: store.read_into(good.id, {"w": before, "s": 0}))
    assert not before.any()
    one = torch.ones(3)
    some = {"a": one, "b": one.clone() if last else one}  # tied on some ranks: stored apart
    label = ShardedStore(disk, Path(folder)).write(ref_of(50), some, {})
    into = {"a": torch.zeros(3), "b": torch.zeros(3)}
    ShardedStore(disk, Path(folder)).read_into(label.id, into)
    assert torch.equal(into["a"], one) and torch.equal(into["b"], one)
    return told


def stage(rank: int, world: int, folder: str) -> list[str]:
    """A staged copy is written as it was, whatever happens to the state meanwhile."""
    store = ShardedStore(RealDisk(), Path(folder))
    model, optimizer = laid_out("fsdp", world, seed=1)
    train(model, optimizer, rank, 1)
    state = sharded_state(tree_of(model, optimizer))
    first = store.digest(state)
    copy = staged(state)
    room = [part.tensor.data_ptr() for part in copy.parts.values()]
    train(model, optimizer, rank, 1)
    written = store.write(ref_of(1), copy, {})
    state = sharded_state(tree_of(model, optimizer))
    second = store.digest(state)
    copy = staged(state, copy)
    assert room == [part.tensor.data_ptr() for part in copy.parts.values()]
    again = store.write(ref_of(2), copy, {})
    return [first, written.digest, second, again.digest]
