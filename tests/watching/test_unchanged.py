"""Training is the same bit by bit with and without `watch`, whatever else is done to a model.

Weights, optimizer state, loss scale, losses (those of evaluations between micro-steps too) and the
states of all generators, with every option of `watch` on that adds hooks or passes.
"""

import dataclasses
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from tests.watching.trainings import (
    LENGTH,
    VOCABULARY,
    End,
    Training,
    differences,
    everything,
    gpt,
    one_process_group,
    train,
)

FUSED = partial(torch.optim.AdamW, lr=1e-2, fused=True)
INF_STEPS = (3, 4, 11)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Small models are faster on one thread, and the machine is shared."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def checkpointed(*, reentrant: bool) -> nn.Module:
    """A GPT whose blocks are computed again in the backward pass."""
    model = gpt(dropout=0.1)
    for block in model.blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=reentrant)
    return model


class Encoder(nn.Module):
    """`nn.TransformerEncoder` over tokens, causal."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.1, batch_first=True)
        self.embed = nn.Embedding(VOCABULARY, 32)
        self.encoder = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(32))
        self.head = nn.Linear(32, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        return self.head(self.encoder(self.embed(tokens), mask=mask, is_causal=True))


def llama(attention: str, *, reentrant: bool | None = None) -> nn.Module:
    """A tiny Llama of transformers, checkpointed if it is said how."""
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=LENGTH,
        attention_dropout=0.1,
        use_cache=False,
        attn_implementation=attention,
    )
    return _checkpointed_by_transformers(transformers.LlamaForCausalLM(config), reentrant)


def gpt2(attention: str, *, reentrant: bool | None = None) -> nn.Module:
    """A tiny GPT-2 of transformers, with dropout."""
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY,
        n_embd=32,
        n_layer=2,
        n_head=2,
        n_positions=LENGTH,
        use_cache=False,
        bos_token_id=0,
        eos_token_id=0,
        attn_implementation=attention,
    )
    return _checkpointed_by_transformers(transformers.GPT2LMHeadModel(config), reentrant)


def _checkpointed_by_transformers(model: Any, reentrant: bool | None) -> nn.Module:
    if reentrant is not None:
        model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    return model


MODES: dict[str, Training] = {
    "fp32": Training(),
    "dropout": Training(build=partial(gpt, dropout=0.1)),
    "fused AdamW": Training(optimizer=FUSED),
    "own clip": Training(clip=0.3),
    "momentum": Training(optimizer=partial(torch.optim.SGD, lr=0.1, momentum=0.9)),
    "amsgrad, foreach": Training(
        optimizer=partial(torch.optim.Adam, lr=1e-2, amsgrad=True, foreach=True)
    ),
    "bf16 autocast": Training(autocast=torch.bfloat16),
    "bf16 weights": Training(bf16=True),
    "micro-steps": Training(micro_steps=3, build=partial(gpt, dropout=0.1)),
    # fp16 overflows by itself at 2^24, and the infinite losses come on top.
    "fp16, scaler": Training(autocast=torch.float16, scale=2.0**24, bad_steps=INF_STEPS),
    "fp16, scaler, fused": Training(
        autocast=torch.float16, scale=2.0**24, bad_steps=INF_STEPS, optimizer=FUSED
    ),
    "fp16, scaler, fused, own clip, micro-steps": Training(
        autocast=torch.float16,
        scale=2.0**24,
        bad_steps=INF_STEPS,
        optimizer=FUSED,
        clip=0.3,
        micro_steps=3,
    ),
    "non-reentrant checkpoints": Training(build=partial(checkpointed, reentrant=False)),
    "reentrant checkpoints": Training(build=partial(checkpointed, reentrant=True)),
    "non-reentrant checkpoints, autocast, micro-steps": Training(
        build=partial(checkpointed, reentrant=False), autocast=torch.bfloat16, micro_steps=3
    ),
    "TransformerEncoder": Training(build=Encoder),
    "Llama, sdpa": Training(build=partial(llama, "sdpa")),
    "Llama, eager": Training(build=partial(llama, "eager")),
    "Llama, sdpa, checkpoints": Training(build=partial(llama, "sdpa", reentrant=False)),
    "Llama, eager, reentrant checkpoints": Training(build=partial(llama, "eager", reentrant=True)),
    "GPT-2, sdpa": Training(build=partial(gpt2, "sdpa")),
    "GPT-2, eager": Training(build=partial(gpt2, "eager")),
    "GPT-2, eager, checkpoints": Training(build=partial(gpt2, "eager", reentrant=False)),
}
every_mode = pytest.mark.parametrize("mode", MODES)


def both(how: Training, **when: Any) -> tuple[End, End]:
    plain, watched = train(how), train(how, everything(), **when)
    assert differences(plain, watched) == []
    return plain, watched


def was_measured(end: End, steps: int) -> None:
    """The watch was really there: each kind of series has values in nearly every step."""
    for kind in ("loss", "grad_norm", "activation_rms", "max_attention_logit", "max_output_logit"):
        some = [len(found) for name, found in end.readings.items() if name.startswith(kind + "/")]
        assert some and max(some) >= steps, kind
    assert not [said for said in end.notes.values() if said.startswith("not observed")]


@every_mode
def test_each_mode(mode: str) -> None:
    plain, watched = both(MODES[mode])
    assert len({one.item() for one in plain.losses}) > 20  # it trains
    skipped = 0 if MODES[mode].scale is None else 8
    was_measured(watched, MODES[mode].steps - skipped)


@pytest.mark.slow
@every_mode
def test_each_mode_for_two_hundred_steps(mode: str) -> None:
    both(dataclasses.replace(MODES[mode], steps=200))


def test_two_hundred_steps() -> None:
    both(dataclasses.replace(MODES["fp32"], steps=200))
