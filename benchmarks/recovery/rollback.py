"""Seconds to go back: from the memory ring and from disk, against `torch.load`, in one run.

All variants take turns in each round, on the same state: a GPT's weights and AdamW's moments.
`torch_load` is `torch.load` and `load_state_dict` of model and optimizer. *Warm*: the file is
in the page cache. *Cold*: it was dropped from there just before (`posix_fadvise`), and
`cold_bytes_read` says how much of it then really came from the disk.
"""

import gc
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from foreshock.core.snapshot import Health
from foreshock.durable import RealDisk
from foreshock.lab.gpt import GPT, GPTConfig
from foreshock.recipes import Cadence
from foreshock.run_state import RunState
from foreshock.snapshots.parts import GlobalRandomPart, ModulePart, OptimizerPart

SHAPES = {"13MB": (192, 2), "66MB": (384, 3), "345MB": (768, 4)}
"""Width and depth of the GPT, by the size of its state."""
QUICK = ("13MB", "66MB")

Restore = Callable[[], None]


class States:
    """One training state, in the memory ring, on disk by Foreshock, and by `torch.save`."""

    def __init__(self, shape: tuple[int, int], folder: Path) -> None:
        width, depth = shape
        config = GPTConfig(width=width, depth=depth, heads=4, context=32)
        self.model = GPT(config, torch.Generator().manual_seed(0))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.model(torch.zeros(1, 8, dtype=torch.int64)).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        moments = [one for each in self.optimizer.state.values() for one in each.values()]
        self._live = [*(one.detach() for one in self.model.parameters()), *moments]
        self._copies = [one.clone() for one in self._live]
        self.size_bytes = sum(one.nbytes for one in self._live)
        cadence = Cadence(memory_keep=1, disk_keep=1, asynchronous=False)
        self._ring, self._disk = (self._state(folder / "snapshots", cadence) for _ in range(2))
        now = {"step": 1, "attempt": 1, "position": 8, "health": Health(), "watching": {}}
        self._name = self._ring.take(**now).id
        self._disk.write(self._disk.take(**now))
        written = self._disk.collect(wait=True)
        assert written is not None and written.error is None, written
        self._saved = folder / "saved.pt"
        tree = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save(tree, self._saved)
        _sync(self._saved)
        self.files = {
            "disk": [*(folder / "snapshots" / self._name).iterdir()],
            "torch_load": [self._saved],
        }

    def memory(self) -> None:
        """From the memory ring: copied back, and held to its checksum."""
        self._ring.restore([], snapshot_id=self._name, only=True)

    def copy(self) -> None:
        """Every tensor copied back and no more: what no restore of a state on a CPU can beat."""
        with torch.no_grad():
            torch._foreach_copy_(self._live, self._copies)

    def disk(self) -> None:
        """From disk: every byte verified, copied back, held to its digest, kept in the ring."""
        self._disk.rewound_to(-1)
        self._disk.restore([], snapshot_id=self._name, only=True)

    def torch_load(self) -> None:
        """Read, and put into model and optimizer; nothing is verified."""
        self._load(mmap=False)

    def torch_load_mmap(self) -> None:
        """The same, with the file mapped into memory; the moments stay in it, and are only read
        when the next step needs them."""
        self._load(mmap=True)

    def _load(self, *, mmap: bool) -> None:
        tree = torch.load(self._saved, weights_only=True, mmap=mmap)
        self.model.load_state_dict(tree["model"])
        self.optimizer.load_state_dict(tree["optimizer"])

    def _state(self, folder: Path, cadence: Cadence) -> RunState:
        parts = {
            "model": ModulePart(self.model),
            "optimizer": OptimizerPart(self.optimizer),
            "random": GlobalRandomPart(),
        }
        return RunState(parts, disk=RealDisk(), folder=folder, cadence=cadence)


def rollback_secs(name: str, *, rounds: int) -> dict[str, Any]:
    """Medians over rounds, in seconds of wall and of CPU time, and the ratios within rounds."""
    with tempfile.TemporaryDirectory() as folder:
        states = States(SHAPES[name], Path(folder))
        plan: dict[str, tuple[Restore, str]] = {
            "copy": (states.copy, ""),
            "memory": (states.memory, ""),
            "disk_warm": (states.disk, ""),
            "torch_load_warm": (states.torch_load, ""),
            "torch_load_mmap_warm": (states.torch_load_mmap, ""),
            "disk_cold": (states.disk, "disk"),
            "torch_load_cold": (states.torch_load, "torch_load"),
        }
        wall: dict[str, list[float]] = {key: [] for key in plan}
        cpu: dict[str, list[float]] = {key: [] for key in plan}
        read: dict[str, list[int]] = {"disk_cold": [], "torch_load_cold": []}
        for number in range(rounds + 1):
            for key, (restore, dropped) in plan.items():
                if dropped:
                    _drop(states.files[dropped])
                gc.collect()
                before, start, spent = _bytes_read(), time.perf_counter(), time.process_time()
                restore()
                took, used = time.perf_counter() - start, time.process_time() - spent
                if restore == states.torch_load_mmap:
                    states.torch_load()  # else the moments of what comes next lie in that file
                if number:  # the first round only warms
                    wall[key].append(took)
                    cpu[key].append(used)
                    if dropped:
                        read[key].append(_bytes_read() - before)
        return {
            "state_bytes": states.size_bytes,
            "rounds": rounds,
            "threads": torch.get_num_threads(),
            "secs": {key: round(statistics.median(one), 5) for key, one in wall.items()},
            "cpu_secs": {key: round(statistics.median(one), 5) for key, one in cpu.items()},
            "cold_bytes_read": {key: int(statistics.median(one)) for key, one in read.items()},
            "times_faster": {
                "memory_than_torch_load_warm": _ratio(wall, "torch_load_warm", "memory"),
                "memory_than_torch_load_warm_cpu": _ratio(cpu, "torch_load_warm", "memory"),
                "memory_than_torch_load_mmap_warm": _ratio(wall, "torch_load_mmap_warm", "memory"),
                "memory_than_torch_load_cold": _ratio(wall, "torch_load_cold", "memory"),
                "copy_than_torch_load_warm_cpu": _ratio(cpu, "torch_load_warm", "copy"),
                "disk_than_torch_load_warm": _ratio(wall, "torch_load_warm", "disk_warm"),
                "disk_than_torch_load_warm_cpu": _ratio(cpu, "torch_load_warm", "disk_warm"),
                "disk_than_torch_load_cold": _ratio(wall, "torch_load_cold", "disk_cold"),
            },
        }


def _ratio(times: dict[str, list[float]], slow: str, fast: str) -> float:
    each = [one / other for one, other in zip(times[slow], times[fast], strict=True)]
    return round(statistics.median(each), 2)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)


def _drop(paths: list[Path]) -> None:
    """Drop files from the page cache, where the system does."""
    for path in paths:
        handle = os.open(path, os.O_RDONLY)
        os.fsync(handle)
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)


def _bytes_read() -> int:
    """Bytes that this process had fetched from storage; 0 where the system does not say."""
    try:
        lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("read_bytes")), 0)
