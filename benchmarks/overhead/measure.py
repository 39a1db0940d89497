"""The measurement: variants and the plain loop, interleaved step by step in one process."""

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch

from benchmarks.overhead.clock import Clock, Spent
from benchmarks.overhead.loops import GuardLoop, Loop
from benchmarks.overhead.monitor import Monitor, NotRunnableError, Plain
from benchmarks.overhead.ours import counted
from benchmarks.overhead.training import Size, Training

WARMUP_STEPS = 3
MIN_ROUNDS = 2


class AnyLoop(Protocol):
    """A loop that can be measured."""

    name: str

    @property
    def due(self) -> str: ...

    def shares(self) -> dict[str, float]: ...

    def step(self) -> Spent: ...

    def close(self) -> None: ...


class Pair(NamedTuple):
    """One step of a variant, and the mean of the plain steps just before and just after.

    `due` says what was measured in this step and is not in every one.
    """

    watched: Spent
    plain: Spent
    due: str = ""


class Measured(NamedTuple):
    """What came of the variants of one size.

    Attributes:
        pairs: by variant; the plain loop's own pairs compare it with itself.
        reasons: why a variant has none.
        facts: what each variant counted.
        num_parameters: of the model.
        shares: by variant, how often each `due` comes; none where every step is alike.
    """

    pairs: dict[str, list[Pair]]
    reasons: dict[str, str]
    facts: dict[str, dict[str, Any]]
    num_parameters: int
    shares: dict[str, dict[str, float]]


def measure(
    size: Size,
    monitors: Sequence[Monitor],
    *,
    guard: bool,
    device: torch.device,
    rounds: int,
    secs: float,
    folder: Path,
    now: Callable[[], float] = time.perf_counter,
    say: Callable[[str], None] = lambda text: None,
) -> Measured:
    """Measure every monitor that runs on one size of model.

    Each variant trains its own copy. In a round every variant makes two steps between two
    plain ones (plain, variant, variant, plain, next variant, …): ABBA, so that neither slow
    drift of the machine nor the order favours anyone.

    Args:
        size: the model and its batch.
        monitors: what is compared.
        guard: whether the Guard is measured too.
        device: where to train.
        rounds: at most so many.
        secs: no further round is begun after this time, but two are made in any case.
        folder: for what the monitors write.
        now: the clock on a CPU.
        say: told of progress.
    """
    clock = Clock(device, now)
    reasons: dict[str, str] = {}
    loops: list[AnyLoop] = []
    plain = Loop(Training(size, device), Plain(), clock, folder)
    num_parameters = Training(size, torch.device("meta")).num_parameters
    with _quiet():
        _warm_up(plain)
        builders = {monitor.name: _builder(monitor, size, device, clock) for monitor in monitors}
        if guard:
            builders["guard"] = lambda own: GuardLoop(Training(size, device), clock, own)
        for name, build in builders.items():
            own = folder / name
            own.mkdir(parents=True)
            say(f"{name}: attaching")
            try:
                loop = build(own)
                _warm_up(loop)
            except NotRunnableError as error:
                reasons[name] = str(error)
            except Exception as error:  # a tool may fail in any way; the others still run
                reasons[name] = f"failed: {type(error).__name__}: {error}"
            else:
                loops.append(loop)
        pairs = _interleaved(plain, loops, rounds, secs, say)
    facts = {loop.name: _facts(loop) for loop in loops}
    for loop in loops:
        loop.close()
    shares = {loop.name: loop.shares() for loop in loops}
    return Measured(pairs, reasons, facts, num_parameters, shares)


def _interleaved(
    plain: AnyLoop,
    loops: Sequence[AnyLoop],
    rounds: int,
    secs: float,
    say: Callable[[str], None],
) -> dict[str, list[Pair]]:
    pairs: dict[str, list[Pair]] = {"plain": [], **{loop.name: [] for loop in loops}}
    begin = time.monotonic()
    before = plain.step()
    for number in range(rounds):
        if number >= MIN_ROUNDS and time.monotonic() - begin > secs:
            break
        say(f"round {number + 1} of at most {rounds}")
        for loop in loops:
            watched = [(loop.step(), loop.due), (loop.step(), loop.due)]
            after = plain.step()
            mean = _mean(before, after)
            pairs[loop.name] += [Pair(one, mean, what) for one, what in watched]
            pairs["plain"].append(Pair(after, before))
            before = after
    return pairs


def _builder(
    monitor: Monitor, size: Size, device: torch.device, clock: Clock
) -> Callable[[Path], AnyLoop]:
    def build(folder: Path) -> AnyLoop:
        training = Training(size, device, monitor.optimizer_class())
        return Loop(training, monitor, clock, folder)

    return build


def _warm_up(loop: AnyLoop) -> None:
    for _ in range(WARMUP_STEPS):
        loop.step()


def _mean(first: Spent, second: Spent) -> Spent:
    parts = {label: (secs + second.parts[label]) / 2 for label, secs in first.parts.items()}
    return Spent((first.whole + second.whole) / 2, parts)


def _facts(loop: AnyLoop) -> dict[str, Any]:
    if isinstance(loop, GuardLoop):
        storage = ["timeline in memory", "journal on disk, readings as binary records"]
        return {**counted(loop.recipe), "storage": storage}
    return loop.monitor.facts() if isinstance(loop, Loop) else {}


@contextmanager
def _quiet() -> Iterator[None]:
    """Warnings of other tools about their own age are not this benchmark's."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
