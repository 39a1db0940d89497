"""Foreshock's own variants: `watch` at each level, everything exact, and by signal."""

import dataclasses
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch

from benchmarks.overhead.clock import Clock
from benchmarks.overhead.monitor import SHARED, Monitor
from benchmarks.overhead.training import Training
from foreshock import recipes
from foreshock.core.signal import Moment
from foreshock.recipes import Recipe
from foreshock.watching import Watch

LEVELS = ("minimal", "standard", "full")

_LAST_STEP = 1036
"""Steps made before: so that steps 1,040 and 1,050, in which most is due, come early."""

_NEVER = 1 << 40
_RARE_STEPS = 50
"""What is due less often is timed on its own after the loop, and counted by its share."""


def exactly(signal: Any) -> tuple[Any, str]:
    """The signal measured exactly where its fields allow it, and how that was asked for.

    At its own interval: a value that is read every tenth step is no less exact.
    """
    fields = {item.name for item in dataclasses.fields(signal)}
    if "exact" in fields:
        return dataclasses.replace(signal, exact=True), "exact=True"
    if "exact_every_steps" in fields:
        return dataclasses.replace(signal, exact_every_steps=1), "exact_every_steps=1"
    return signal, str(signal.exactness)


def due(recipe: Recipe, step: int) -> str:
    """What a recipe measures in this step and not in every one."""
    rare = {one.name: one.interval_steps for one in recipe.signals}
    rare |= {f"{one.name} exactly": getattr(one, "exact_every_steps", 0) for one in recipe.signals}
    return ", ".join(sorted(name for name, each in rare.items() if each > 1 and step % each == 0))


def without_rare(recipe: Recipe) -> Recipe:
    """The recipe as it is in the steps in which no rare signal is due."""
    signals = tuple(
        dataclasses.replace(one, interval_steps=_NEVER) if one.interval_steps > _RARE_STEPS else one
        for one in recipe.signals
    )
    return dataclasses.replace(recipe, signals=signals)


def rare_secs(recipe: Recipe, attached: Any, clock: Clock) -> dict[str, tuple[float, int]]:
    """Seconds of each rare signal when it is due, and the steps from one time to the next."""
    every = {one.name: one.interval_steps for one in recipe.signals}
    moment = Moment(loss=None, grad_norms=None, grad_norm=None, lr=0.0)
    found: dict[str, tuple[float, int]] = {}
    for signal, one in attached:
        if every[signal.name] <= _RARE_STEPS:
            continue
        times: list[float] = []
        for _ in range(3):
            clock.begin()
            with clock.part(signal.name), torch.no_grad():
                one.prepare(moment)
                one.measure(moment)
            times.append(clock.end().parts[signal.name])
        found[signal.name] = (statistics.median(times), every[signal.name])
    return found


def period(recipe: Recipe) -> int:
    """Steps after which the same signals are due again."""
    each = [one.interval_steps for one in recipe.signals if one.interval_steps != _NEVER]
    each += [getattr(one, "exact_every_steps", 0) or 1 for one in recipe.signals]
    return math.lcm(1, *each)


class ClockMeter:
    """Stands where `watch` takes a meter, and times what it is given by the benchmark's clock."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def wrap(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, its time counted for `name`; within the shared clip for that."""
        own = self.clock.timed(name, function)

        def run(*args: Any, **named: Any) -> Any:
            return (function if self.clock.label == SHARED else own)(*args, **named)

        return run


class WatchMonitor(Monitor):
    """`foreshock.watch` at one level."""

    package = "foreshock"
    notes = "what runs in threads of its own, beside the loop, is not counted"
    clips = True

    def __init__(self, level: str, *, exact: bool = False, by_signal: bool = False) -> None:
        self.name = "exact" if exact else level
        self._level, self._exact, self._by_signal = level, exact, by_signal
        self._how: dict[str, str] = {}

    def attach(self, training: Training, folder: Path) -> None:
        recipe = recipes.watching(self._level)
        if self._exact:
            found = [exactly(signal) for signal in recipe.signals]
            self._how = {signal.name: how for signal, how in found}
            recipe = dataclasses.replace(recipe, signals=tuple(signal for signal, _ in found))
        self._whole = recipe
        self.recipe = recipe = without_rare(recipe)
        meter: Any = ClockMeter(self.clock) if self._by_signal else None
        with ExitStack() as labels:
            if self._by_signal:
                labels.enter_context(labelled(self.clock, recipe.signals))
            self.watched = Watch(
                training.model,
                training.optimizer,
                recipe=recipe,
                run_dir=folder / "run",
                last_step=_LAST_STEP,
                meter=meter,
            )

    def after_backward(self, loss: torch.Tensor) -> None:
        self.watched.loss(loss)

    def clip(self, limit: float) -> None:
        self.watched.clip_(limit)

    def close(self) -> None:
        self.watched.close()

    def due(self, step: int) -> str:
        return due(self.recipe, _LAST_STEP + step)

    def period(self) -> int:
        return period(self.recipe)

    def _inexact(self) -> list[str]:
        """Signals that this version cannot be asked to measure exactly."""
        return [name for name, how in self._how.items() if how in ("sampled", "bound")]

    def facts(self) -> dict[str, Any]:
        return {
            **counted(self._whole),
            "rare_secs": rare_secs(self._whole, self.watched.attached, self.clock),
            "num_series": len(self.watched.series),
            "num_alarms": len(self.watched.alarms),
            "storage": ["timeline in memory", "run directory"],
            "shares_the_clip": True,
            **({"asked_for": self._how, "still_inexact": self._inexact()} if self._how else {}),
        }


def counted(recipe: Recipe) -> dict[str, Any]:
    """The signals and detectors of a recipe."""
    return {
        "signals": {
            one.name: f"{one.exactness}, every {one.interval_steps} steps" for one in recipe.signals
        },
        "detectors": [one.name for one in recipe.detectors],
    }


@contextmanager
def labelled(clock: Clock, signals: Sequence[Any]) -> Iterator[None]:
    """While this is open, each signal that is attached is timed under its own name.

    Its hooks, `prepare`, `measure` and `finish` are: the whole contract. (A meter that `watch`
    takes sees no hooks.) What remains under the monitor's label is the frame: packing, the
    copy, reading, hooks of the optimizer.
    """
    kinds = {type(signal) for signal in signals}
    originals = {kind: kind.attach for kind in kinds}

    def attach(signal: Any, site: Any) -> Any:
        with clock.part(signal.name):
            attached = originals[type(signal)](signal, site)
        for method in ("prepare", "measure", "finish"):
            if attached is not None and hasattr(attached, method):
                setattr(attached, method, clock.timed(signal.name, getattr(attached, method)))
        return attached

    try:
        for kind in kinds:
            kind.attach = attach
        yield
    finally:
        for kind, original in originals.items():
            kind.attach = original
