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
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from foreshock.watching import Watch
from tests.watching.trainings import (
    LENGTH,
    VOCABULARY,
    End,
    Training,
    around_blocks,
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


def checkpointed(block: nn.Module, x: Tensor, *, reentrant: bool = False) -> Tensor:
    return checkpoint(block, x, use_reentrant=reentrant)


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


CHECKPOINTED = around_blocks(checkpointed, dropout=0.1)

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
    "non-reentrant checkpoints": Training(build=CHECKPOINTED),
    "reentrant checkpoints": Training(
        build=around_blocks(partial(checkpointed, reentrant=True), dropout=0.1)
    ),
    "non-reentrant checkpoints, autocast, micro-steps": Training(
        build=CHECKPOINTED, autocast=torch.bfloat16, micro_steps=3
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
    assert len({one.item() for one in plain.losses}) > 10  # it trains
    skipped = 0 if MODES[mode].scale is None else 8
    was_measured(watched, MODES[mode].steps - skipped)


@pytest.mark.slow
@every_mode
def test_each_mode_for_two_hundred_steps(mode: str) -> None:
    both(dataclasses.replace(MODES[mode], steps=200))


def test_two_hundred_steps() -> None:
    both(dataclasses.replace(MODES["fp32"], steps=200))


def compiled(backend: str) -> Callable[[nn.Module], Any]:
    return lambda model: torch.compile(model, backend=backend)


COMPILED: dict[str, Training] = {
    "compiled": Training(build=partial(gpt, depth=1), steps=70),
    "compiled, micro-steps": Training(build=partial(gpt, depth=1), micro_steps=3),
    "compiled, bf16 autocast": Training(build=partial(gpt, depth=1), autocast=torch.bfloat16),
    "compiled, bf16 weights": Training(build=partial(gpt, depth=1), bf16=True),
    "compiled, dropout": Training(build=partial(gpt, depth=1, dropout=0.1)),
    "compiled, fp16, scaler": Training(
        build=partial(gpt, depth=1),
        autocast=torch.float16,
        scale=2.0**24,
        bad_steps=INF_STEPS,
        optimizer=FUSED,
    ),
    "compiled, non-reentrant checkpoints": Training(build=CHECKPOINTED),
    "compiled, Llama": Training(build=partial(llama, "sdpa")),
    "compiled, GPT-2": Training(build=partial(gpt2, "eager")),
}
WHEN = {
    "watched before": {},
    "attached after 50": {"attach_after": 50},
    "detached after 50": {"detach_after": 50},
    "attached, then detached": {"attach_after": 20, "detach_after": 50},
}


@lru_cache(maxsize=1)
def plain_compiled(mode: str, backend: str, steps: int) -> End:
    return train(dataclasses.replace(COMPILED[mode], wrap=compiled(backend), steps=steps))


def check_compiled(mode: str, backend: str, when: str, steps: int) -> None:
    how = dataclasses.replace(COMPILED[mode], wrap=compiled(backend), steps=steps)
    watched = train(how, everything(), **WHEN[when])
    assert differences(plain_compiled(mode, backend, steps), watched) == []
    options = WHEN[when]
    num = options.get("detach_after", steps) - options.get("attach_after", 0)
    for series in ("loss/global", "activation_rms/blocks.0", "max_output_logit/global"):
        if series in watched.readings:
            assert len(watched.readings[series]) == num, series


@pytest.mark.parametrize("when", WHEN)
def test_compiled(when: str) -> None:
    check_compiled("compiled", "aot_eager", when, 70)


def test_compiled_checkpoints() -> None:
    check_compiled("compiled, non-reentrant checkpoints", "aot_eager", "watched before", 12)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["compiled, bf16 autocast", "compiled, micro-steps"])
def test_compiled_in_earnest(mode: str) -> None:
    check_compiled(mode, "inductor", "attached, then detached", 60)


@pytest.mark.proof  # the compilers take most of an hour for it
@pytest.mark.parametrize(
    ("mode", "backend"),
    [
        (mode, backend)
        for backend in ("aot_eager", "inductor")
        for mode in COMPILED
        if (mode, backend) != ("compiled, bf16 weights", "inductor")  # see below
    ],
)
def test_every_compiled_mode(mode: str, backend: str) -> None:
    for when in WHEN:
        check_compiled(mode, backend, when, 80)


@pytest.mark.slow
def test_two_hundred_compiled_steps() -> None:
    check_compiled("compiled", "inductor", "watched before", 200)


@pytest.mark.slow
def test_bf16_weights_under_inductor_rounding_as_eager_code_does() -> None:
    """Else what is fused is not rounded, and looking at it changes what is fused."""
    with torch._inductor.config.patch(emulate_precision_casts=True):
        check_compiled("compiled, bf16 weights", "inductor", "watched before", 81)


@pytest.mark.slow
def test_bf16_weights_under_inductor_compiled_by_blocks() -> None:
    """As large models are compiled: a block's output is the graph's, and rounded in any case."""

    def by_blocks(model: Any) -> nn.Module:
        for block in model.blocks:
            block.compile(backend="inductor")
        return model

    _, watched = both(Training(wrap=by_blocks, bf16=True, steps=80))
    assert len(watched.readings["activation_rms/blocks.0"]) == 80


def test_evaluation_of_torchs_encoder_takes_the_slow_path() -> None:
    """Torch's fast path for evaluation is not for modules with hooks: other rounding, there only.

    The training is the same, as everywhere.
    """
    how = Training(build=Encoder, micro_steps=2, steps=10)
    plain, watched = train(how), train(how, everything())
    evaluations = slice(1, None, 3)  # micro-step, evaluation, micro-step
    torch.testing.assert_close(
        plain.losses[evaluations], watched.losses[evaluations], rtol=1e-6, atol=1e-6
    )
    del plain.losses[evaluations], watched.losses[evaluations]
    assert differences(plain, watched) == []


@pytest.mark.parametrize("transform", ["vmap", "grad"])
def test_function_transforms(transform: str) -> None:
    """Gradients of each sample by `torch.func`: nothing can be seen of such a forward."""

    def weights(observed: bool) -> Tensor:
        torch.manual_seed(0)
        model = gpt()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        recipe = everything(exact_every_steps=1)
        watched = Watch(model, optimizer, recipe=recipe, with_loss=False) if observed else None

        def loss(values: Any, row: Tensor) -> Tensor:
            logits = functional_call(model, values, (row[None, :-1],))
            return cross_entropy(logits.flatten(0, 1), row[1:])

        for _ in range(5):
            tokens = torch.randint(VOCABULARY, (4, LENGTH + 1))
            values = {name: one.detach() for name, one in model.named_parameters()}
            if transform == "vmap":
                found = vmap(grad(loss), (None, 0))(values, tokens)
                found = {name: one.mean(0) for name, one in found.items()}
            else:
                found = grad(loss)(values, tokens[0])
            for name, one in model.named_parameters():
                one.grad = found[name]
            optimizer.step()
        if watched is not None:
            assert len(watched.readings("grad_norm/global")) == 5
            assert not watched.readings("activation_rms/blocks.0")
            assert not watched.readings("max_attention_logit/global")
            assert "function transform" in watched.notes["attention_logits/blocks.0.attn"]
            watched.close()
        return torch.cat([one.detach().flatten() for one in model.parameters()])

    assert torch.equal(weights(False), weights(True))


def test_a_forward_on_fake_tensors_is_not_seen() -> None:
    """As tools do that ask how much memory a step needs."""
    model = gpt()
    optimizer = torch.optim.AdamW(model.parameters())
    with Watch(model, optimizer, recipe=everything(), with_loss=False) as watched:
        tokens = torch.randint(VOCABULARY, (2, LENGTH))
        model(tokens).square().mean().backward()
        with FakeTensorMode(allow_non_fake_inputs=True):
            model(tokens)
        optimizer.step()
        assert len(watched.readings("activation_rms/blocks.0")) == 1


def test_under_ddp(tmp_path: Path) -> None:
    with one_process_group(tmp_path):
        both(Training(wrap=DistributedDataParallel, build=partial(gpt, dropout=0.1)))
        both(Training(wrap=DistributedDataParallel, micro_steps=3, steps=10))
