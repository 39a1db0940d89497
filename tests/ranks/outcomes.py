"""Real gloo processes that may die: what became of each rank."""

import multiprocessing
import pickle
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

_LIMIT_SECS = 300


class Outcome(NamedTuple):
    """What became of a rank.

    Attributes:
        code: its exit code; below 0 the signal that killed it.
        result: what the function returned, or None.
        error: the exception's type and text, or "".
        trace: the whole of it.
        ended_secs: when it ended, after the first of all.
    """

    code: int | None
    result: Any
    error: str
    trace: str
    ended_secs: float


def outcomes(
    function: Callable[..., Any], world: int, *args: Any, group_secs: float = 60.0
) -> list[Outcome]:
    """Run `function(rank, world, *args)` in `world` processes, and wait for all that end.

    A rank that still runs 25 seconds after the first one failed is killed (code -9).
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch.nn.parallel", "foreshock.guard"])
    with tempfile.TemporaryDirectory() as folder:
        processes = [
            context.Process(target=_on_rank, args=(function, rank, world, folder, args, group_secs))
            for rank in range(world)
        ]
        for process in processes:
            process.start()
        ended: dict[int, float] = {}
        failed_at: float | None = None
        begun = time.monotonic()
        while len(ended) < world:
            now = time.monotonic()
            for rank, process in enumerate(processes):
                if rank not in ended and process.exitcode is not None:
                    ended[rank] = now
                    if process.exitcode != 0 and failed_at is None:
                        failed_at = now
            late = failed_at is not None and now - failed_at > 25
            if late or now - begun > _LIMIT_SECS:
                for rank, process in enumerate(processes):
                    if rank not in ended:
                        process.kill()
                        process.join()
                        ended[rank] = now
            time.sleep(0.02)
        first = min(ended.values())
        return [
            _outcome(Path(folder), rank, process.exitcode, ended[rank] - first)
            for rank, process in enumerate(processes)
        ]


def _outcome(folder: Path, rank: int, code: int | None, ended: float) -> Outcome:
    result, failure = folder / f"{rank}.result", folder / f"{rank}.error"
    error, _, trace = failure.read_text().partition("\n\n") if failure.exists() else ("", "", "")
    found = pickle.loads(result.read_bytes()) if result.exists() else None
    return Outcome(code, found, error, trace, ended)


def _on_rank(
    function: Callable[..., Any],
    rank: int,
    world: int,
    folder: str,
    args: tuple[Any, ...],
    group_secs: float,
) -> None:
    torch.set_num_threads(1)
    try:
        if world > 1:
            dist.init_process_group(
                "gloo",
                init_method=f"file://{folder}/store",
                rank=rank,
                world_size=world,
                timeout=timedelta(seconds=group_secs),
            )
        result = function(rank, world, *args)
        Path(folder, f"{rank}.result").write_bytes(pickle.dumps(result))
    except BaseException as error:
        said = f"{type(error).__name__}: {error}".replace("\n\n", "\n")
        Path(folder, f"{rank}.error").write_text(f"{said}\n\n{traceback.format_exc()}")
        raise SystemExit(1) from None
