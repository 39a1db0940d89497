"""The reference program: a small GPT on real text, with room for a poisoned stage."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from foreshock.core.program import Program, Settings
from foreshock.data.stream import Stage, Stream
from foreshock.lab.gpt import GPT, GPTConfig
from foreshock.lab.text import Kind, TextWindows, load_text

CONTEXT = 128
BATCH_SIZE = 16
HELD_OUT_BATCHES = 12
HELD_OUT_BATCH_SIZE = 4
POISON_SOURCE = "crawl-2026-17"

_TEXT_BYTES: Mapping[Kind, int] = {"code": 2_400_000, "english": 1_200_000}
_CLIP = 1.0
_WARMUP_STEPS = 30
_LAST_LR_SHARE = 0.1


def text_program(settings: Settings) -> Program:
    """A byte-level GPT on the standard library's code and English.

    Overrides that it knows: `lr`, `width`, `depth`, `dropout`, and `poison`: a mapping with
    `step` (batches before it), `batches`, `fault` (a DataFault) and `seed`.
    """
    splits = {
        kind: load_text(kind, limit_bytes=limit, seed=0) for kind, limit in _TEXT_BYTES.items()
    }
    clean = {kind: TextWindows(split.train, CONTEXT) for kind, split in splits.items()}
    held_out = np.concatenate(
        [
            TextWindows(split.held_out, CONTEXT).windows[: HELD_OUT_BATCHES * 2]
            for split in splits.values()
        ]
    )
    generator = torch.Generator().manual_seed(settings.seed)
    config = GPTConfig(
        width=settings.get("width", 96),
        depth=settings.get("depth", 3),
        dropout=settings.get("dropout", 0.0),
        context=CONTEXT,
    )
    model = GPT(config, generator).to(settings.device)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=settings.get("lr", 2e-3), betas=(0.9, 0.95), weight_decay=0.1
    )
    steps = settings.max_steps

    def share(step: int) -> float:
        warm = min(1.0, (step + 1) / _WARMUP_STEPS)
        fall = 0.5 * (1 + math.cos(math.pi * min(1.0, step / steps)))
        return warm * (_LAST_LR_SHARE + (1 - _LAST_LR_SHARE) * fall)

    device = settings.device
    return Program(
        model=model,
        optimizer=optimizer,
        scheduler=torch.optim.lr_scheduler.LambdaLR(optimizer, share),
        stream=Stream(
            _stages(clean, settings),
            batch_size=BATCH_SIZE,
            seed=settings.seed,
            to_text=to_text,
        ),
        loss=lambda model, batch: next_byte_loss(model, batch.to(device)),
        clip=_CLIP,
        held_out=[
            torch.from_numpy(held_out[at::HELD_OUT_BATCHES].astype(np.int64))
            for at in range(HELD_OUT_BATCHES)
        ],
        to_text=to_text,
        name="text_program",
    )


def next_byte_loss(model: torch.nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy in nats of `tokens` `[B, T + 1]`, each byte from those before it."""
    logits = model(tokens[:, :-1])
    return cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def to_text(sample: torch.Tensor) -> str:
    """The text of a window; bytes that are no UTF-8 show as U+FFFD.

    A window may cut a character in two: what is left of it at either end is no damage.
    """
    data = sample.to(torch.uint8).numpy().tobytes()
    start = next((i for i, byte in enumerate(data[:4]) if byte & 0xC0 != 0x80), 0)
    text = data[start:].decode("utf-8", errors="replace")
    cut = next((n for n in (1, 2, 3) if _is_cut(data[-n:])), 0)
    return text[:-1] if cut and text.endswith("\ufffd") else text


def _is_cut(tail: bytes) -> bool:
    """Whether `tail` begins a UTF-8 character that needs more bytes than it has."""
    lead = tail[0]
    length = 2 if lead >> 5 == 0b110 else 3 if lead >> 4 == 0b1110 else 4 if lead >> 3 == 30 else 0
    return length > len(tail) and all(byte & 0xC0 == 0x80 for byte in tail[1:])


def _stages(clean: Mapping[str, TextWindows], settings: Settings) -> list[Stage]:
    poison: Mapping[str, Any] | None = settings.get("poison", None)
    weights = {"code": 0.6, "english": 0.4}
    num_samples = 4 * settings.max_steps * BATCH_SIZE
    if poison is None:
        return [Stage(name="text", sources=clean, weights=weights, num_samples=num_samples)]
    before = poison["step"] * BATCH_SIZE
    rng = np.random.default_rng(poison["seed"])
    spoiled = clean["english"].windows[: poison["batches"] * BATCH_SIZE]
    shard = poison["fault"].poison(spoiled, rng)
    return [
        Stage(name="text", sources=clean, weights=weights, num_samples=before),
        Stage(name="crawl", sources={POISON_SOURCE: TextWindows(shard.tobytes(), CONTEXT)}),
        Stage(name="more text", sources=clean, weights=weights, num_samples=num_samples - before),
    ]
