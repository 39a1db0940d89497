"""A snapshot written or read by all ranks through DCP, or by one process without it."""

import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

from foreshock.ranks.exchange import Group, is_running, num_ranks
from foreshock.snapshots.sharded_agreement import lost, on_every_rank, translated
from foreshock.snapshots.sharded_reader import ShardedLoadPlanner, ShardedReader
from foreshock.snapshots.sharded_writer import ShardedSavePlanner, ShardedWriter


def save(doing: str, writer: ShardedWriter, planner: ShardedSavePlanner, group: Group) -> None:
    """Write. Collective.

    Raises:
        OSError: the disk failed, on whichever ranks.
        SnapshotError: something else failed on a rank, or a rank is gone.
    """
    if not is_running():
        on_every_rank(doing, lambda: _save_alone(writer, planner), group)
        return
    try:
        dcp.save({}, storage_writer=writer, planner=planner, process_group=group)
    except CheckpointException as error:
        translated(doing, error, num_ranks(group))
    except RuntimeError as error:
        raise lost(doing, error) from error


def load(doing: str, reader: ShardedReader, planner: ShardedLoadPlanner, group: Group) -> None:
    """Read. Collective.

    Raises:
        SnapshotError: something failed on a rank, or a rank is gone.
    """
    if not is_running():
        on_every_rank(doing, lambda: _load_alone(reader, planner), group)
        return
    try:
        dcp.load({}, storage_reader=reader, planner=planner, process_group=group)
    except CheckpointException as error:
        translated(doing, error, num_ranks(group))
    except RuntimeError as error:
        raise lost(doing, error) from error


def _save_alone(writer: ShardedWriter, planner: ShardedSavePlanner) -> None:
    """What DCP does on one rank of many, without a process group and its warning."""
    writer.set_up_storage_writer(True)
    plans, metadata = planner.create_global_plan(
        [writer.prepare_local_plan(planner.create_local_plan())]
    )
    plan = planner.finish_plan(writer.prepare_global_plan(plans)[0])
    writer.finish(metadata, [writer.write_data(plan, planner).value()])


def _load_alone(reader: ShardedReader, planner: ShardedLoadPlanner) -> None:
    metadata = reader.read_metadata()
    planner.set_up_planner({}, metadata, True)
    reader.set_up_storage_reader(metadata, True)
    plans = [reader.prepare_local_plan(planner.create_local_plan())]
    plan = planner.finish_plan(reader.prepare_global_plan(planner.create_global_plan(plans))[0])
    reader.read_data(plan, planner).wait()
