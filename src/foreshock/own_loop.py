"""A loop of the user's own in which a framework runs the backward pass."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import torch

from foreshock.core.errors import LoopError
from foreshock.core.program import Loss, as_loss
from foreshock.core.verdict import Verdict
from foreshock.guard import Guard


class OwnLoop:
    """Gives out a Guard's batches, and takes a step as the framework does it.

        for batch in loop:
            loop.step(loss_fn(model, batch))

    What else a Guard has (`step_number`, `grad_norm`, `track`, …) is there too.

    Args:
        guard: with `driven`.
        accumulate: micro-steps in a step.
        place: moves a batch to where it is trained.
        around: the context in which a micro-step runs, forward and backward, told whether it
            is the last of its step; of the others ranks need not join the gradients.
        backward: runs the backward pass from a loss, and returns the loss's share `[]` of the
            step's: the sum over its micro-steps.
        schedule: called after each micro-step, told whether it was the last of its step.
    """

    def __init__(
        self,
        guard: Guard,
        *,
        accumulate: int,
        place: Callable[[Any], Any],
        around: Callable[[bool], AbstractContextManager[Any]],
        backward: Callable[[torch.Tensor], torch.Tensor],
        schedule: Callable[[bool], None],
    ) -> None:
        self.guard = guard
        self._accumulate = accumulate
        self._place = place
        self._around = around
        self._backward = backward
        self._schedule = schedule
        self._micro_step = 0
        self._open = False
        self._context = ExitStack()

    def __iter__(self) -> "OwnLoop":
        return self

    def __next__(self) -> Any:
        if self._open:
            raise LoopError(
                f"step {self.guard.step_number + 1}: the next batch was asked for before "
                "guard.step(loss) was called for the last one"
            )
        attempt = self.guard.attempt
        batch = next(self.guard)
        if self.guard.attempt != attempt:
            self._micro_step = 0  # time went back: what was gathered is gone
        self._micro_step += 1
        self._open = True
        self._context.enter_context(self._around(self._micro_step == self._accumulate))
        return self._place(batch)

    def step(
        self, loss: "torch.Tensor | Loss", terms: Mapping[str, Any] | None = None
    ) -> Verdict | None:
        """Take one micro-step: backward, and after the last of a step the update.

        Args:
            loss: `[]` mean loss of the micro-batch, or a `Loss`.
            terms: its terms, by the names given to the Guard.

        Returns:
            The verdict after a whole step, None after an earlier micro-step.

        Raises:
            LoopError: no batch was taken, or the loss is not a scalar.
        """
        if not self._open:
            raise LoopError(
                f"step {self.guard.step_number + 1}: guard.step was called without a batch from "
                "the guard"
            )
        told = as_loss(loss, terms)
        with self._context:
            share = self._backward(told.total)
        self._open = False
        shares = {name: value / self._accumulate for name, value in told.terms.items()}
        self.guard.gathered(share, shares, told.per_sample)
        whole = self._micro_step == self._accumulate
        verdict = self.guard.update() if whole else None
        if whole:
            self._micro_step = 0
        self._schedule(whole)
        return verdict

    def close(self) -> None:
        """Stop watching; see `Guard.close`."""
        self._context.close()
        self.guard.close()

    def __enter__(self) -> "OwnLoop":
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._context.close()
        self.guard.__exit__(kind, error, trace)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "guard":
            raise AttributeError(name)
        return getattr(self.guard, name)
