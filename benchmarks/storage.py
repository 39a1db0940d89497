"""What keeping a thousand series a step costs: bytes, microseconds, and milliseconds to ask.

python -m benchmarks.storage [--series 1000] [--steps 1000000] [--json]

Times are CPU times of one thread where that is possible; queries are asked several times,
while another thread goes on writing to the same run.
"""

import argparse
import json
import platform
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow

import foreshock
from foreshock.compaction import Compaction
from foreshock.compactor import Compactor
from foreshock.core.reading import ABSENT
from foreshock.durable import REAL_DISK
from foreshock.journal import Journal

_BLOCK = 4096


class Signals:
    """Series like those of a training: slow trends under noise, some constant, some rare.

    Of each ten: six norms with log-normal noise around a drifting level, two ratios with
    little noise, one constant (a learning rate that rests, a count of zero) and one that is
    measured at every tenth step only.
    """

    def __init__(self, num_series: int, seed: int = 0) -> None:
        self.names = [f"signal_{at % 10}/blocks.{at // 10}.part" for at in range(num_series)]
        self._rng = np.random.default_rng(seed)
        self._level = np.exp(self._rng.normal(size=num_series))
        kind = np.arange(num_series) % 10
        self._noise = np.where(kind < 6, 0.15, np.where(kind < 8, 0.01, 0.0))
        self._rare = kind == 9
        self._noise[self._rare] = 0.1

    def block(self, first: int, num_steps: int) -> np.ndarray:
        """Values of these steps, `[T, S]` float32."""
        steps = np.arange(first, first + num_steps)[:, None]
        noise = self._rng.standard_normal((num_steps, len(self.names)), np.float32)
        trend = np.where(self._noise > 0, 1 + 0.3 * np.log1p(steps / 2000), 1.0)
        values = (self._level * trend * np.exp(self._noise * noise)).astype(np.float32)
        values[:, self._rare] = np.where(steps % 10 == 0, values[:, self._rare], ABSENT)
        return values


def disk_bytes(run_dir: Path) -> tuple[int, int]:
    """Bytes of all readings, and the number of files."""
    files = [path for path in (run_dir / "readings").rglob("*") if path.is_file()]
    return sum(path.stat().st_size for path in files), len(files)


