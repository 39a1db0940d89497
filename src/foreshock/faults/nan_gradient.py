"""One gradient that comes out of the backward pass as NaN."""

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
from torch import Tensor, nn
from torch.optim import Optimizer

from foreshock.core.errors import ConfigError
from foreshock.core.fault import StateFault


@final
@dataclass(frozen=True, kw_only=True)
class NanGradient(StateFault):
    """Make every element of one parameter's gradient NaN, in the next backward pass only.

    Loss and weights of that step stay finite: the fault is born in the backward pass. With
    gradient accumulation the first micro-step is hit, which spoils the sum. Nothing happens
    while a backward pass does not reach the parameter. The optimizer is left alone.

    Args:
        parameter: path of the parameter; by default the generator draws one of those trained.

    Raises:
        ConfigError: at injection, the model trains no parameter of that path.

    No source: our choice, because it is the smallest fault that a gate must stop.
    """

    name: ClassVar[str] = "nan_gradient"
    cause: ClassVar[str] = "numeric_overflow"

    parameter: str | None = None

    def inject(self, model: nn.Module, optimizer: Optimizer, rng: np.random.Generator) -> str:
        trained = {path: p for path, p in model.named_parameters() if p.requires_grad}
        path = self.parameter
        if path is None and trained:
            path = list(trained)[rng.integers(len(trained))]
        if path is None or path not in trained:
            raise ConfigError(
                f"NanGradient.parameter is {self.parameter!r}; allowed is a parameter that this "
                f"model trains: {', '.join(trained) or 'it has none'}."
            )

        def spoil(gradient: Tensor) -> Tensor:
            hook.remove()
            return gradient.new_full(gradient.shape, float("nan"))

        hook = trained[path].register_hook(spoil)
        return f"armed {path}: its next gradient is NaN"
