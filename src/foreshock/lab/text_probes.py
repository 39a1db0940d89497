"""The probes of the reference program: text of each kind, long context, small exact tasks."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from foreshock.core.language import LanguageModel
from foreshock.core.probe import Probe
from foreshock.lab.text import Kind, TextWindows, load_text
from foreshock.probes.arithmetic import Arithmetic
from foreshock.probes.brackets import Brackets
from foreshock.probes.copy import Copy
from foreshock.probes.held_out_loss import HeldOutLoss
from foreshock.probes.retrieval import Retrieval
from foreshock.verification import score_tokens

NUM_ITEMS = 32
_WINDOWS_AN_ITEM = 2
_HELD_OUT_BYTES = 400_000


def text_probes(
    context: int, kinds: Sequence[Kind] = ("code", "english"), *, num_items: int = NUM_ITEMS
) -> list[Probe]:
    """Probes for a byte model.

    Args:
        context: the most bytes that it reads at once; 112 at least.
        kinds: of text, each held-out loss by itself. `code` also gives the long context.
        num_items: of each probe.
    """
    texts = {
        kind: load_text(kind, limit_bytes=_HELD_OUT_BYTES, seed=0, held_out=0.2).held_out
        for kind in kinds
    }
    held_out = [held_out_text(text, kind, context, num_items) for kind, text in texts.items()]
    if "code" in texts:
        held_out.append(_long_context(texts["code"], context, num_items))
    return [*held_out, *exact_tasks(context, num_items=num_items)]


def held_out_text(text: bytes, kind: str, context: int, num_items: int = NUM_ITEMS) -> HeldOutLoss:
    """The loss on windows of a text, an item being two that lie apart."""
    batches = _batches(text, context, num_items)
    return HeldOutLoss(batches=batches, loss=_loss, text=kind)


def exact_tasks(context: int, *, num_items: int = NUM_ITEMS) -> list[Probe]:
    """Copy, arithmetic, brackets and retrieval over bytes."""
    language = LanguageModel(encode=_bytes_of, score=score_tokens, context=context)
    shared: Mapping[str, Any] = {"language": language, "num_items": num_items}
    return [
        Copy(**shared),
        Arithmetic(**shared),
        Brackets(**shared),
        Retrieval(**shared, num_between=(context - 16) // 12 - 1),
    ]


def _long_context(text: bytes, context: int, num_items: int) -> HeldOutLoss:
    batches = _batches(text, context, num_items)
    return HeldOutLoss(batches=batches, loss=_late_loss, text="long context")


def _batches(text: bytes, context: int, num_items: int) -> list[torch.Tensor]:
    windows = TextWindows(text, context).windows[: num_items * _WINDOWS_AN_ITEM]
    return [torch.from_numpy(windows[at::num_items].astype(np.int64)) for at in range(num_items)]


def _loss(model: torch.nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    return _losses(model, tokens).mean()


def _late_loss(model: torch.nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """The loss of the last quarter, which has the most to look back on."""
    losses = _losses(model, tokens)
    return losses[:, -max(1, losses.shape[1] // 4) :].mean()


def _losses(model: torch.nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    tokens = tokens.to(next(model.parameters()).device)
    logits = model(tokens[:, :-1])
    flat = cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
    return flat.view_as(tokens[:, 1:])


def _bytes_of(text: str) -> list[int]:
    return list(text.encode())