def timed(look: Callable[[], Any], times: int) -> dict[str, float]:
    """Milliseconds: the median of the wall time, and of this thread's CPU time with its range.

    Reading takes one thread, so on a machine that is shared the CPU time is the one to trust.
    """
    walls: list[float] = []
    cpus: list[float] = []
    for _ in range(times):
        wall, cpu = time.perf_counter(), time.thread_time()
        look()
        cpus.append(1e3 * (time.thread_time() - cpu))
        walls.append(1e3 * (time.perf_counter() - wall))
    cpus.sort()
    return {
        "wall_median": round(statistics.median(walls), 1),
        "cpu_median": round(statistics.median(cpus), 1),
        "cpu_p10": round(cpus[len(cpus) // 10], 1),
        "cpu_p90": round(cpus[-1 - len(cpus) // 10], 1),
    }


def append_cost(root: Path, signals: Signals, num_steps: int) -> dict[str, float]:
    """Microseconds of this thread for one reading of all series, all that it waits for included.

    Compaction is held back, so that it does not compete for the interpreter.
    """
    values = signals.block(1, _BLOCK)
    each: list[float] = []
    held_back = Compactor._start
    Compactor._start = lambda *_: None
    try:
        with Journal.create(REAL_DISK, root / "append", {}, time.time) as journal:
            journal.open_readings(1, signals.names)
            cpu = time.thread_time()
            for step in range(num_steps):
                begin = time.perf_counter()
                journal.append_reading(step, 1, values[step % _BLOCK])
                each.append(1e6 * (time.perf_counter() - begin))
            cpu = time.thread_time() - cpu
        raw, _ = disk_bytes(root / "append")
    finally:
        Compactor._start = held_back
        shutil.rmtree(root / "append", ignore_errors=True)
    each.sort()
    return {
        "cpu_mean": round(1e6 * cpu / num_steps, 1),
        "median": round(statistics.median(each), 1),
        "mean": round(statistics.fmean(each), 1),
        "p99": round(each[int(0.99 * len(each))], 1),
        "worst": round(each[-1], 1),
        "raw_bytes_per_reading": round(raw / num_steps / len(signals.names), 3),
    }


def fill(root: Path, signals: Signals, num_steps: int, tell: Callable[[str], None]) -> Journal:
    """A run that is open still, compacted as it went; CPU of compaction is in `compaction_secs`."""
    run_dir = root / "run"
    journal = Journal.create(REAL_DISK, run_dir, {}, time.time)
    journal.write("attempt_started", attempt=1, step=0)
    journal.open_readings(1, signals.names)
    for first in range(1, num_steps + 1, _BLOCK):
        count = min(_BLOCK, num_steps + 1 - first)
        for at, values in enumerate(signals.block(first, count)):
            journal.append_reading(first + at, 1, values)
        journal.wait_for_compaction()
        if (first // _BLOCK) % 25 == 0:
            tell(f"step {first:,} of {num_steps:,}")
    return journal


class Meter:
    """CPU seconds of the thread that compacts."""

    def __init__(self) -> None:
        self.secs = 0.0
        self._next = Compaction.next
        meter = self

        def measured(work: Compaction, closed_to: int | None = None) -> bool:
            begin = time.thread_time()
            try:
                return meter._next(work, closed_to)
            finally:
                meter.secs += time.thread_time() - begin

        Compaction.next = measured

    def close(self) -> None:
        """Measure no more."""
        Compaction.next = self._next


@contextmanager
def training(journal: Journal, signals: Signals, num_steps: int) -> Iterator[None]:
    """Meanwhile another thread goes on writing, ten steps a second."""
    values = signals.block(num_steps + 1, _BLOCK)
    end = threading.Event()

    def train() -> None:
        at = 0
        while not end.wait(0.1):
            journal.append_reading(num_steps + 1 + at, 1, values[at % _BLOCK])
            at += 1

    thread = threading.Thread(target=train)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


def queries(run_dir: Path, signals: Signals, num_steps: int) -> dict[str, Any]:
    """Milliseconds of the three questions, on a run that is open for writing."""
    middle = num_steps // 2
    wide = min(100_000, num_steps // 2)
    names = signals.names
    cases: dict[str, Callable[[foreshock.RunData], Any]] = {
        "one_series_all_steps": lambda data: data.read(names[3]),
        "all_series_1000_steps": lambda data: data.read(steps=(middle, middle + 999)),
        f"glob_of_50_series_{wide}_steps": lambda data: data.read(
            "signal_[03]/blocks.?*.part" if len(names) < 250 else names[3:503:10],
            steps=(middle - wide // 2, middle + wide // 2 - 1),
        ),
        "one_series_last_1000_steps": lambda data: data.read(names[3], (num_steps - 999, None)),
    }
    found: dict[str, Any] = {}
    for name, look in cases.items():

        def cold(look: Callable[[foreshock.RunData], Any] = look) -> None:
            with foreshock.open(run_dir) as data:
                look(data)

        with foreshock.open(run_dir) as data:
            look(data)
            warm = timed(lambda look=look, data=data: look(data), 9)
        found[name] = {"first_ms": timed(cold, 5), "again_ms": warm}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--series", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--dir", type=Path, help="where there is room; a temporary folder else")
    given = parser.parse_args()

    def tell(text: str) -> None:
        print(text, file=sys.stderr)

    signals = Signals(given.series)
    root = Path(tempfile.mkdtemp(prefix="storage-", dir=given.dir))
    meter = Meter()
    try:
        append = append_cost(root, signals, 3 * _BLOCK)
        journal = fill(root, signals, given.steps, tell)
        compaction_secs = meter.secs
        size, num_files = disk_bytes(root / "run")
        num_readings = given.steps * given.series
        with training(journal, signals, given.steps):
            asked = queries(root / "run", signals, given.steps)
        result = {
            "series": given.series,
            "steps": given.steps,
            "append_us": append,
            "bytes_per_reading": {
                "segments": append["raw_bytes_per_reading"],
                "compacted": round(size / num_readings, 3),
            },
            "num_files": num_files,
            "queries_while_written": asked,
            "compaction": {
                "cpu_secs": round(compaction_secs, 1),
                "core_share_at_one_step_a_second": compaction_secs / given.steps,
                "ns_per_reading": round(1e9 * compaction_secs / num_readings, 1),
            },
            "machine": {
                "processor": platform.machine(),
                "python": platform.python_version(),
                "numpy": np.__version__,
                "pyarrow": pyarrow.__version__,
            },
        }
        journal.close()
    finally:
        meter.close()
        shutil.rmtree(root, ignore_errors=True)
    print(json.dumps(result) if given.json else json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
