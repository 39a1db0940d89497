"""Who spent a step's time: the training itself, or the code of a monitor."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, NamedTuple

import torch

TRAINING = "training."
"""Labels of the training's own parts begin so."""

_REGISTRATIONS: tuple[tuple[Any, str], ...] = (
    (torch.nn.Module, "register_forward_hook"),
    (torch.nn.Module, "register_forward_pre_hook"),
    (torch.nn.Module, "register_full_backward_hook"),
    (torch.nn.Module, "register_full_backward_pre_hook"),
    (torch.Tensor, "register_hook"),
    (torch.Tensor, "register_post_accumulate_grad_hook"),
    (torch.optim.Optimizer, "register_step_pre_hook"),
    (torch.optim.Optimizer, "register_step_post_hook"),
)


class Spent(NamedTuple):
    """Seconds of one step, whole and by label; what no label covers is in `whole` only."""

    whole: float
    parts: dict[str, float]

    @property
    def monitor(self) -> float:
        """Seconds in the monitor's own code."""
        return sum(secs for label, secs in self.parts.items() if not label.startswith(TRAINING))


class Clock:
    """Attributes each moment of a step to the innermost label that is open.

    A label inside another stops the outer one: a hook of a monitor that runs inside the
    backward pass counts for the monitor, an `optimizer.step` that a Guard calls counts for
    the training. On a CUDA device the marks are events, and the seconds the device's own;
    elsewhere they come from `now`, by default `time.perf_counter`. A pair of marks costs about
    a microsecond.
    """

    def __init__(self, device: torch.device, now: Callable[[], float] = time.perf_counter) -> None:
        self._events = device.type == "cuda"
        self._now = now
        self._open: list[str] = []
        self._marks: list[tuple[Any, str]] = []

    @property
    def label(self) -> str:
        """The innermost open label, empty outside of all."""
        return self._open[-1] if self._open else ""

    def begin(self) -> None:
        """Begin a step."""
        self._open, self._marks = [], [(self._mark(), "")]

    def enter(self, label: str) -> None:
        """From here on time belongs to `label`."""
        self._open.append(label)
        self._marks.append((self._mark(), label))

    def leave(self) -> None:
        """Back to the label around it."""
        self._open.pop()
        self._marks.append((self._mark(), self.label))

    def end(self) -> Spent:
        """End the step and say who spent it."""
        last = self._mark()
        if self._events:
            torch.cuda.synchronize()
        stops = [mark for mark, _ in self._marks[1:]] + [last]
        parts: dict[str, float] = {}
        for (start, label), stop in zip(self._marks, stops, strict=True):
            if label:
                parts[label] = parts.get(label, 0.0) + self._between(start, stop)
        whole = self._between(self._marks[0][0], last)
        self._marks = []
        return Spent(whole, parts)

    @contextmanager
    def part(self, label: str) -> Iterator[None]:
        """A stretch of code that belongs to `label`."""
        self.enter(label)
        try:
            yield
        finally:
            self.leave()

    def timed(self, label: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, its time counted for `label`."""

        @wraps(function)
        def run(*args: Any, **named: Any) -> Any:
            self.enter(label)
            try:
                return function(*args, **named)
            finally:
                self.leave()

        return run

    @contextmanager
    def catching_hooks(self) -> Iterator[None]:
        """Every hook that is registered under an open label of a monitor is timed for it.

        Hooks on modules, tensors, gradients and optimizers. Work that a monitor does by
        replacing functions is not seen here; the paired ratio of whole steps holds it.
        """
        originals = [(owner, name, getattr(owner, name)) for owner, name in _REGISTRATIONS]
        try:
            for owner, name, original in originals:
                setattr(owner, name, self._catching(original))
            yield
        finally:
            for owner, name, original in originals:
                setattr(owner, name, original)

    def _catching(self, register: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(register)
        def run(owner: Any, hook: Callable[..., Any], *args: Any, **named: Any) -> Any:
            if self.label and not self.label.startswith(TRAINING):
                hook = self.timed(self.label, hook)
            return register(owner, hook, *args, **named)

        return run

    def _mark(self) -> Any:
        if not self._events:
            return self._now()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _between(self, start: Any, stop: Any) -> float:
        return start.elapsed_time(stop) / 1000 if self._events else stop - start
