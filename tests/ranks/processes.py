"""Real gloo processes for tests: a function on every rank, and what each returned."""

import multiprocessing
import pickle
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

CPU = torch.device("cpu")
_TIMEOUT_SECS = 180


def on_ranks(function: Callable[..., Any], world: int, *args: Any) -> list[Any]:
    """Run `function(rank, world, *args)` in `world` processes of one gloo group.

    Raises:
        AssertionError: a rank raised, with its traceback, or did not end in time.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["torch", "torch.distributed.tensor", "torch.distributed.fsdp", "torch.nn.parallel"]
    )
    with tempfile.TemporaryDirectory() as folder:
        processes = [
            context.Process(target=_on_rank, args=(function, rank, world, folder, args))
            for rank in range(world)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join(_TIMEOUT_SECS)
        for process in processes:
            if process.is_alive():
                process.kill()
        failures = [path.read_text() for path in sorted(Path(folder).glob("*.error"))]
        assert not failures, "\n".join(failures)
        codes = [process.exitcode for process in processes]
        assert codes == [0] * world, codes
        results = [Path(folder, f"{rank}.result") for rank in range(world)]
        return [pickle.loads(path.read_bytes()) for path in results]


def _on_rank(
    function: Callable[..., Any], rank: int, world: int, folder: str, args: tuple[Any, ...]
) -> None:
    torch.set_num_threads(1)
    try:
        dist.init_process_group(
            "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world
        )
        result = function(rank, world, *args)
        Path(folder, f"{rank}.result").write_bytes(pickle.dumps(result))
        dist.barrier()
        dist.destroy_process_group()
    except BaseException:
        Path(folder, f"{rank}.error").write_text(f"rank {rank}\n{traceback.format_exc()}")
        raise SystemExit(1) from None
