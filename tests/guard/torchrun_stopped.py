"""What torchrun starts: the short run, slowly; each rank tells where it is."""

import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from foreshock.guard import Guard
from tests.guard.ranked import SHORT, hurt, train


def main(folder: Path) -> None:
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()

    def hook(guard: Guard, model: Any, at: int) -> None:
        new = folder / f"{rank}.new"
        new.write_text(f"{os.getpid()} {guard.step_number}\n")
        new.replace(folder / f"{rank}.step")
        time.sleep(0.2)  # so that whoever asks comes in time
        hurt(guard, model, at)

    ended = train(rank, world, folder / "run", **{**SHORT, "hook": hook})
    restart = os.environ["TORCHELASTIC_RESTART_COUNT"]
    (folder / f"{rank}.ended").write_text(f"{restart} {ended.digest}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
