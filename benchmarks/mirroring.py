"""What mirroring costs the training thread, as a share of judging the same steps.

CPU time of the one thread, taken in turns, so that what else the machine does is in neither.
The mirror's own thread takes turns of the interpreter too: its CPU time is told beside it.
"""

import argparse
import json
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from foreshock.core.mirrored import Mirrored, MirroredRun
from foreshock.mirroring import Mirroring
from foreshock.recipes import watching
from foreshock.sinks.jsonl import Jsonl
from foreshock.sinks.tensorboard import TensorBoard

STEPS = 400


@dataclass(frozen=True)
class Row:
    """A step as it was measured."""

    step: int
    committed: bool
    values: Any


class Timed:
    """A mirror whose thread's CPU time is added up."""

    def __init__(self, mirror: Any) -> None:
        self.label, self._mirror, self.secs = mirror.label, mirror, 0.0
        self.adopt, self.open, self.close = mirror.adopt, mirror.open, mirror.close

    def take(self, said: list[Mirrored]) -> None:
        before = time.thread_time()
        self._mirror.take(said)
        self.secs += time.thread_time() - before


def measure(num_series: int, kind: str, folder: Path) -> dict[str, float]:
    """Mirror and judge the same steps, one after the other."""
    blocks = (f"grad_norm/blocks.{at}" for at in range(num_series - 2))
    series = ("loss/global", "grad_norm/global", *blocks)
    monitor = watching().monitor(series, frozenset(), {})
    sinks = {
        "tensorboard": lambda: TensorBoard(log_dir=str(folder / "tb")),
        "jsonl": lambda: Jsonl(path=str(folder / "a.jsonl")),
    }
    sink, timed = sinks[kind](), []

    def mirrors(run: MirroredRun) -> list[Timed]:
        timed[:] = [Timed(one) for one in type(sink).mirrors(sink, run)]
        return timed

    object.__setattr__(sink, "mirrors", mirrors)
    lost: list[Any] = []
    mirroring = Mirroring(
        [sink],
        MirroredRun(name="a"),
        limits=monitor.limits,
        record=lambda *record: lost.append(record),
    )
    rng = np.random.default_rng(0)
    rows = rng.lognormal(size=(STEPS, num_series)).astype(np.float32)
    judging = mirrored = 0.0
    for step, values in enumerate(rows, 1):
        begin = time.thread_time()
        found = monitor.observe(1, step, True, values)
        between = time.thread_time()
        mirroring.step(1, series, Row(step, True, values), found[:2])
        end = time.thread_time()
        judging, mirrored = judging + between - begin, mirrored + end - between
    mirroring.close(600)
    dropped = sum(fields.get("num_steps", 0) for *_, fields in lost)
    return {
        "training_thread_over_judging": mirrored / judging,
        "mirror_thread_over_judging": sum(one.secs for one in timed) / judging,
        "dropped_steps": dropped,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found: dict[str, Any] = {}
    for kind in ("jsonl", "tensorboard"):
        for num_series in (20, 200, 2000):
            with tempfile.TemporaryDirectory() as folder:
                found[f"{kind}/{num_series}"] = measure(num_series, kind, Path(folder))
    if options.json:
        print(json.dumps(found, indent=1))
        return
    for name, one in found.items():
        shares = "  ".join(f"{key} {value:.3f}" for key, value in one.items())
        print(f"{name:20} {shares}")


if __name__ == "__main__":
    main()
