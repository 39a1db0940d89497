"""Damaged snapshots, plain and sharded: what a restore says of them, and what it gives.

Whether a restored state is the one that was captured is not asked of the code under test: it is
told by the digest in `fingerprint`.
"""

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.distributed.checkpoint.state_dict import get_state_dict

from benchmarks.recovery.damage import damage
from benchmarks.recovery.fingerprint import fingerprint
from benchmarks.recovery.kill import rng_of
from benchmarks.recovery.training import laid_out, model_of
from foreshock.core.errors import SnapshotError
from foreshock.core.snapshot import Health
from foreshock.durable import RealDisk
from foreshock.recipes import Cadence
from foreshock.run_state import RunState
from foreshock.snapshots.parts import GlobalRandomPart, ModulePart, OptimizerPart, Part
from foreshock.snapshots.sharded_store import ShardedStore
from tests.ranks.processes import on_ranks
from tests.snapshots.sharded_program import ref_of

NUM_SNAPSHOTS = 3
WORLD = 2
REFUSED, OLDER, SAME, ACCEPTED, CRASHED = "refused", "older taken", "same", "accepted", "crashed"


class Subject(NamedTuple):
    """Snapshots that are to be damaged.

    Attributes:
        kind: "plain" or "sharded".
        folder: where they are; damaged are copies only.
        names: of the snapshots, oldest first.
        expected: by name, the digest of what was captured.
    """

    kind: str
    folder: Path
    names: list[str]
    expected: dict[str, str]


class Plain(NamedTuple):
    """A run's state as the Guard keeps it, without the Guard.

    Attributes:
        parts: what is captured, by name.
        state: its snapshots.
        model: that is trained.
        optimizer: likewise.
    """

    parts: dict[str, Part]
    state: RunState
    model: torch.nn.Module
    optimizer: torch.optim.Optimizer

    def live(self) -> dict[str, Any]:
        """The state as it is."""
        return {name: part.capture() for name, part in self.parts.items()}


def plain_state(folder: Path, seed: int) -> Plain:
    """A small GPT, AdamW and the generators, over a folder of snapshots; nothing in memory."""
    model = model_of(seed=seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    _step(model, optimizer, seed)
    parts: dict[str, Part] = {
        "model": ModulePart(model),
        "optimizer": OptimizerPart(optimizer),
        "random": GlobalRandomPart(),
    }
    cadence = Cadence(memory_keep=0, disk_keep=NUM_SNAPSHOTS, asynchronous=False)
    state = RunState(dict(parts), disk=RealDisk(), folder=folder, cadence=cadence)
    return Plain(parts, state, model, optimizer)


def plain_subject(folder: Path) -> Subject:
    """Write a few snapshots of a training, as the Guard does."""
    plain = plain_state(folder, seed=1)
    expected: dict[str, str] = {}
    for step in range(1, NUM_SNAPSHOTS + 1):
        _step(plain.model, plain.optimizer, step)
        watching = {"level": 0.1 * step, "window": np.arange(step * 3.0)}
        ref = plain.state.take(
            step=step, attempt=1, position=8 * step, health=Health(), watching=watching
        )
        expected[ref.id] = fingerprint([plain.live(), watching])
        plain.state.write(ref)
        written = plain.state.collect(wait=True)
        assert written is not None and written.error is None, written
    return Subject("plain", folder, list(expected), expected)


def sharded_subject(folder: Path) -> Subject:
    """Write a few snapshots of a training under FSDP2 on two ranks."""
    told: list[dict[str, str]] = on_ranks(_write_sharded, WORLD, str(folder))
    return Subject("sharded", folder, list(told[0]), told[0])


def _write_sharded(rank: int, world: int, folder: str) -> dict[str, str]:
    store = ShardedStore(RealDisk(), Path(folder))
    model = laid_out(model_of(), "fsdp2", world)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    expected: dict[str, str] = {}
    for step in range(1, NUM_SNAPSHOTS + 1):
        _step(model, optimizer, step)
        tree, own = _tree(model, optimizer, step), {"rank": rank, "step": step}
        expected[ref_of(step).id] = fingerprint([tree, own])
        store.write(ref_of(step), tree, own)
    return expected


def corrupt_trial(key: str, subject: Subject) -> dict[str, Any]:
    """Damage the newest snapshot in a copy and restore it; see `judged` for the outcomes."""
    rng = rng_of(key)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "snapshots"
        shutil.copytree(subject.folder, folder)
        newest, others = subject.names[-1], subject.names[:-1]
        done = damage(folder, newest, others, rng)
        restore = restore_plain if subject.kind == "plain" else restore_sharded
        return {"damage": done} | judged(lambda: restore(folder, newest), newest, subject.expected)


def judged(restore: Any, asked: str, expected: Mapping[str, str]) -> dict[str, Any]:
    """Restore, and say what came of it.

    `refused`: an error that names the snapshot. `older taken`: another one was restored, and it
    is exactly what was captured. `same`: the one asked for was, in spite of the damage, and it is
    exactly what was captured. `accepted`: what was restored is not what was captured.
    `crashed`: an error other than the one that says a snapshot cannot be used.
    """
    try:
        got, digest = restore()
    except SnapshotError as error:
        return {"outcome": REFUSED, "said": str(error)[:300]}
    except Exception as error:
        return {"outcome": CRASHED, "said": f"{type(error).__name__}: {error}"[:300]}
    if expected.get(got) != digest:
        return {"outcome": ACCEPTED, "said": got}
    return {"outcome": SAME if got == asked else OLDER, "said": got}


def restore_plain(folder: Path, newest: str) -> tuple[str, str]:
    """Restore as a run that is started again does: the newest that can be."""
    plain = plain_state(folder, seed=2)
    restored = plain.state.restore([], snapshot_id=newest)
    return restored.ref.id, fingerprint([plain.live(), restored.watching])


def restore_sharded(folder: Path, newest: str) -> tuple[str, str]:
    """Restore into a model on one rank."""
    model = model_of(seed=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    _step(model, optimizer, 9)
    tree = _tree(model, optimizer, 0)
    own = ShardedStore(RealDisk(), folder).read_into(newest, tree)
    return newest, fingerprint([tree, own])


def _tree(model: torch.nn.Module, optimizer: torch.optim.Optimizer, step: int) -> dict[str, Any]:
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": moments, "run": {"step": step, "loss": 0.5 * step}}


def _step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> None:
    tokens = torch.randint(256, (2, 17), generator=torch.Generator().manual_seed(seed))
    logits = model(tokens[:, :-1])
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
    optimizer.step()
    optimizer.zero_grad()
