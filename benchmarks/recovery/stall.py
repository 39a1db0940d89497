"""By how much a step with a snapshot is longer than one without, spread over the cadence."""

import dataclasses
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from foreshock.data.stream import Stage, Stream
from foreshock.guard import Guard
from foreshock.lab.gpt import GPT, GPTConfig
from foreshock.lab.programs import next_byte_loss
from foreshock.lab.text import TextWindows, load_text
from foreshock.recipes import Cadence, standard

SHAPES = {"5MB": (96, 3, 16, 128), "60MB": (256, 6, 8, 128), "345MB": (768, 4, 8, 128)}
"""Width, depth, batch and context, by the size of the state."""
QUICK = ("5MB",)
_EVERY = 4
_DISK_EVERY = 12
_SPREAD = Cadence()


class Times(NamedTuple):
    """One step of the loop.

    Attributes:
        wall: seconds of all of it, its batch included.
        between: of those, what passed between the steps, where snapshots are taken.
        cpu: seconds of the main thread's CPU time in between.
        kind: "plain", "memory" or "durable": which snapshot was taken.
        writing: whether one was being written in the background when the step ended.
    """

    wall: float
    between: float
    cpu: float
    kind: str
    writing: bool


def stall(name: str, *, steps: int) -> dict[str, Any]:
    """The stall of memory snapshots alone, and of those with asynchronous ones on disk.

    In per cent of a plain step. `between` is what the loop waits for between two steps, above
    what it waits for without a snapshot; `background` is by how much steps are longer while a
    thread writes. The cadence measured is denser than the default one, over which it is spread.
    """
    memory = _steps(SHAPES[name], steps, Cadence(memory_steps=_EVERY, disk_steps=1 << 30))
    both = _steps(SHAPES[name], steps, Cadence(memory_steps=_EVERY, disk_steps=_DISK_EVERY))
    plain = [one for one in [*memory, *both] if one.kind == "plain" and not one.writing]
    step = statistics.median(one.wall for one in plain)
    found: dict[str, Any] = {
        "step_secs": round(step, 5),
        "tokens_a_step": SHAPES[name][2] * SHAPES[name][3],
        "threads": torch.get_num_threads(),
        "cadence": {"memory_steps": _SPREAD.memory_steps, "disk_steps": _SPREAD.disk_steps},
        "num_steps": {kind: sum(one.kind == kind for one in both) for kind in _KINDS},
    }
    in_memory = _excess([*memory, *both], "memory", lambda one: one.between)
    durable = _excess(both, "durable", lambda one: one.between)
    in_memory_cpu = _excess([*memory, *both], "memory", lambda one: one.cpu)
    durable_cpu = _excess(both, "durable", lambda one: one.cpu)
    behind = sum(
        one.wall - one.between - (step - statistics.median(other.between for other in plain))
        for one in both
        if one.writing or one.kind == "durable"
    ) / max(1, found["num_steps"]["durable"])

    def share(memory: float, durable: float) -> float:
        often = 1 / _SPREAD.memory_steps - 1 / _SPREAD.disk_steps
        whole = memory * often + (durable or memory) / _SPREAD.disk_steps
        return round(100 * whole / step, 3)

    return found | {
        "memory": round(100 * in_memory / _SPREAD.memory_steps / step, 3),
        "memory_cpu": round(100 * in_memory_cpu / _SPREAD.memory_steps / step, 3),
        "memory_and_disk": share(in_memory, durable),
        "memory_and_disk_cpu": share(in_memory_cpu, durable_cpu),
        "background": round(100 * max(0.0, behind) / _SPREAD.disk_steps / step, 3),
        "one_memory_snapshot_pct_of_its_step": round(100 * in_memory / step, 2),
        "one_durable_snapshot_pct_of_its_step": round(100 * durable / step, 2),
    }


_KINDS = ("plain", "memory", "durable")


def _excess(times: list[Times], kind: str, part: Callable[[Times], float]) -> float:
    """Median of what the loop waits for with such a snapshot, above that without."""
    of_kind = [part(one) for one in times if one.kind == kind]
    plain = [part(one) for one in times if one.kind == "plain"]
    return statistics.median(of_kind) - statistics.median(plain) if of_kind else 0.0


def _steps(shape: tuple[int, int, int, int], steps: int, cadence: Cadence) -> list[Times]:
    width, depth, batch, context = shape
    config = GPTConfig(width=width, depth=depth, heads=4, context=context)
    model = GPT(config, torch.Generator().manual_seed(0))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    text = load_text("code", limit_bytes=2 * (steps + 2) * batch * (context + 1), seed=0).train
    stage = Stage(name="code", sources={"code": TextWindows(text, context)}, repeats=None)
    recipe = dataclasses.replace(standard({"rules": False}), cadence=cadence)
    with tempfile.TemporaryDirectory() as folder:
        guard = Guard(
            model,
            optimizer,
            Stream([stage], batch_size=batch, seed=0),
            run_dir=Path(folder) / "run",
            clip=1.0,
            recipe=recipe,
            max_steps=steps,
        )
        with guard, _Between(guard) as between:
            return _timed(guard, model, between, cadence)


class _Between:
    """Times what a Guard does between two steps."""

    def __init__(self, guard: Guard) -> None:
        self.wall = self.cpu = 0.0
        self._course: Any = guard._course
        self._method = self._course.between_steps

    def __enter__(self) -> "_Between":
        self._course.between_steps = self._timed
        return self

    def __exit__(self, *_: object) -> None:
        self._course.between_steps = self._method

    def _timed(self) -> None:
        start, spent = time.perf_counter(), time.thread_time()
        self._method()
        self.wall, self.cpu = time.perf_counter() - start, time.thread_time() - spent


def _timed(
    guard: Guard, model: torch.nn.Module, between: _Between, cadence: Cadence
) -> list[Times]:
    times: list[Times] = []
    start = time.perf_counter()
    for batch in guard:
        step = guard.step_number
        guard.step(next_byte_loss(model, batch))
        end = time.perf_counter()
        kind = "plain"
        if step % cadence.memory_steps == 0:
            kind = "durable" if step % cadence.disk_steps == 0 else "memory"
        if step >= _DISK_EVERY // 2:  # the first steps make buffers, and warm up
            writing = guard._state.shelf.writing is not None
            times.append(Times(end - start, between.wall, between.cpu, kind, writing))
        start = time.perf_counter()
    return times
