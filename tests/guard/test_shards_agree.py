"""What two ranks make of a sharded state together: labels, digests, fates, writes."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from foreshock.accord import fate_of_all
from foreshock.core.errors import SnapshotError
from foreshock.core.retention import Stored
from foreshock.core.snapshot import Health, SnapshotRef
from foreshock.durable import RealDisk
from foreshock.ranks.agreement import RankError, Ranks
from foreshock.recipes import Cadence
from foreshock.replicated import PerRankPart
from foreshock.run_state import RunState
from foreshock.sharded import sharing_of
from foreshock.snapshots.damage import DamagedError
from foreshock.snapshots.parts import TorchGeneratorPart, part_for
from foreshock.snapshots.stores import Loaded
from foreshock.snapshots.writer import Written
from tests.ranks.outcomes import outcomes
from tests.ranks.processes import on_ranks


def sharded(world: int) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 3), nn.LayerNorm(3))
    return fully_shard(model, mesh=init_device_mesh("cpu", (world,)))


def state_of(rank: int, world: int, folder: str) -> tuple[RunState, nn.Module, Any, Ranks]:
    ranks, model = Ranks(timeout_secs=20.0), sharded(world)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.ones(2, 5)).sum().backward()
    optimizer.step()
    sharing = sharing_of(model, RealDisk(), Path(folder), ranks)
    noise = TorchGeneratorPart(torch.Generator().manual_seed(rank))
    parts = {
        "model": part_for("model", model),
        "optimizer": part_for("optimizer", optimizer),
        "noise": PerRankPart("noise", noise, ranks, own=True),
    }
    state = RunState(
        parts,
        disk=RealDisk(),
        folder=Path(folder),
        cadence=Cadence(memory_keep=3, asynchronous=False),
        store=sharing.store,
        accord=sharing.accord,
        num_ranks=world,
    )
    return state, model, optimizer, ranks


def take(state: RunState, step: int) -> SnapshotRef:
    return state.take(step=step, attempt=1, position=0, health=Health(), watching={"step": step})


def agree(rank: int, world: int, folder: str) -> dict[str, Any]:
    state, model, optimizer, ranks = state_of(rank, world, folder)
    weight: Any = model[0].weight.detach()
    told: dict[str, Any] = {"first": take(state, 1).digest, "digest": state.digest()}
    before = weight.full_tensor().clone()

    # One bit of one rank's shard makes another label and another digest, on both.
    if rank == 1:
        weight.to_local().view(torch.int32)[0, 0] ^= 1
    told["second"], told["other digest"] = take(state, 2).digest, state.digest()
    changed = weight.full_tensor().clone()

    # A look back sees the earlier state on both, and comes back to the bit.
    ref = next(one for one in state.in_memory() if one.step == 1)
    ((_, seen),) = state.visit([ref], lambda: weight.full_tensor().clone())
    told["seen"] = torch.equal(seen, before) and not torch.equal(before, changed)
    told["back"] = torch.equal(weight.full_tensor(), changed)

    # Moments that one rank holds are the concern of all.
    told["finite"] = state.optimizer_is_finite(optimizer)
    moment: Any = optimizer.state[model[0].weight]["exp_avg"]
    if rank == 1:
        moment.to_local()[0, 0] = torch.nan
    told["broken"] = state.optimizer_is_finite(optimizer)

    # What one could not do, none has done; and damage is damage for all.
    fates = [None, SnapshotError("odd"), DamagedError("cut")]
    settled = [fate_of_all(ranks, "a test", one if rank == 1 else None) for one in fates]
    told["fates"] = [f"{type(one).__name__} {one}" for one in settled]

    # A write has ended when it has on all; what one rank failed at has failed.
    store = state.shelf.store
    own = Written("x", 0, None) if rank == 0 else None
    told["going on"] = store.ended(ref, own)
    full = OSError(28, "no space") if rank == 1 else None
    failed = store.ended(ref, Written("x", None if full else 0, full))
    told["failed"] = str(failed.error) if failed is not None else ""

    # From disk, on what it was: the damaged moment is gone again.
    state.write(ref)
    told["written"] = state.collect(wait=True).error
    state.rewound_to(0)
    restored = state.restore([])
    told["restored"] = (restored.ref.step, restored.watching, restored.num_ranks)
    told["again"] = (state.digest(), torch.equal(weight.full_tensor(), before))
    ranks.close()
    return told


def test_two_ranks_agree_on_everything(tmp_path: Path) -> None:
    one, other = on_ranks(agree, 2, str(tmp_path / "snapshots"))
    assert one == other
    assert one["first"] != one["second"]
    assert one["digest"] != one["other digest"]
    assert one["seen"] and one["back"]
    assert (one["finite"], one["broken"]) == (True, False)
    assert one["fates"] == [
        "NoneType None",
        "SnapshotError odd (on rank 1)",
        "DamagedError cut (on rank 1)",
    ]
    assert one["going on"] is None
    assert one["failed"] == "[Errno 28] [Errno 28] no space"
    assert one["written"] is None
    assert one["restored"] == (1, {"step": 1}, None)
    assert one["again"] == (one["digest"], True)


def differ(rank: int, world: int, folder: str) -> None:
    state, _, optimizer, _ = state_of(rank, world, folder)
    optimizer.param_groups[0]["lr"] = 0.1 + rank  # what is not sharded must be alike
    take(state, 1)


def test_what_all_should_hold_alike_is_compared_in_memory(tmp_path: Path) -> None:
    for one in outcomes(differ, 2, str(tmp_path / "snapshots")):
        assert one.error.startswith(RankError.__name__), one.trace
        assert "what all hold alike" in one.error


class OfTwo:
    """A store with one snapshot, which two ranks wrote."""

    shared = True

    def __init__(self) -> None:
        self.ref = SnapshotRef(
            id="a", attempt=1, step=1, position=0, durable=True, digest="", health=Health()
        )

    def stored(self, but: Any = ()) -> Any:
        return [Stored(self.ref, 1)], []

    def load(self, snapshot_id: str, like: Any, own: frozenset[str]) -> Loaded:
        tree = {"training": {}, "watching": None, "labels": []}
        return Loaded(tree, {"stream": torch.zeros(1)}, (), 2, ())


def test_a_foreign_loaders_state_is_not_taken_up_by_another_number_of_ranks(
    tmp_path: Path,
) -> None:
    store: Any = OfTwo()
    ranks = Ranks()
    generator = TorchGeneratorPart(torch.Generator())
    state = RunState(
        {"stream": PerRankPart("stream", generator, ranks, any_size=False, own=True)},
        disk=RealDisk(),
        folder=tmp_path,
        cadence=Cadence(),
        store=store,
    )
    with pytest.raises(SnapshotError, match="captured on 2 ranks and cannot go on on 1"):
        state.restore([])
