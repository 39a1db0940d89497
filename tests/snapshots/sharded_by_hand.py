"""A sharded snapshot written by several ranks of one process, one after the other."""

from pathlib import Path
from typing import Any

import torch

from foreshock.core.snapshot import Health, SnapshotRef
from foreshock.durable import Disk
from foreshock.snapshots.sharded_state import (
    digest_table,
    sharded_state,
    state_digest,
    whole_digests,
)
from foreshock.snapshots.sharded_writer import Logical, ShardedSavePlanner, ShardedWriter


def ref_of(step: int, digest: str = "") -> SnapshotRef:
    return SnapshotRef(
        id=f"{step:08d}-a00001",
        attempt=1,
        step=step,
        position=8 * step,
        durable=True,
        digest=digest,
        health=Health(),
    )


def live_tree(seed: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(4, 3, generator=generator)
    return {
        "w": weight,
        "tied": weight,
        "s": torch.randn((), generator=generator),
        "e": torch.zeros(0, 3),
        "i": torch.randint(9, (7,), generator=generator),
        "b": torch.randn(5, generator=generator).bfloat16(),
        "u": torch.randint(9, (3, 2), generator=generator).to(torch.uint8),
        "lr": 1e-5,
        "names": ["a", None, float("inf")],
    }


def write_by_hand(disk: Disk, folder: Path, ref: SnapshotRef, tree: Any, world: int) -> SnapshotRef:
    """Write as `world` ranks would that hold the same tensors."""
    state = sharded_state(tree)
    described = whole_digests(state, digest_table(state)[None], [0])
    label = ref_of(ref.step, state_digest(state.structure, described))
    logical = Logical(label, state.structure, described, state.ties)
    planners = [ShardedSavePlanner(state, state.ties) for _ in range(world)]
    writers = [
        ShardedWriter(disk, folder, logical, {"rank": rank, "state": [0.5, None]})
        for rank in range(world)
    ]
    for rank, writer in enumerate(writers):
        writer.set_up_storage_writer(rank == 0)
    plans, metadata = planners[0].create_global_plan(
        [
            writer.prepare_local_plan(planner.create_local_plan())
            for writer, planner in zip(writers, planners, strict=True)
        ]
    )
    plans = writers[0].prepare_global_plan(plans)
    results = [
        writer.write_data(planner.finish_plan(plan), planner).value()
        for writer, planner, plan in zip(writers, planners, plans, strict=True)
    ]
    writers[0].finish(metadata, results)
    return label
