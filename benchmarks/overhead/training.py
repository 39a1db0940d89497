"""The training that is watched: a compact GPT on random tokens, and its plain step."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch.nn.functional import cross_entropy

from foreshock.lab.gpt import GPT, GPTConfig

CLIP = 1.0
LR = 3e-4
NUM_BATCHES = 8


@dataclass(frozen=True, kw_only=True)
class Size:
    """A model and its batch: `[batch, context]` tokens out of `vocab`."""

    width: int
    depth: int
    heads: int
    batch: int
    context: int = 256
    vocab: int = 8192
    dtype: torch.dtype = torch.float32


SIZES = {
    "tiny": Size(width=32, depth=2, heads=2, batch=2, context=16, vocab=64),
    "10M": Size(width=256, depth=7, heads=4, batch=4),
    "50M": Size(width=512, depth=13, heads=8, batch=2),
    "1B": Size(
        width=2048, depth=18, heads=16, batch=4, context=2048, vocab=32768, dtype=torch.bfloat16
    ),
}


class Training:
    """Model, fused AdamW and batches; the same for every seed and device.

    Args:
        size: what to build.
        device: where.
        optimizer: AdamW, or a subclass of it with another tool's methods.
    """

    def __init__(
        self,
        size: Size,
        device: torch.device,
        optimizer: type[torch.optim.AdamW] = torch.optim.AdamW,
    ) -> None:
        generator = torch.Generator().manual_seed(0)
        config = GPTConfig(
            vocab=size.vocab,
            width=size.width,
            depth=size.depth,
            heads=size.heads,
            context=size.context,
        )
        self.model = GPT(config, generator).to(device, size.dtype)
        self.optimizer = optimizer(self.model.parameters(), lr=LR, fused=True)
        shape = (NUM_BATCHES, size.batch, size.context + 1)
        self.batches = torch.randint(size.vocab, shape, generator=generator).to(device)

    def loss(self, tokens: torch.Tensor) -> torch.Tensor:
        """Mean cross-entropy of the next token, `[]`."""
        logits = self.model(tokens[:, :-1])
        return cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())

    @property
    def num_parameters(self) -> int:
        """Parameters in all."""
        return sum(parameter.numel() for parameter in self.model.parameters())


def clip_gradients(parameters: Iterable[torch.Tensor]) -> None:
    """The clip of the plain loop."""
    torch.nn.utils.clip_grad_norm_(parameters, CLIP)
