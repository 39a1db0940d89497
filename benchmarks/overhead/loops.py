"""One step of each loop, with its time attributed."""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from benchmarks.overhead.clock import Clock, Spent
from benchmarks.overhead.monitor import MONITOR, SHARED, Monitor
from benchmarks.overhead.ours import due, period, without_rare
from benchmarks.overhead.training import CLIP, Training, clip_gradients
from foreshock import recipes
from foreshock.guard import Guard

FORWARD, BACKWARD = "training.forward", "training.backward"
CLIPPING, UPDATE = "training.clip", "training.update"


class Loop:
    """A training by hand, and a monitor that looks on at it."""

    def __init__(self, training: Training, monitor: Monitor, clock: Clock, folder: Path) -> None:
        self.name = monitor.name
        self.monitor = monitor
        self._training, self._clock = training, clock
        self._num_steps = 0
        monitor.clock = clock
        clock.begin()
        with clock.catching_hooks(), clock.part(MONITOR):
            monitor.attach(training, folder)

    @property
    def due(self) -> str:
        """What the monitor measured in the last step and not in every one."""
        return self.monitor.due(self._num_steps)

    def shares(self) -> dict[str, float]:
        """How often each answer of `due` comes, as a share of all steps."""
        return shares(self.monitor.due, self.monitor.period())

    def step(self) -> Spent:
        """Train one step."""
        training, clock, monitor = self._training, self._clock, self.monitor
        tokens = training.batches[self._num_steps % len(training.batches)]
        self._num_steps += 1
        with clock.catching_hooks():
            clock.begin()
            with clock.part(MONITOR):
                monitor.before_forward()
            with clock.part(FORWARD):
                loss = training.loss(tokens)
            with clock.part(MONITOR):
                monitor.after_forward(loss)
            with clock.part(BACKWARD):
                loss.backward()
            with clock.part(MONITOR):
                monitor.after_backward(loss)
            if monitor.clips:
                with clock.part(SHARED):
                    monitor.clip(CLIP)
            else:
                with clock.part(CLIPPING):
                    clip_gradients(training.model.parameters())
            with clock.part(MONITOR):
                monitor.before_update()
            with clock.part(UPDATE):
                training.optimizer.step()
            with clock.part(MONITOR):
                monitor.after_update()
            training.optimizer.zero_grad(set_to_none=True)
            return clock.end()

    def close(self) -> None:
        """Stop watching."""
        self.monitor.close()


class GuardLoop:
    """A training under the Guard: what is neither forward, backward nor update is its own."""

    name = "guard"

    def __init__(self, training: Training, clock: Clock, folder: Path) -> None:
        self._training, self._clock = training, clock
        self.recipe = without_rare(recipes.watching("full"))
        clock.begin()
        with clock.catching_hooks(), clock.part(MONITOR):
            self.guard = Guard(
                training.model,
                training.optimizer,
                self._batches(),
                run_dir=folder / "run",
                clip=CLIP,
                recipe=self.recipe,
            )
        training.optimizer.step = clock.timed(UPDATE, training.optimizer.step)

    @property
    def due(self) -> str:
        """What was measured in the last step and not in every one."""
        return due(self.recipe, self.guard.step_number)

    def shares(self) -> dict[str, float]:
        """How often each answer of `due` comes, as a share of all steps."""
        return shares(lambda step: due(self.recipe, step), period(self.recipe))

    def _batches(self) -> Iterator[torch.Tensor]:
        while True:
            yield from self._training.batches

    def step(self) -> Spent:
        """Train one step."""
        clock = self._clock
        backward = torch.Tensor.backward
        torch.Tensor.backward = clock.timed(BACKWARD, backward)
        try:
            with clock.catching_hooks():
                clock.begin()
                with clock.part(MONITOR):
                    tokens = next(self.guard)
                with clock.part(FORWARD):
                    loss = self._training.loss(tokens)
                with clock.part(MONITOR):
                    self.guard.step(loss)
                return clock.end()
        finally:
            torch.Tensor.backward = backward

    def close(self) -> None:
        """Stop watching."""
        self.guard.close()


def shares(due_in: Callable[[int], str], period_steps: int) -> dict[str, float]:
    """Share of the steps of one period for each answer of `due_in`."""
    found = Counter(due_in(step) for step in range(1, period_steps + 1))
    return {answer: count / period_steps for answer, count in found.items()}
