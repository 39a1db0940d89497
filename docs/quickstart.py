"""A complete program: a small GPT on the text of Python's own library, under Foreshock.

foreshock run quickstart.py:program --run-dir runs/first --max-steps 200
"""

import pydoc_data.topics

import torch
from torch import nn

import foreshock

CONTEXT = 64


class Windows:
    """Fixed windows of text: anything with a length and items is a dataset."""

    def __init__(self, text: bytes, device: str) -> None:
        self.text = torch.frombuffer(bytearray(text), dtype=torch.uint8).long().to(device)

    def __len__(self) -> int:
        return len(self.text) // CONTEXT - 1

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.text[index * CONTEXT : (index + 1) * CONTEXT + 1]


class Model(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            width, 4, 4 * width, 0.1, batch_first=True, norm_first=True
        )
        self.embed = nn.Embedding(256, width)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(CONTEXT, device=tokens.device)
        x = self.body(self.embed(tokens), mask, is_causal=True)
        return self.head(self.norm(x))


def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())


def program(settings: foreshock.Settings) -> foreshock.Program:
    text = "".join(pydoc_data.topics.topics.values()).encode()
    train, held_out = (Windows(t, settings.device) for t in (text[:-20_000], text[-20_000:]))
    model = Model().to(settings.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.get("lr", 2e-3))
    stream = foreshock.Stream({"help": train}, batch_size=16, seed=settings.seed)
    probe = [torch.stack([held_out[i + j] for j in range(4)]) for i in range(0, 32, 4)]
    return foreshock.Program(
        model=model, optimizer=optimizer, stream=stream, loss=loss, clip=1.0, held_out=probe
    )
