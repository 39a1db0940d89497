"""Real processes in a gloo group that train and may die, and what became of each."""

import json
import multiprocessing
import os
import tempfile
import time
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from benchmarks.recovery import moments
from benchmarks.recovery.moments import Moment
from benchmarks.recovery.training import Layout, train

KILLED = -9
_PRELOADED = (
    *("torch", "torch.nn.parallel", "torch.distributed.fsdp"),
    *("foreshock.guard", "benchmarks.recovery.processes"),
)
_GROUP_SECS = 90.0
_LATE_SECS = 240.0
"""After the first rank failed: the others have stopped by then, or hang. One that waits within
torch's own code comes to its time-out first, and then to that of a meeting, 150 s in all."""
_LIMIT_SECS = 600.0


class Outcome(NamedTuple):
    """What became of a rank.

    Attributes:
        code: its exit code; below 0 the signal that killed it.
        digest: of its state at the end, "" if it did not get there.
        said: its error or handover note, or "".
        begun: whether its process group was there; what goes wrong before is no affair of ours.
        counts: how often it came to each place, where that was counted.
        hung: whether it had to be killed because it never ended.
    """

    code: int | None
    digest: str
    said: str
    counts: dict[str, int]
    hung: bool
    begun: bool = True


def run_ranks(
    world: int,
    layout: Layout,
    run_dir: Path,
    text: Path,
    *,
    moment: Moment | None = None,
    kill_after_secs: float | None = None,
    counting: bool = False,
) -> list[Outcome]:
    """Begin or take up the run in `world` processes, and wait until all have ended.

    Args:
        world: number of ranks.
        layout: how the model lies on them.
        run_dir: of the run.
        text: what it trains on.
        moment: when one is killed, or all.
        kill_after_secs: where the moment is a time: seconds after the processes have begun.
        counting: whether each rank counts how often it comes to each place.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(_PRELOADED))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        inside = moment if moment is not None and moment.place != "time" else None
        given = (layout, run_dir, text, inside, counting)
        ranks = [
            context.Process(target=_on_rank, args=(rank, world, folder, *given))
            for rank in range(world)
        ]
        for rank in ranks:
            rank.start()
        hung = _wait(ranks, moment, kill_after_secs)
        return [
            _outcome(folder, rank, process.exitcode, rank in hung)
            for rank, process in enumerate(ranks)
        ]


def _wait(ranks: list[Any], moment: Moment | None, kill_after_secs: float | None) -> set[int]:
    """Wait for all to end; kill whom the moment says; return those that never end."""
    begun = time.monotonic()
    failed_at: float | None = None
    while any(rank.exitcode is None for rank in ranks):
        now = time.monotonic()
        if kill_after_secs is not None and now - begun >= kill_after_secs and moment is not None:
            ranks[moment.rank].kill()
            kill_after_secs = None
        if failed_at is None and any(rank.exitcode not in (None, 0) for rank in ranks):
            failed_at = now
            if moment is not None and moment.whole:
                for rank in ranks:
                    rank.kill()
        late = failed_at is not None and now - failed_at > _LATE_SECS
        if late or now - begun > _LIMIT_SECS:
            hung = {number for number, rank in enumerate(ranks) if rank.exitcode is None}
            for number in hung:
                ranks[number].kill()
                ranks[number].join()
            return hung
        time.sleep(0.01)
    return set()


def _outcome(folder: Path, rank: int, code: int | None, hung: bool) -> Outcome:
    path = folder / f"{rank}.json"
    told = json.loads(path.read_text()) if path.exists() else {}
    return Outcome(code, told.get("digest", ""), told.get("said", ""), told.get("counts", {}), hung)


def _on_rank(
    rank: int,
    world: int,
    folder: Path,
    layout: Layout,
    run_dir: Path,
    text: Path,
    moment: Moment | None,
    counting: bool,
) -> None:
    torch.set_num_threads(1)
    counts: dict[str, int] = {}
    told: dict[str, Any] = {}
    try:
        if world > 1:
            dist.init_process_group(
                "gloo",
                init_method=f"file://{folder}/store",
                rank=rank,
                world_size=world,
                timeout=timedelta(seconds=_GROUP_SECS),
            )
        (folder / f"{rank}.begun").touch()
        if counting:
            moments.count(counts)
        if moment is not None and moment.rank == rank:
            moments.arm(moment)
        ended = train(rank, world, run_dir, text.read_bytes(), layout=layout)
        told = {"digest": ended.digest, "said": ended.halted or "", "counts": counts}
        code = 0
    except BaseException as error:
        said = f"{type(error).__name__}: {error}"
        told = {"said": said, "trace": traceback.format_exc()}
        code = 1
    temporary = folder / f"{rank}.tmp"
    temporary.write_text(json.dumps(told))
    temporary.replace(folder / f"{rank}.json")
    os._exit(code)  # a group that lost a rank may wait for it when it is taken down
