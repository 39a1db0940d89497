"""Bounds and certificates of the kernel's log-sum-exp against all logits in fp64."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from foreshock.attention import rows
from foreshock.attention.call import Call
from foreshock.attention.logsumexp import bounds, log_keys, per_row, with_hidden_nan
from tests.attention.models import reference_logits, rounding

B, H, T, D = 2, 3, 24, 8


def measured(call: Call, num_exact: int = 3) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Lower and upper bound, exact rows and what is left, as the tap computes them."""
    query = call.query.detach().requires_grad_()
    key = call.key.detach()
    output = scaled_dot_product_attention(
        query,
        key,
        torch.randn(*key.shape, dtype=key.dtype),
        call.mask,
        is_causal=call.causal,
        scale=call.scale,
        enable_gqa=True,
    )
    node = output.grad_fn
    assert node is not None
    assert "FlashAttention" in node.name()
    num_keys = key.shape[-2]
    lse = with_hidden_nan(node._saved_logsumexp, call)
    keys = log_keys(query.shape[-2], num_keys, call.causal, lse.device)
    both = bounds(lse, keys, zero_is_masked=call.mask is not None)
    with torch.no_grad():
        exact, rest = rows.exact_rows(rows.four_dimensional(call, None), lse, num_exact)
    return both[:, 0], both[:, 1], exact, rest


def check(call: Call) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """No bound is violated and no certificate wrong, beyond rounding."""
    lower, upper, exact, rest = measured(call)
    truth = reference_logits(*call).amax((0, 2, 3))
    off = rounding(call.query, call.key, call.scale)
    assert (lower.double() <= truth + off).all()
    assert (upper.double() >= truth - off).all()
    assert (exact.double() <= truth + off).all()
    certified = exact >= rest
    assert (exact.double() >= truth - off)[certified].all()
    assert (torch.maximum(exact, rest).double() >= truth - off).all()
    return lower, upper, exact, certified


