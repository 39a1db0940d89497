"""Programs of every kind that a user may hand over, each a source file."""

import textwrap
from pathlib import Path

GOOD = """
import torch
import foreshock

class Data:
    def __len__(self):
        return {size}
    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return torch.randn(4, generator=generator)

def loss(model, batch):
    return (model(batch) - batch.sum(1, keepdim=True)).square().mean()

def program(settings):
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.1), torch.nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.get("lr", 1e-2))
    stream = foreshock.Stream({{"data": Data()}}, batch_size=4, seed=settings.seed)
    return foreshock.Program({fields})
"""

FIELDS = {
    "model": "model",
    "optimizer": "optimizer",
    "stream": "stream",
    "loss": "loss",
    "clip": "1.0",
    "held_out": "[Data()[i][None] for i in range(100, 108)]",
}


def write(folder: Path, *, size: int = 4000, more: str = "", **fields: str) -> Path:
    """Write a program file that works, but for the fields given and the lines at its end."""
    given = ", ".join(f"{key}={value}" for key, value in (FIELDS | fields).items())
    path = folder / "train.py"
    path.write_text(GOOD.format(size=size, fields=given) + textwrap.dedent(more))
    return path
