"""Under activation checkpointing and other saved-tensor hooks each forward counts once."""

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from foreshock.attention.tap import AttentionTap
from tests.attention.models import CPU, ByHand, Fused, Net, reference_logits, weights_after

KINDS = [
    partial(Fused, is_causal=True),
    partial(Fused, is_causal=True, dropout_p=0.2),
    ByHand,
]


def save_products(_: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    """Save every second product and the kernel's output: disturbed by any operator of ours."""
    save_products.seen += op == torch.ops.aten.mm.default
    saved = op == torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    saved |= op == torch.ops.aten.mm.default and save_products.seen % 2 == 0
    return CheckpointPolicy.MUST_SAVE if saved else CheckpointPolicy.PREFER_RECOMPUTE


save_products.seen = 0


def selective(block: nn.Module, x: Tensor) -> Tensor:
    contexts = partial(create_selective_checkpoint_contexts, save_products)
    return checkpoint(block, x, use_reentrant=False, context_fn=contexts)


def nested(block: nn.Module, x: Tensor) -> Tensor:
    def inner(y: Tensor) -> Tensor:
        return checkpoint(block, y, use_reentrant=False).sin()

    return checkpoint(inner, x, use_reentrant=False)


AROUND = {
    "non-reentrant": lambda block, x: checkpoint(block, x, use_reentrant=False),
    "no early stop": lambda block, x: checkpoint(block, x, use_reentrant=False, early_stop=False),
    "reentrant": lambda block, x: checkpoint(block, x, use_reentrant=True),
    "selective": selective,
    "nested": nested,
}


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("attention", KINDS)
@pytest.mark.parametrize("how", AROUND)
def test_counts_once_and_changes_nothing(attention: Any, how: str, exact: bool) -> None:
    counts = []

    def prepare(net: Net) -> Net:
        net.around = AROUND[how]
        return net

    def build() -> Net:
        return Net(attention)

    plain = weights_after(build, watched=False, prepare=prepare, steps=5)
    watched = weights_after(
        build,
        watched=True,
        prepare=prepare,
        steps=5,
        exact=exact,
        seen=lambda tap: counts.append(tap.num_measured),
    )
    assert torch.equal(plain, watched)
    assert counts == [(step, step) for step in range(1, 6)]


@pytest.mark.parametrize("reentrant", [False, True])
def test_the_bounds_are_those_of_the_forward(reentrant: bool) -> None:
    torch.manual_seed(0)
    module, x = Fused(is_causal=True), torch.randn(2, 9, 16, requires_grad=True)
    tap = AttentionTap([("a", module)], CPU, exact_rows=9 * 2)
    tap.want_exact = True
    checkpoint(module, x, use_reentrant=reentrant).sum().backward()
    truth = reference_logits(*module.project(x)[:2], causal=True).amax((0, 2, 3))
    taken, found = tap.read_and_reset()[0].double(), tap.read_exact()
    assert (taken[:, 0] <= truth + 1e-5).all() and (taken[:, 1] >= truth - 1e-5).all()
    assert found.certified.all()
    torch.testing.assert_close(found.maximum[0].double(), truth, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("rows", [0, 4])
def test_checkpointing_inside_the_module(reentrant: bool, rows: int) -> None:
    class Inside(Fused):
        def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return checkpoint(super().attend, q, k, v, use_reentrant=reentrant)

    torch.manual_seed(0)
    module, x = Inside(is_causal=True), torch.randn(2, 9, 16)
    tap = AttentionTap([("a", module)], CPU, exact_rows=rows)
    tap.want_exact = rows > 0
    for _ in range(3):
        module(x).sum().backward()
    truth = reference_logits(*module.project(x)[:2], causal=True).amax((0, 2, 3))
    taken = tap.read_and_reset()[0].double()
    assert (taken[:, 0] <= truth + 1e-5).all() and (taken[:, 1] >= truth - 1e-5).all()
    assert tap.num_measured == (3,)
    assert tap.status() == {"a": "log-sum-exp"}


def test_checkpointing_that_begins_later() -> None:
    """The way through the graph is known by then."""
    counts = []
    module, x = Fused(is_causal=True), torch.randn(2, 20, 16, requires_grad=True)
    tap = AttentionTap([("a", module)], CPU)

    def within(y: Tensor) -> Tensor:
        return checkpoint(module, y, use_reentrant=False) * one

    one = torch.ones((), requires_grad=True)
    for _ in range(4):
        module(x).sum().backward()
    for _ in range(2):
        checkpoint(within, x, use_reentrant=True).sum().backward()
        counts.append(tap.num_measured[0])
        checkpoint(within, x, use_reentrant=False).sum().backward()
        counts.append(tap.num_measured[0])
        checkpoint(module, x, use_reentrant=True).sum().backward()
        counts.append(tap.num_measured[0])
        module(x).sum().backward()
        counts.append(tap.num_measured[0])
    assert counts == list(range(5, 13))


def test_hooks_that_allow_one_unpacking_are_not_touched() -> None:
    """As offloading does: what is unpacked is gone."""

    def pack(x: Tensor) -> list[Tensor]:
        return [x]

    def unpack(held: list[Tensor]) -> Tensor:
        return held.pop()

    module, x = Fused(is_causal=True), torch.randn(2, 9, 16)
    tap = AttentionTap([("a", module)], CPU, exact_rows=2)
    tap.want_exact = True
    module(x).sum().backward()  # the way through the graph is known from here on
    module(x).sum().backward()
    with saved_tensors_hooks(pack, unpack):
        loss = module(x).sum()
    loss.backward()
    with save_on_cpu():
        module(x).sum().backward()
    assert tap.num_measured == (4,)
    assert tap.status() == {"a": "log-sum-exp"}
    assert (tap.read_and_reset() > -math.inf).all()
