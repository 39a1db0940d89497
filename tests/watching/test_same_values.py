"""What is recorded is the same however the model is run: compiled, checkpointed, or neither.

A forward that is computed twice counts once; one that evaluates does not count.
"""

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from foreshock.watching import Watch
from tests.watching.trainings import (
    LENGTH,
    VOCABULARY,
    End,
    Training,
    around_blocks,
    call_through,
    differences,
    everything,
    gpt,
    train,
)

STEPS = 12


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Small models are faster on one thread, and the machine is shared."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def assert_same_readings(one: End, other: End, *, rel: float, floor: float = 1e-9) -> None:
    assert one.readings.keys() == other.readings.keys()
    off: dict[str, float] = {}
    for series, found in one.readings.items():
        theirs = other.readings[series]
        assert found.keys() == theirs.keys(), series
        ours = np.array(list(found.values()))
        wrong = np.abs(ours - np.array(list(theirs.values()))) - rel * np.abs(ours) - floor
        if len(wrong) and not (wrong <= 0).all():
            off[series] = float(wrong.max())
    assert not off, off


def non_reentrant(block: Any, x: Tensor) -> Tensor:
    return checkpoint(block, x, use_reentrant=False)


def reentrant(block: Any, x: Tensor) -> Tensor:
    return checkpoint(block, x, use_reentrant=True)


def no_early_stop(block: Any, x: Tensor) -> Tensor:
    return checkpoint(block, x, use_reentrant=False, early_stop=False)


def offloaded(block: Any, x: Tensor) -> Tensor:
    with save_on_cpu():
        return block(x)


def within(outer: Any, inner: Any, block: Any, x: Tensor) -> Tensor:
    """One kind of recomputation around another, which both have to run to their ends."""
    one = torch.ones((), requires_grad=True)  # so that the outer one needs what the inner one gives
    return outer(lambda y: inner(block, y) * one, x)


