"""A learning rate that jumps: for some updates, or for good."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np
from torch import nn
from torch.optim import Optimizer

from foreshock.core.errors import ConfigError
from foreshock.core.fault import StateFault


@final
@dataclass(frozen=True, kw_only=True)
class LrJump(StateFault):
    """Multiply the learning rate of every group in the next updates by `factor`.

    The rate stands raised in the optimizer's groups from the forward pass of a step to its
    update, as if the schedule had said so; what the schedule makes of it afterwards is its
    affair. Loss and gradient of the first step are those of a healthy run. Updates are counted
    as they are made: those that a rollback undoes count, those that a gate skips do not.

    - `num_updates` given: a glitch of the schedule, over when so many updates were made.
    - `num_updates` None: a rate too high for the model from now on. Going back does not help;
      only whoever lowers the rate ends it.

    Args:
        factor: on the rate, above 0. Raising it makes the updates larger in proportion.
        num_updates: how many, at least 1; None for all that follow.

    Raises:
        ConfigError: an argument is not allowed; at injection, the optimizer trains no parameter
            of this model.

    Probes, in which the model is not in training, are left alone. Activation checkpointing that
    covers the whole model runs its forward twice, which does no harm.

    No source: our choice, after restarts with a wrong schedule, which have raised the rate
    by ten (a warm-up that is over too early) to several hundred times (one that is lost).
    """

    name: ClassVar[str] = "lr_jump"
    cause: ClassVar[str] = "lr_too_high"

    factor: float = 10.0
    num_updates: int | None = 5

    def __post_init__(self) -> None:
        if not 0 < self.factor < math.inf:
            raise ConfigError(f"LrJump.factor is {self.factor}; it must be above 0, and finite.")
        if self.num_updates is not None and self.num_updates < 1:
            raise ConfigError(
                f"LrJump.num_updates is {self.num_updates}; it must be at least 1, or None."
            )

    def inject(self, model: nn.Module, optimizer: Optimizer, rng: np.random.Generator) -> str:
        trained = {id(p) for group in optimizer.param_groups for p in group["params"]}
        if not any(id(parameter) in trained for parameter in model.parameters()):
            raise ConfigError(
                f"LrJump: this {type(optimizer).__name__} trains no parameter of the model; give "
                "the optimizer that does."
            )
        _Jump(model, optimizer, self.factor, self.num_updates)
        span = "from now on" if self.num_updates is None else f"in {self.num_updates} update(s)"
        return f"the learning rate is multiplied by {self.factor:g} {span}"


class _Jump:
    """Raises the rate before each step's forward, and puts it back after the update."""

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, factor: float, num_updates: int | None
    ) -> None:
        self._optimizer = optimizer
        self._factor = factor
        self._left = num_updates
        self._raised: list[tuple[Any, float]] = []  # by group: its own rate, the raised one
        self._hooks = [
            model.register_forward_pre_hook(self._raise),
            optimizer.register_step_post_hook(self._put_back),
        ]

    def _raise(self, model: nn.Module, inputs: Any) -> None:
        groups = self._optimizer.param_groups
        rates = [float(group["lr"]) for group in groups]
        if not model.training or rates == [high for _, high in self._raised]:
            return  # a later micro-step, or one after a skipped update that no schedule followed
        own = [group["lr"] for group in groups]
        for group in groups:
            group["lr"] = group["lr"] * self._factor  # not in place: it may be a tensor
        self._raised = [(one, float(g["lr"])) for one, g in zip(own, groups, strict=True)]

    def _put_back(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not self._raised:
            return
        for group, (own, _) in zip(optimizer.param_groups, self._raised, strict=True):
            group["lr"] = own
        self._raised = []
        if self._left is not None:
            self._left -= 1
            if self._left == 0:
                for hook in self._hooks:
                    hook.remove()
