"""Attention logits that grow from update to update."""

from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np
import torch
from torch import Tensor, nn

from foreshock.anatomy import anatomy_of
from foreshock.core.errors import ConfigError
from foreshock.core.fault import ProgramFault
from foreshock.core.program import Program

_QUERY_OR_KEY = ("q", "k", "query", "key", "wq", "wk", "q_proj", "k_proj", "to_q", "to_k")


@final
@dataclass(frozen=True, kw_only=True)
class AttentionLogits(ProgramFault):
    """Let the weights of queries and keys grow by a share with every update.

    Each update multiplies them by `1 + rate * intensity`, and so the logits by its square; what
    the gradient makes of them comes on top. The growth is exponential, as it is where neither
    QK-norm nor decay holds it. Two thirds of a projection to queries, keys and values at once
    count, whose output is three times as wide as its input.

    Args:
        intensity: 0 to 1.
        rate: growth with each update at 1, above 0.

    Raises:
        ConfigError: an argument is out of its range; at the change, no projection to queries or
            keys is found in the model.

    Measured on a GPT 64 wide on bytes (lr 6e-3, beta2 0.95, clip 1, one seed), from step 240,
    at 0.35, 0.65 and 1; excess of the training loss over a healthy twin: +0.06, +0.18 and +0.13
    after 75 steps. The attention logit moves from the first step on; gradient norm alarms after
    78, 51 and 36.

    Reference: attention logits that grow until attention is one-hot, Wortsman et al. (2023),
    "Small-scale proxies for large-scale Transformer training instabilities", section 3.1,
    https://arxiv.org/abs/2309.14322. The growth by itself is our choice.
    """

    name: ClassVar[str] = "attention_logits"
    cause: ClassVar[str] = "attention_logit_growth"

    intensity: float = 1.0
    rate: float = 0.08

    def __post_init__(self) -> None:
        self.require_share("intensity")
        if not self.rate > 0:
            raise ConfigError(f"AttentionLogits.rate is {self.rate}; it must be above 0.")

    def change(self, program: Program, rng: np.random.Generator) -> tuple[Program, str]:
        weights = _queries_and_keys(program.model)
        if not weights:
            raise ConfigError("AttentionLogits found no projection to queries and keys.")
        growth = 1.0 + self.rate * self.intensity

        @torch.no_grad()
        def grow(optimizer: Any, args: Any, kwargs: Any) -> None:
            for weight, rows in weights:
                weight[:rows] *= growth

        program.optimizer.register_step_post_hook(grow)
        return program, f"queries and keys grow by {growth - 1:.3g} with each update"


def _queries_and_keys(model: nn.Module) -> list[tuple[Tensor, int]]:
    """Weights of projections to queries and keys, with the number of rows that are such."""
    found: list[tuple[Tensor, int]] = []
    for part in anatomy_of(model).attention_parts:
        for path, module in model.get_submodule(part.path).named_modules():
            if not isinstance(module, nn.Linear):
                continue
            if module.out_features == 3 * module.in_features:
                found.append((module.weight, 2 * module.in_features))
            elif path.rpartition(".")[2] in _QUERY_OR_KEY:
                found.append((module.weight, module.out_features))
    return found
