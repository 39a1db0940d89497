"""Sampled rows and entropy against all rows in fp64."""

import math

import pytest
import torch

from foreshock.attention import rows
from foreshock.attention.call import Call
from tests.attention.models import reference_logits


def reference_entropy(logits: torch.Tensor) -> torch.Tensor:
    """Mean over the rows that see a key, `[B, H, n, T_k] -> [H]`, by the definition."""
    p = logits.double().softmax(-1)
    each = -(p * p.log().nan_to_num(0.0, 0.0, 0.0)).sum(-1)
    return torch.stack([one[one.isfinite()].mean() for one in each.transpose(0, 1).flatten(1)])


@pytest.mark.parametrize(("length", "wanted"), [(1, 8), (8, 8), (9, 8), (100, 8), (7, 1), (5, 0)])
def test_sampled_rows_are_few_spread_and_end_with_the_last(length: int, wanted: int) -> None:
    chosen = list(range(length))[rows.sampled_rows(length, wanted)]
    assert 1 <= len(chosen) <= max(wanted, 1)
    assert chosen[-1] == length - 1
    assert len(chosen) >= min(length, wanted) / 2


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("key_heads", [2, 4])
def test_sampled_logits_are_those_rows_of_all_logits(causal: bool, key_heads: int) -> None:
    torch.manual_seed(0)
    query, key = torch.randn(2, 4, 11, 8), torch.randn(2, key_heads, 7, 8)
    mask = None if causal else torch.rand(2, 1, 11, 7) < 0.7
    call = rows.four_dimensional(Call(query, key, mask, causal, 0.7), None)
    expected = reference_logits(query, key, mask, causal, 0.7)[:, :, rows.sampled_rows(11, 3)]
    torch.testing.assert_close(rows.sampled_logits(call, 3).double(), expected, atol=1e-5, rtol=0)


def test_entropy() -> None:
    torch.manual_seed(1)
    logits = torch.randn(2, 3, 5, 9) * torch.tensor([0.01, 1.0, 30.0])[:, None, None]
    logits[0, :, 1] = -math.inf  # sees nothing
    logits[1, :, 2, 3:] = -math.inf
    total, num = rows.entropy(logits)
    assert num.tolist() == [9.0, 9.0, 9.0]
    torch.testing.assert_close(
        (total / num).double(), reference_entropy(logits), atol=1e-6, rtol=1e-5
    )


def test_entropy_at_the_extremes() -> None:
    total, num = rows.entropy(torch.full((1, 1, 1, 8), 1e6))
    assert (total / num).item() == pytest.approx(math.log(8), rel=1e-6)  # though logits are huge
    hot = torch.zeros(1, 1, 1, 8)
    hot[..., 3] = 1e6
    assert rows.entropy(hot)[0].item() == 0.0
    for value in (math.nan, math.inf):
        hot[..., 3] = value
        assert math.isnan(rows.entropy(hot)[0].item())


def test_half_precision_scores_are_widened() -> None:
    scores = torch.randn(1, 2, 4, 4).bfloat16()
    assert rows.largest(scores).dtype == torch.float32
    total, num = rows.entropy(scores)
    expected = reference_entropy(scores)
    torch.testing.assert_close((total / num).double(), expected, atol=1e-6, rtol=1e-5)


def test_other_layouts() -> None:
    scores = torch.randn(6, 4, 5)
    torch.testing.assert_close(rows.with_heads(scores, 3), scores.view(2, 3, 4, 5))
    assert rows.with_heads(scores, None).shape == (6, 1, 4, 5)
    assert rows.with_heads(scores, 4).shape == (6, 1, 4, 5)
    assert rows.with_heads(torch.randn(4, 5), 3).shape == (1, 1, 4, 5)
    assert rows.with_heads(torch.randn(2, 7, 3, 4, 5), 3).shape == (14, 3, 4, 5)
