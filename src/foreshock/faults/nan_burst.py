"""NaN in several training passes in a row."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, final

import numpy as np
from torch import Tensor, nn
from torch.optim import Optimizer

from foreshock.core.errors import ConfigError
from foreshock.core.fault import StateFault

Place = Literal["backward", "forward"]
PLACES: tuple[Place, ...] = ("backward", "forward")


@final
@dataclass(frozen=True, kw_only=True)
class NanBurst(StateFault):
    """Make one parameter's gradient, or what one module passes on, NaN for several passes.

    The weights stay finite as long as no update is made of it.

    - `backward`: the gradient of one parameter, drawn from those trained. Loss and weights are
      finite.
    - `forward`: every floating-point output of one module, drawn from those that have a trained
      parameter of their own, in training only. The loss and every gradient are NaN.

    Args:
        num_passes: passes in a row, at least 1, forward and backward counted as one; a step with
            accumulation takes several. Raising it outlasts whoever only skips.
        place: where it is born.

    Raises:
        ConfigError: an argument is not allowed; at injection, the model trains no parameter.

    Passes are counted as they are made, those of steps included that a rollback undoes. With
    activation checkpointing a module's forward runs twice in a pass, and counts twice.

    No source: our choice, because one skipped step does not end it.
    """

    name: ClassVar[str] = "nan_burst"
    cause: ClassVar[str] = "numeric_overflow"

    num_passes: int = 5
    place: Place = "backward"

    def __post_init__(self) -> None:
        if self.num_passes < 1:
            raise ConfigError(f"NanBurst.num_passes is {self.num_passes}; it must be at least 1.")
        if self.place not in PLACES:
            raise ConfigError(f"NanBurst.place is {self.place!r}; allowed: {', '.join(PLACES)}.")

    def inject(self, model: nn.Module, optimizer: Optimizer, rng: np.random.Generator) -> str:
        trained = {path: p for path, p in model.named_parameters() if p.requires_grad}
        if not trained:
            raise ConfigError("NanBurst found no parameter that this model trains.")
        if self.place == "backward":
            path = list(trained)[rng.integers(len(trained))]
            return self._arm_gradient(path, trained[path])
        modules = list(dict.fromkeys(path.rpartition(".")[0] for path in trained))
        path = modules[rng.integers(len(modules))]
        return self._arm_output(path, model.get_submodule(path))

    def _arm_gradient(self, path: str, parameter: nn.Parameter) -> str:
        left = self.num_passes

        def spoil(gradient: Tensor) -> Tensor:
            nonlocal left
            left -= 1
            if left == 0:
                hook.remove()
            return gradient.new_full(gradient.shape, float("nan"))

        hook = parameter.register_hook(spoil)
        return f"armed {path}: its next {self.num_passes} gradient(s) are NaN"

    def _arm_output(self, path: str, module: nn.Module) -> str:
        left = self.num_passes

        def spoil(called: nn.Module, inputs: Any, output: Any) -> Any:
            nonlocal left
            if not called.training:
                return output
            left -= 1
            if left == 0:
                hook.remove()
            return _spoiled(output)

        hook = module.register_forward_hook(spoil)
        return f"armed {path or 'the model'}: its next {self.num_passes} output(s) are NaN"


def _spoiled(output: Any) -> Any:
    """The same, but for floating-point tensors, which become NaN."""
    if isinstance(output, Tensor):
        return output * float("nan") if output.is_floating_point() else output
    if isinstance(output, list):
        return [_spoiled(one) for one in output]
    return tuple(_spoiled(one) for one in output) if isinstance(output, tuple) else output
