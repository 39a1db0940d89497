"""A tiny program that is learned to the end: where the precision of the loss decides.

Addition modulo 23 by a multilayer perceptron, all pairs in every batch, Adam. Its loss falls
until nothing is left of it but rounding; taken in double precision it goes on falling.

Reference: slingshots, Thilak et al. (2022), https://arxiv.org/abs/2206.04817; what the precision
of the softmax has to do with them, Prieto et al. (2025), https://arxiv.org/abs/2501.04697.
"""

from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset

from foreshock.core.program import Program, Settings
from foreshock.data.stream import Stage, Stream

MODULUS = 23


@final
class SumTable(Dataset[Tensor]):
    """Every item is the whole table, `[M * M, 3]`: a, b and their sum modulo M; int64."""

    def __init__(self, num_items: int) -> None:
        self._num_items = num_items
        one = torch.arange(MODULUS)
        first, second = torch.meshgrid(one, one, indexing="ij")
        a, b = first.flatten(), second.flatten()
        self.table = torch.stack((a, b, (a + b) % MODULUS), dim=1)

    def __len__(self) -> int:
        return self._num_items

    def __getitem__(self, index: int) -> Tensor:
        return self.table


@final
class SumModel(nn.Module):
    """Logits `[..., M]` of the sum of a and b, `[..., 2]`, from one embedding of numbers."""

    def __init__(self, width: int = 128, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.embed = nn.Embedding(MODULUS, width // 4)
        self.up = nn.Linear(width // 2, width)
        self.head = nn.Linear(width, MODULUS)
        for parameter in self.parameters():
            std = parameter.shape[-1] ** -0.5 if parameter.ndim == 2 else 0.0
            nn.init.normal_(parameter, std=std, generator=generator)

    def forward(self, pairs: Tensor) -> Tensor:
        return self.head(torch.relu(self.up(self.embed(pairs).flatten(-2))))


def slingshot_program(settings: Settings) -> Program:
    """Addition modulo 23; overrides that it knows: `lr` and `width`."""
    generator = torch.Generator().manual_seed(settings.seed)
    model = SumModel(settings.get("width", 128), generator).to(settings.device)
    table = SumTable(settings.max_steps)
    device = settings.device
    return Program(
        model=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=settings.get("lr", 1e-2)),
        stream=Stream([Stage(name="sums", sources={"table": table})], batch_size=1, seed=0),
        loss=lambda model, batch: sum_loss(model, batch.to(device)),
        name="slingshot_program",
    )


def sum_loss(model: nn.Module, table: Tensor) -> Tensor:
    """Mean cross-entropy in nats of `table` `[B, N, 3]`, taken in double precision."""
    logits = model(table[..., :2]).double()  # [B, N, M]
    return cross_entropy(logits.flatten(0, -2), table[..., 2].flatten())