def some_products() -> Any:
    """A policy that counts operators: any of ours among them would shift what it saves."""
    seen = {False: 0, True: 0}

    def policy(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        seen[context.is_recompute] += 1
        product = op in (torch.ops.aten.mm.default, torch.ops.aten.bmm.default)
        if product and seen[context.is_recompute] % 2:
            return CheckpointPolicy.MUST_SAVE
        return CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def selective(block: Any, x: Tensor) -> Tensor:
    return checkpoint(block, x, use_reentrant=False, context_fn=some_products)


AROUND = {
    "non-reentrant": non_reentrant,
    "reentrant": reentrant,
    "no early stop": no_early_stop,
    "selective": selective,
    "nested": partial(within, non_reentrant, non_reentrant),
    "non-reentrant in reentrant": partial(within, reentrant, non_reentrant),
    "reentrant in non-reentrant": partial(within, non_reentrant, reentrant),
    "reentrant in reentrant": partial(within, reentrant, reentrant),
    "offloaded": offloaded,
    "offloaded in non-reentrant": partial(within, non_reentrant, offloaded),
    "offloaded in reentrant": partial(within, reentrant, offloaded),
}


@pytest.fixture(scope="module")
def eager() -> End:
    return train(Training(steps=STEPS), everything())


@pytest.mark.parametrize("how", AROUND)
def test_checkpointed(how: str, eager: End) -> None:
    other = train(Training(build=around_blocks(AROUND[how]), steps=STEPS), everything())
    assert_same_readings(eager, other, rel=1e-5)
    assert len(other.readings["attention_entropy/blocks.0.attn"]) == STEPS // 5
    assert not other.notes


@pytest.mark.parametrize("options", [{}, {"context_fn": some_products}], ids=["all", "selective"])
def test_the_whole_model_checkpointed(options: dict[str, Any], eager: End) -> None:
    """Also what is seen of the head and the last norm counts once, and amid other operators."""
    wrap = lambda model: partial(checkpoint, model, use_reentrant=False, **options)  # noqa: E731
    plain = train(Training(wrap=wrap, steps=STEPS))
    other = train(Training(wrap=wrap, steps=STEPS), everything())
    assert differences(plain, other) == []
    assert_same_readings(eager, other, rel=1e-5)


@pytest.mark.parametrize("how", AROUND)
def test_forwards_count_once_not_just_with_the_same_mean(how: str) -> None:
    """A step of two micro-steps of which only the second, far larger one is computed twice."""

    def record(around: Any) -> dict[str, float]:
        torch.manual_seed(0)
        model = gpt()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        tokens = torch.randint(VOCABULARY, (4, LENGTH))
        with Watch(model, optimizer, recipe=everything(), with_loss=False) as watched:
            for second in (False, True):
                if second:
                    call_through(model, around)
                    model.embed.weight.data *= 30.0
                model(tokens).square().mean().backward()
            optimizer.step()
            kinds = ("activation", "max_attention", "log_z", "output", "max_output")
            return {
                series: watched.readings(series)[0].value
                for series in watched.series
                if series.startswith(kinds) and watched.readings(series)
            }

    expected, found = record(lambda block, x: block(x)), record(AROUND[how])
    assert len(expected) > 12
    assert found == pytest.approx(expected, rel=1e-5)


def test_evaluation_between_micro_steps_is_not_counted() -> None:
    once = train(Training(steps=4), everything())
    often = train(Training(steps=4, micro_steps=3), everything())
    model = gpt()
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.randint(VOCABULARY, (4, LENGTH))
    found = []
    for evaluate in (False, True):
        with Watch(model, optimizer, recipe=everything(), with_loss=False) as watched:
            model(tokens).square().mean().backward()
            if evaluate:
                model.eval()
                for one in (tokens[:1], tokens.flip(1)):
                    model(one)
                model.train()
                with torch.no_grad():
                    model(tokens.flip(0))
            for group in optimizer.param_groups:
                group["lr"] = 0.0
            optimizer.step()
            optimizer.zero_grad()
            found.append(
                {
                    series: watched.readings(series)[0].value
                    for series in watched.series
                    if watched.readings(series) and not series.startswith(("num_upd", "first_m"))
                }
            )
    assert once.readings.keys() == often.readings.keys()
    for series, value in found[0].items():
        if series.startswith(("activation", "max_", "log_z", "output", "grad_norm")):
            assert found[1][series] == value, series


def compiled(backend: str) -> Callable[[nn.Module], Any]:
    return lambda model: torch.compile(model, backend=backend)


COMPILED: dict[str, Any] = {
    "plain": gpt,
    "blocks checkpointed": around_blocks(non_reentrant),
}


@pytest.mark.parametrize(
    ("backend", "kind", "steps"),
    [
        ("aot_eager", "plain", STEPS),
        pytest.param("aot_eager", "blocks checkpointed", STEPS, marks=pytest.mark.slow),
        pytest.param("inductor", "plain", 6, marks=pytest.mark.slow),
        pytest.param("inductor", "blocks checkpointed", 6, marks=pytest.mark.slow),
    ],
)
def test_compiled(backend: str, kind: str, steps: int) -> None:
    """Bounds of attention are the same; exact rows and samples are not to be had in a graph."""
    recipe = everything(exact_every_steps=0)
    how = Training(build=COMPILED[kind], steps=steps)
    if backend == "inductor":  # rounds otherwise, and Adam makes much of small gradients
        how.optimizer = partial(torch.optim.SGD, lr=0.1)
    plain = train(how, recipe)
    other = train(dataclasses.replace(how, wrap=compiled(backend)), recipe)
    missing = [name for name, found in other.readings.items() if not found and plain.readings[name]]
    for name in missing:
        assert kind != "plain" and "attention_logit" in name, missing
        assert other.notes
        del plain.readings[name], other.readings[name]
    rel = 1e-5 if backend == "aot_eager" else 1e-4
    assert_same_readings(plain, other, rel=rel, floor=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_signals_are_computed_at_full_precision_under_autocast(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = gpt()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.head.weight.data *= 100.0
    tokens = torch.randint(VOCABULARY, (4, LENGTH))
    with Watch(model, optimizer, recipe=everything(), with_loss=False) as watched:
        with torch.autocast("cpu", dtype):
            logits = model(tokens)
        logits.float().square().mean().backward()
        optimizer.step()
    assert logits.dtype == dtype
    exact = logits.detach().double().flatten(0, 1)
    shares = exact.softmax(-1)
    expected = {
        "output_entropy/global": -(shares * shares.log()).sum(-1).mean(),
        "log_z/global": exact.logsumexp(-1).mean(),
        "log_z_absmax/global": exact.logsumexp(-1).abs().max(),
        "max_output_logit/global": exact.max(),
    }
    for series, value in expected.items():
        found = watched.readings(series)[0].value
        assert found == pytest.approx(value.item(), rel=1e-5), series
