"""What torchrun starts: the short run; one rank kills itself once, at its n-th meeting."""

import os
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist

from foreshock.ranks.agreement import Ranks
from tests.guard.ranked import SHORT, Killing, train


def main(folder: Path, victim: int, number: int, layout: str) -> None:
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    restart = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    if rank == victim and restart == 0:
        Killing(Ranks, ("exchange",), number, after=True)
    ended = train(rank, world, folder / "run", **SHORT, layout=layout)
    (folder / f"{rank}.ended").write_text(f"{restart} {ended.digest}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
