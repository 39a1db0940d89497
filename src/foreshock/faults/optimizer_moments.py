"""Second moments of an Adam-type optimizer that no longer fit the gradients."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from foreshock.core.errors import ConfigError
from foreshock.core.fault import StateFault

SECOND_MOMENTS = ("exp_avg_sq", "max_exp_avg_sq")  # the latter with amsgrad
Mode = Literal["scaled", "zeroed", "embedding"]
MODES: tuple[Mode, ...] = ("scaled", "zeroed", "embedding")


@final
@dataclass(frozen=True, kw_only=True)
class OptimizerMoments(StateFault):
    """Shrink second moments v in place; first moments and step counts stay as they were.

    The next update grows by 1/sqrt(factor), until v has been learned anew, which takes about
    1 / (1 - beta2) steps. Loss and gradient norm of the first step are still those of a healthy
    run: nothing but the update shows the fault.

    - `scaled`: v of every parameter times `factor`, as after a resume that kept v in other units
      (another loss scale or gradient reduction).
    - `zeroed`: v of some parameters is 0, as when 16-bit storage flushed it or one shard of a
      checkpoint was not loaded. The next update divides by eps alone.
    - `embedding`: `scaled`, but of the `nn.Embedding` weights only.

    Args:
        mode: which of the three.
        intensity: 0 to 1, 0 is no damage. In `scaled` and `embedding`,
            factor = 10^(-6 * intensity). In `zeroed`, the share of the parameters (drawn at
            random, rounded up). Raising it makes the fault easier to see and harder to survive.

    Raises:
        ConfigError: an argument is not allowed; at injection, the optimizer holds no second
            moments (it is of another type, or has not taken a step), or, in mode `embedding`,
            none of an `nn.Embedding`.

    Measured on the lab GPT, three seeds, lr 1.1e-3, beta2 0.95: the first update is 11 times as
    large in `scaled` at intensity 0.5, about 100 times at 1; held-out loss is more than 0.1 too
    high for 10 to 16 and for 39 steps or more. `zeroed` does as much from 0.5 on; `embedding`
    never does so for 10 steps.

    No source: our choice, because it is the smallest damage that only the update can show.
    """

    name: ClassVar[str] = "optimizer_moments"
    cause: ClassVar[str] = "optimizer_state_corrupt"

    mode: Mode = "scaled"
    intensity: float = 1.0

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ConfigError(
                f"OptimizerMoments.mode is {self.mode!r}; allowed: {', '.join(MODES)}."
            )
        self.require_share("intensity")

    @torch.no_grad()
    def inject(self, model: nn.Module, optimizer: Optimizer, rng: np.random.Generator) -> str:
        moments = _second_moments(model, optimizer, embeddings_only=self.mode == "embedding")
        if self.mode == "zeroed":
            num_zeroed = math.ceil(self.intensity * len(moments))
            names = rng.permutation(list(moments))[:num_zeroed].tolist()
            for moment in (moment for name in names for moment in moments[name]):
                moment.zero_()
            return f"zeroed the second moments of {len(names)} of {len(moments)} parameters"
        factor = 10.0 ** (-6.0 * self.intensity)
        for moment in (moment for group in moments.values() for moment in group):
            moment.mul_(factor)
        which = "every embedding" if self.mode == "embedding" else "every parameter"
        return f"scaled the second moments of {which} ({len(moments)} in all) by {factor:.3g}"


def _second_moments(
    model: nn.Module, optimizer: Optimizer, *, embeddings_only: bool
) -> dict[str, list[Tensor]]:
    """The optimizer's second moments of each parameter, by the parameter's path."""
    embeddings = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    moments: dict[str, list[Tensor]] = {}
    for path, parameter in model.named_parameters():
        state = optimizer.state.get(parameter, {})
        held = [state[key] for key in SECOND_MOMENTS if key in state]
        if held and (id(parameter) in embeddings or not embeddings_only):
            moments[path] = held
    if not moments:
        raise ConfigError(
            f"OptimizerMoments found no {SECOND_MOMENTS[0]!r} of "
            f"{'an nn.Embedding' if embeddings_only else 'any parameter'} in this "
            f"{type(optimizer).__name__}. It needs an Adam-type optimizer that has taken a step."
        )
    return moments