def tensors(
    *shape_key: int, heads: int = H, length: int = T, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    key_heads, num_keys = shape_key or (heads, length)
    generator = torch.Generator().manual_seed(heads * 1000 + length * 10 + num_keys)
    query = torch.randn(B, heads, length, D, generator=generator)
    return query.to(dtype), torch.randn(B, key_heads, num_keys, D, generator=generator).to(dtype)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("length", "num_keys"), [(24, 24), (1, 24), (24, 1), (1, 1), (9, 24)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_bounds_hold(causal: bool, length: int, num_keys: int, dtype: torch.dtype) -> None:
    check(Call(*tensors(H, num_keys, length=length, dtype=dtype), causal=causal))


def test_bounds_hold_where_there_are_more_queries_than_keys() -> None:
    query, key = tensors(H, 5, length=24)
    lower, *_ = check(Call(query, key, causal=True))
    loose = measured(Call(query, key))[0]  # all see 5 keys; causal row 0 sees one
    assert lower.shape == loose.shape == (H,)


def test_one_key_a_row_makes_the_bounds_meet() -> None:
    lower, upper, exact, certified = check(Call(*tensors(H, 1)))
    torch.testing.assert_close(lower, upper)
    torch.testing.assert_close(exact, upper)
    assert certified.shape == (H,)


def test_one_hot_pair_is_found_and_certified() -> None:
    query, key = tensors()
    query[1, 2, 17] *= 300
    key[1, 2, 4] = query[1, 2, 17]
    _, upper, exact, certified = check(Call(query, key, causal=True))
    truth = reference_logits(query, key, causal=True).amax((0, 2, 3))
    assert upper[2].item() == pytest.approx(truth[2].item(), rel=1e-6)
    assert exact[2].item() == pytest.approx(truth[2].item(), rel=1e-6)
    assert certified[2]


def test_attention_sink() -> None:
    query, key = tensors()
    query = query.abs()
    key[:, :, 0] = 40.0
    _, upper, exact, certified = check(Call(query, key, causal=True))
    assert certified.all()
    torch.testing.assert_close(exact, upper)


def test_all_equal_logits_certify_nothing_but_stay_inside() -> None:
    query = torch.ones(B, H, T, D)
    lower, upper, exact, certified = check(Call(query, query.clone()))
    truth = math.sqrt(D)
    torch.testing.assert_close(lower, torch.full((H,), truth))
    torch.testing.assert_close(upper, torch.full((H,), truth + math.log(T)))
    torch.testing.assert_close(exact, torch.full((H,), truth))
    assert not certified.any()


def test_huge_and_negative_logits() -> None:
    query, key = tensors()
    lower, upper, _, certified = check(Call(query * 1e3, key * 1e3, causal=True))
    assert (upper > 1e6).all() and certified.all()
    assert ((upper - lower) < math.log(T) + 1).all()
    negative = -key.abs()
    _, upper, *_ = check(Call(query.abs() * 50, negative, scale=1.0))
    assert (upper < 0).all()


@pytest.mark.parametrize("key_heads", [1, 2, 6])
@pytest.mark.parametrize("causal", [False, True])
def test_grouped_heads(key_heads: int, causal: bool) -> None:
    check(Call(*tensors(key_heads, T, heads=6), causal=causal))


def window(length: int, width: int) -> Tensor:
    distance = torch.arange(length)[:, None] - torch.arange(length)
    return (distance >= 0) & (distance < width)


@pytest.mark.parametrize("additive", [False, True])
@pytest.mark.parametrize("padded", [0, 5])
def test_masks(additive: bool, padded: int) -> None:
    query, key = tensors()
    mask = window(T, 4).repeat(B, 1, 1, 1)
    mask[1, :, :padded] = False  # rows that see nothing
    given = torch.zeros(mask.shape).masked_fill(~mask, -math.inf) if additive else mask
    check(Call(query, key, given))


def test_an_additive_bias_belongs_to_the_logit() -> None:
    query, key = tensors()
    bias = torch.zeros(1, H, T, T)
    bias[0, 1, 7, 3] = 500.0
    _, upper, exact, certified = check(Call(query, key, bias))
    assert upper[1] > 450 and exact[1] > 450 and certified[1]


def test_rows_that_see_nothing_do_not_lift_the_lower_bound_or_the_exact_maximum() -> None:
    query, key = tensors()
    query, key = query.abs() * 10, -key.abs()  # every logit below 0, where the kernel says 0
    mask = torch.ones(T, T, dtype=torch.bool)
    mask[3] = False
    lower, upper, exact, _ = check(Call(query, key, mask))
    assert (lower < 0).all() and (exact < 0).all()
    assert (upper >= exact).all()
    nothing = measured(Call(query, key, torch.zeros(T, T, dtype=torch.bool)))
    assert (nothing[0] == -math.inf).all() and (nothing[2] == -math.inf).all()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("length", [1, 4, 15, 16, 17, 40])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("where", ["query", "key"])
def test_not_finite_stays_visible(value: float, length: int, causal: bool, where: str) -> None:
    for at in {0, 1, length - 1}:
        query, key = tensors(length=length)
        (query if where == "query" else key)[1, 1, at % length, 2] = value
        logits = reference_logits(query, key, causal=causal)
        lower, upper, exact, rest = measured(Call(query, key, causal=causal))
        others = [0, 2]
        assert torch.isfinite(upper[others]).all() and torch.isfinite(lower[others]).all()
        if logits[:, 1].isnan().any() or (logits[:, 1] == math.inf).any():
            assert not torch.isfinite(upper[1])
            assert not torch.isfinite(torch.maximum(exact, rest)[1])


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    length=st.integers(1, 20),
    num_keys=st.integers(1, 20),
    groups=st.sampled_from([(1, 1), (4, 2), (3, 3)]),
    causal=st.booleans(),
    size=st.sampled_from([1e-3, 1.0, 30.0]),
    num_exact=st.integers(1, 5),
)
def test_any_shape(
    seed: int,
    length: int,
    num_keys: int,
    groups: tuple[int, int],
    causal: bool,
    size: float,
    num_exact: int,
) -> None:
    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(2, groups[0], length, 4, generator=generator) * size
    key = torch.randn(2, groups[1], num_keys, 4, generator=generator) * size
    mask = None
    if not causal and seed % 2:
        mask = torch.rand(length, num_keys, generator=generator) < 0.6
    check(Call(query, key, mask, causal=causal))
    measured(Call(query, key, mask, causal=causal), num_exact)


def test_the_exact_rows_are_those_with_the_largest_log_sum_exp() -> None:
    query, key = tensors()
    call = Call(query, key)
    lse = torch.logsumexp(reference_logits(query, key), -1).float()
    for num in (1, 3, B * T, B * T + 5):
        exact, rest = rows.exact_rows(call, lse, num)
        ordered = lse.transpose(0, 1).flatten(1).sort(dim=1, descending=True).values
        row_max = reference_logits(query, key).amax(-1).transpose(0, 1).flatten(1)
        order = lse.transpose(0, 1).flatten(1).argsort(dim=1, descending=True)
        expected = row_max.gather(1, order[:, :num]).amax(1).float()
        torch.testing.assert_close(exact, expected)
        torch.testing.assert_close(
            rest, ordered[:, num] if num < B * T else torch.full((H,), -math.inf)
        )


def test_padded_rows_of_a_kernel_are_cut_off() -> None:
    padded = torch.full((B, H, 32), math.inf)
    padded[..., :T] = 1.0
    assert per_row(padded, T).shape == (B, H, T) and (per_row(padded, T) == 1.0).all()
    assert per_row(torch.ones(B, H, T, 1), T).shape == (B, H, T)
