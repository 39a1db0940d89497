"""The tap on small models: what is measured, when, and that nothing else changes."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from foreshock.attention.tap import AttentionTap
from tests.attention.models import (
    CPU,
    ByHand,
    Einsum,
    Fused,
    Merged,
    Net,
    reference_logits,
    rounding,
    weights_after,
)

CAUSAL = {"is_causal": True}


def tapped(*modules: nn.Module, **options: Any) -> AttentionTap:
    return AttentionTap([(f"m{i}", one) for i, one in enumerate(modules)], CPU, **options)


def truth_of(module: Fused, x: Tensor, causal: bool) -> Tensor:
    query, key, _ = module.project(x)
    return reference_logits(query, key, causal=causal).amax((0, 2, 3))


@pytest.mark.parametrize("forwards", [1, 3])
def test_bounds_of_every_forward_accumulate_until_they_are_read(forwards: int) -> None:
    torch.manual_seed(0)
    modules = [Fused(**CAUSAL) for _ in range(3)]
    tap = tapped(*modules)
    for _ in range(3):
        inputs = [torch.randn(2, 9, 16) * 3 for _ in range(forwards)]
        for x in inputs:
            sum(module(x).sum() for module in modules).backward()
        taken = tap.read_and_reset()
        assert taken.shape == (3, 2, 2)
        for place, module in enumerate(modules):
            truth = torch.stack([truth_of(module, x, True) for x in inputs]).amax(0)
            assert (taken[place, :, 0].double() <= truth + 1e-5).all()
            assert (taken[place, :, 1].double() >= truth - 1e-5).all()
            assert (taken[place, :, 1] - taken[place, :, 0]).max() <= math.log(9) + 1e-5
    assert (tap.read_and_reset() == -math.inf).all()
    assert tap.num_measured == (3 * forwards,) * 3
    assert set(tap.status().values()) == {"log-sum-exp"}


def test_a_reading_is_not_changed_by_later_forwards() -> None:
    module = Fused()
    tap = tapped(module)
    module(torch.randn(2, 5, 16))
    taken = tap.read_and_reset()
    before = taken.clone()
    module(torch.randn(2, 5, 16) * 100)
    tap.read_and_reset()
    assert torch.equal(taken, before)


def test_evaluation_and_forwards_without_gradients_do_not_count() -> None:
    module, x = Fused(), torch.randn(2, 5, 16)
    tap = tapped(module)
    assert tap.status()["m0"].startswith("not observed: no forward")
    with torch.no_grad():
        module(x)
    module.eval()
    module(x)
    assert tap.num_measured == (0,)
    assert (tap.read_and_reset() == -math.inf).all()
    module.train()
    module(x)
    assert tap.num_measured == (1,)


def test_exact_rows_and_entropy_on_demand() -> None:
    torch.manual_seed(0)
    module, x = Fused(**CAUSAL), torch.randn(2, 9, 16) * 10
    tap = tapped(module, exact_rows=3, sampled_rows=9)
    module(x)
    nothing = tap.read_exact()
    assert (nothing.maximum == -math.inf).all() and not nothing.certified.any()
    assert nothing.entropy.isnan().all()
    tap.want_exact = True
    for _ in range(2):
        module(x)
    found = tap.read_exact()
    truth = truth_of(module, x, True)
    assert found.certified.all()
    torch.testing.assert_close(found.maximum[0].double(), truth, atol=1e-5, rtol=1e-6)
    logits = reference_logits(*module.project(x)[:2], causal=True)
    p = logits.softmax(-1)
    entropy = -(p * p.log().nan_to_num(0, 0, 0)).sum(-1).mean((0, 2))
    torch.testing.assert_close(found.entropy[0].double(), entropy, atol=1e-5, rtol=1e-5)
    tap.want_exact = False
    module(x)
    assert (tap.read_exact().maximum == -math.inf).all()


def test_certificates_hold_over_micro_steps() -> None:
    module = Fused()
    tap = tapped(module, exact_rows=1)
    tap.want_exact = True
    hot, flat = torch.randn(1, 9, 16) * 30, torch.zeros(1, 9, 16)
    for x in (flat, hot):  # the flat one certifies nothing by itself
        module(x)
    found = tap.read_exact()
    truth = truth_of(module, hot, False)
    off = rounding(*module.project(hot)[:2])
    assert (found.rest[0] >= math.log(9) - 1e-4).all()
    for head in range(2):
        if found.certified[0, head]:
            assert abs(found.maximum[0, head].item() - truth[head].item()) <= off


@pytest.mark.parametrize("kind", [ByHand, Einsum, Merged])
def test_attention_by_hand_is_sampled(kind: type[Fused]) -> None:
    torch.manual_seed(0)
    module, x = kind(), torch.randn(2, 40, 16) * 3
    causal = kind is ByHand
    tap = tapped(module, sampled_rows=8)
    module(x).sum().backward()
    logits = reference_logits(*module.project(x)[:2], causal=causal)
    taken = tap.read_and_reset()[0]
    assert torch.equal(taken[:, 0], taken[:, 1])
    expected = logits[:, :, 4::5].amax((0, 2, 3))
    torch.testing.assert_close(taken[:, 0].double(), expected, atol=1e-5, rtol=1e-5)
    assert tap.status() == {"m0": "sampled"}
    tap.want_exact = True
    module(x)
    found = tap.read_exact()
    assert found.certified.all()
    torch.testing.assert_close(
        found.maximum[0].double(), logits.amax((0, 2, 3)), atol=1e-5, rtol=1e-5
    )
    p = logits[:, :, 4::5].softmax(-1)
    entropy = -(p * p.log().nan_to_num(0, 0, 0)).sum(-1).mean((0, 2))
    torch.testing.assert_close(found.entropy[0].double(), entropy, atol=1e-5, rtol=1e-5)


def test_without_a_fused_kernel_rows_are_sampled_and_nothing_is_certified() -> None:
    torch.manual_seed(0)
    module, x = Fused(dropout_p=0.3, **CAUSAL), torch.randn(2, 40, 16) * 3
    tap = tapped(module, exact_rows=4, sampled_rows=8)
    tap.want_exact = True
    for _ in range(2):
        module(x).sum().backward()
    truth = reference_logits(*module.project(x)[:2], causal=True)[:, :, 4::5].amax((0, 2, 3))
    taken, found = tap.read_and_reset()[0], tap.read_exact()
    torch.testing.assert_close(taken.double(), truth[:, None].expand(-1, 2), atol=1e-5, rtol=1e-5)
    assert not found.certified.any() and (found.rest == math.inf).all()
    assert tap.status() == {"m0": "sampled"}


@pytest.mark.parametrize("needs", [True, False])
@pytest.mark.parametrize("masked", [True, False])
def test_torchs_multi_head_attention(needs: bool, masked: bool) -> None:
    torch.manual_seed(0)
    module, x = nn.MultiheadAttention(16, 2, batch_first=True), torch.randn(3, 8, 16) * 4
    mask = torch.ones(8, 8, dtype=torch.bool).triu(1) if masked else None
    tap = tapped(module, exact_rows=4, sampled_rows=8)
    tap.want_exact = True
    for _ in range(2):
        module(x, x, x, need_weights=needs, attn_mask=mask)[0].sum().backward()
    projected = torch.nn.functional.linear(x, module.in_proj_weight, module.in_proj_bias)
    q, k, _ = projected.view(3, 8, 3, 2, 8).permute(2, 0, 3, 1, 4)
    truth = reference_logits(q, k, None if mask is None else ~mask).amax((0, 2, 3))
    taken, found = tap.read_and_reset()[0].double(), tap.read_exact()
    assert (taken[:, 0] <= truth + 1e-5).all() and (taken[:, 1] >= truth - 1e-5).all()
    assert found.certified.all()
    torch.testing.assert_close(found.maximum[0].double(), truth, atol=1e-5, rtol=1e-5)
    assert tap.status() == {"m0": "sampled" if needs else "log-sum-exp"}


def test_a_module_without_attention_says_so() -> None:
    module = nn.Linear(16, 16)
    tap = tapped(module)
    module(torch.randn(2, 5, 16))
    assert tap.status()["m0"].startswith("not observed: its forward calls neither")


def test_unknown_heads_are_reported_together_and_missing_ones_stay_empty() -> None:
    torch.manual_seed(0)
    unknown, few = Fused(), Fused(heads=2)
    tap = tapped(unknown, few, Fused(heads=4))
    assert tap.heads == (2, 2, 4)
    tap.close()
    heads = unknown.num_heads

    class Silent(Fused):
        def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            q, k, v = self.qkv(x).view(*x.shape[:2], 3, heads, -1).permute(2, 0, 3, 1, 4)
            return q, k, v

    silent = Silent()
    del silent.num_heads
    sharded = Fused(heads=2)
    sharded.n_head, sharded.num_attention_heads = 8, 8  # never asked: num_heads comes first
    tap = tapped(silent, sharded)
    assert tap.heads == (None, 2)
    x = torch.randn(2, 5, 16)
    silent(x), sharded(x)
    taken = tap.read_and_reset()
    truth = truth_of(silent, x, False).amax()
    assert taken[0, 0, 0] <= truth + 1e-5 and taken[0, 0, 1] >= truth - 1e-5
    assert (taken[0, 1] == -math.inf).all()


def test_a_rank_with_fewer_heads_fills_the_first_columns() -> None:
    module = Fused(heads=2)
    tap = tapped(module)
    tap.close()

    class Half(Fused):
        """Holds one of two heads, as under tensor parallelism."""

        def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return super().attend(q[:, :1], k[:, :1], v[:, :1]).expand(-1, 2, -1, -1)

    half = Half(heads=2)
    tap = tapped(half)
    half(torch.randn(2, 5, 16))
    taken = tap.read_and_reset()
    assert taken[0, 0].isfinite().all() and (taken[0, 1] == -math.inf).all()


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("kind", [Fused, ByHand])
def test_not_finite_reaches_the_reading(kind: type[Fused], value: float) -> None:
    modules = [kind(), kind()]
    tap = tapped(*modules)
    for place, module in enumerate(modules):
        x = torch.randn(2, 20, 16)
        x[0, 19] = value if place == 0 else 0.0
        for given in (torch.randn(2, 20, 16), x, torch.randn(2, 20, 16)):
            module(given)
    taken = tap.read_and_reset()
    assert not taken[0].isfinite().any()
    assert taken[1].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype: torch.dtype) -> None:
    module, x = Fused(**CAUSAL), torch.randn(2, 40, 16) * 5
    tap = tapped(module, exact_rows=4)
    tap.want_exact = True
    with torch.autocast("cpu", dtype=dtype):
        module(x).float().sum().backward()
        query, key, _ = module.project(x)
    assert query.dtype == dtype
    truth = reference_logits(query, key, causal=True).amax((0, 2, 3))
    found = tap.read_exact()
    off = rounding(query, key)
    assert ((found.maximum[0].double() - truth).abs() <= off)[found.certified[0]].all()
    taken = tap.read_and_reset()[0].double()
    assert (taken[:, 0] <= truth + off).all() and (taken[:, 1] >= truth - off).all()


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize(
    "attention",
    [
        lambda: Fused(**CAUSAL),
        lambda: Fused(attn_mask=torch.ones(9, 9, dtype=torch.bool).tril()),
        lambda: Fused(dropout_p=0.2, **CAUSAL),
        ByHand,
        Merged,
    ],
)
def test_training_is_bit_identical(attention: Callable[[], nn.Module], exact: bool) -> None:
    def check(tap: AttentionTap) -> None:
        assert not any(one.startswith("not") for one in tap.status().values())

    plain = weights_after(lambda: Net(attention), watched=False, micro_steps=2)
    watched = weights_after(
        lambda: Net(attention), watched=True, exact=exact, micro_steps=2, seen=check
    )
    assert torch.equal(plain, watched)
