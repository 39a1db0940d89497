"""WeightBitFlip: one bit of one weight, in every width."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from foreshock.core.errors import ConfigError
from foreshock.faults.weight_bit_flip import WeightBitFlip

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


def flip(model: nn.Module, bits_below_top: int = 0, seed: int = 0) -> str:
    fault = WeightBitFlip(bits_below_top=bits_below_top)
    return fault.inject(model, torch.optim.SGD(model.parameters()), np.random.default_rng(seed))


def constant_model(dtype: torch.dtype, value: float) -> nn.Linear:
    model = nn.Linear(3, 2, dtype=dtype)
    for parameter in model.parameters():
        nn.init.constant_(parameter, value)
    return model


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bits_below_top", [0, 1, 4])
def test_one_weight_is_multiplied_or_divided_by_the_bits_worth(
    dtype: torch.dtype, bits_below_top: int
) -> None:
    """0.5 is stored with exponent 0111...10: only its highest and its lowest bit are clear."""
    num_exponent_bits = {torch.float16: 5, torch.float64: 11}.get(dtype, 8)
    model = constant_model(dtype, 0.5)
    flip(model, bits_below_top)
    worth = 2 ** (num_exponent_bits - 1 - bits_below_top)  # as a power of two
    clear = bits_below_top in (0, num_exponent_bits - 1)
    values = torch.cat([p.detach().flatten() for p in model.parameters()]).double()
    changed = values[values != 0.5]
    assert changed.tolist() == [math.ldexp(0.5, worth if clear else -worth)]


def test_every_weight_can_be_drawn_and_is_named() -> None:
    hit: set[tuple[str, int]] = set()
    for seed in range(100):
        model = constant_model(torch.float32, 0.5)
        said = flip(model, seed=seed)
        for path, parameter in model.named_parameters():
            for index in (parameter != 0.5).nonzero().tolist():
                assert f"{path}[{', '.join(map(str, index))}]" in said
                hit.add((path, np.ravel_multi_index(index, parameter.shape).item()))
    assert hit == {("weight", i) for i in range(6)} | {("bias", i) for i in range(2)}


def test_a_weight_that_is_not_contiguous_is_flipped_in_place() -> None:
    model = nn.Linear(2, 2, bias=False)
    model.weight = nn.Parameter(torch.full((2, 2), 0.5).t())
    flip(model)
    assert (model.weight != 0.5).sum() == 1


def test_the_same_flip_twice_restores_the_weights() -> None:
    model = nn.Linear(8, 8)
    before = model.weight.detach().clone()
    flip(model, seed=3)
    flip(model, seed=3)
    assert torch.equal(model.weight, before)


def test_a_bit_the_exponent_does_not_have_is_refused() -> None:
    flip(constant_model(torch.float16, 0.5), bits_below_top=4)
    with pytest.raises(ConfigError, match=r"is 5; the exponent of torch\.float16 has 5 bits"):
        flip(constant_model(torch.float16, 0.5), bits_below_top=5)
    with pytest.raises(ConfigError, match="is -1"):
        WeightBitFlip(bits_below_top=-1)
