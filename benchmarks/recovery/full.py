"""A disk that is full for a while, at random moments; the training must not notice."""

import errno
import os
import tempfile
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.recovery.account import NEITHER, account_of, losses
from benchmarks.recovery.kill import rng_of
from benchmarks.recovery.power import RUN, Simulated
from benchmarks.recovery.training import STEPS, train
from foreshock.core.errors import ForeshockError
from foreshock.durable import Chunk, Disk, RealDisk
from foreshock.guard import Guard
from tests.simulated_disk import PowerLoss, SimulatedDisk

_MOST_STEPS = 30
"""Steps for which the disk stays full."""


class FillingSimulated(SimulatedDisk):
    """Full from its n-th change on, with little room left, until somebody makes room."""

    def __init__(self, full_at: int, room_bytes: int) -> None:
        super().__init__()
        self._full_at, self._room_bytes = full_at, room_bytes

    def _change(self) -> None:
        if self.num_changes == self._full_at:
            self.full = True
            assert self.capacity_bytes is not None
            self.capacity_bytes += self._room_bytes
        super()._change()

    def make_room(self) -> None:
        """What was full is not any more."""
        self.full = False


class FillingReal(RealDisk):  # pyright: ignore[reportGeneralTypeIssues]
    """A real disk that takes a part of what it is given, and no more, from a change on.

    It is used by the thread that writes snapshots too, as the real one is.
    """

    def __init__(self, full_at: int, room_bytes: int) -> None:
        super().__init__()
        self._left, self._room_bytes = full_at, room_bytes
        self.full = False

    def write(self, path: Path, chunks: Iterable[Chunk]) -> None:
        if self._is_full():
            whole = b"".join(bytes(chunk) for chunk in chunks)
            super().write(path, [whole[: self._room(len(whole))]])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        super().write(path, chunks)

    def append(self, path: Path, data: bytes) -> None:
        if self._is_full():
            super().append(path, data[: self._room(len(data))])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        super().append(path, data)

    def make_room(self) -> None:
        """What was full is not any more."""
        self.full, self._left = False, -1

    def _is_full(self) -> bool:
        self._left -= 1
        self.full = self.full or self._left == 0
        return self.full

    def _room(self, size: int) -> int:
        taken = min(self._room_bytes, max(0, size - 1))
        self._room_bytes -= taken
        return taken


def full_trial(key: str, reference: Simulated, text: bytes) -> dict[str, Any]:
    """Fill the disk at a random change, make room some steps later; compare what the run ends as.

    One time in three the process dies while the disk is full, and is started again when there
    is room; so is one that ends while it is.
    """
    rng = rng_of(key)
    first = reference.num_until_begun + 1  # before its first snapshot a run is refused instead
    full_at = int(rng.integers(first, reference.num_changes))
    room_bytes = int(rng.choice([0, int(rng.integers(1, 4000))]))
    if rng.random() < 0.5:
        simulated = FillingSimulated(full_at, room_bytes)
        return {"disk": "simulated"} | _trial(rng, reference, text, simulated, RUN)
    with tempfile.TemporaryDirectory() as folder:
        real = FillingReal(full_at // 2, room_bytes)  # half of all changes write something
        return {"disk": "real"} | _trial(rng, reference, text, real, Path(folder) / "run")


def _trial(
    rng: np.random.Generator,
    reference: Simulated,
    text: bytes,
    disk: FillingSimulated | FillingReal,
    run_dir: Path,
) -> dict[str, Any]:
    stays = int(rng.integers(1, _MOST_STEPS))
    dies_after = int(rng.integers(1, stays + 1)) if rng.random() < 1 / 3 else None
    steps_full = 0
    guards: list[Guard] = []

    def before_step(guard: Guard) -> None:
        nonlocal steps_full
        guards[:] = [guard]
        if not disk.full:
            return
        steps_full += 1
        if steps_full == dies_after:
            raise PowerLoss
        if steps_full >= stays:
            disk.make_room()

    lost: list[str] = []
    died, digest = False, ""
    try:
        try:
            digest = _run(text, disk, run_dir, before_step)
        except PowerLoss:
            died = True
        if died or disk.full:  # what waited in memory is gone with the process
            disk.make_room()
            if isinstance(disk, FillingSimulated):
                disk.kill_process()
            digest = _run(text, disk, run_dir, None)
    except Exception as error:
        lost = [f"training did not go on: {type(error).__name__}: {error}"]
    dropped = guards[0]._journal.dropped_provenance if guards else 0
    found = {"full_steps": steps_full, "died": died, "dropped_provenance": dropped}
    if not lost:
        lost = _lost(reference, disk, run_dir, dropped)
    exact = digest == reference.digest
    return found | {"lost": [one[:2000] for one in lost], "bitexact": exact}


def _run(
    text: bytes, disk: Disk, run_dir: Path, before_step: Callable[[Guard], None] | None
) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ended = train(0, 1, run_dir, text, disk=disk, before_step=before_step)
    assert ended.halted is None and ended.step <= STEPS, ended
    return ended.digest


def _lost(reference: Simulated, disk: Disk, run_dir: Path, dropped: int) -> list[str]:
    """What is gone. Which samples a step trained is dropped while the disk is full, and counted.

    So it may be missing of as many steps; where it is there, it must be that of the reference.
    """
    try:
        found = account_of(disk, run_dir)
    except (IndexError, KeyError, ForeshockError) as error:
        return [f"the journal cannot be followed: {type(error).__name__}: {error}"]
    expected = reference.account
    kept = {step: samples for step, samples in expected.trained.items() if step in found.trained}
    lost = losses(expected._replace(trained=kept), found)
    missing = len(expected.trained) - len(kept)
    if missing > dropped:
        lost.append(f"the samples of {missing} steps are not recorded; {dropped} were counted")
    return [one for one in lost if not (missing and NEITHER in one)]
