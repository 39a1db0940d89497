"""Numbers of heads off the attributes that common modules have."""

from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn

from foreshock.attention.heads import num_heads


def module(**attributes: Any) -> nn.Module:
    built = nn.Module()
    for name, value in attributes.items():
        setattr(built, name, value)
    return built


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({"n_head": 12}, 12),
        ({"heads": 3}, 3),
        ({"config": SimpleNamespace(num_attention_heads=8), "head_dim": 4}, 8),
        ({"num_heads": 4, "config": SimpleNamespace(num_attention_heads=8)}, 4),
        ({"head_dim": 4, "q_proj": nn.Linear(8, 24)}, 6),
        ({"head_dim": 5, "q_proj": nn.Linear(8, 24)}, None),
        ({"num_heads": True}, None),
        ({"num_heads": 0}, None),
        ({"heads": nn.Linear(2, 2)}, None),
        ({}, None),
    ],
)
def test_number_of_heads(attributes: dict[str, Any], expected: int | None) -> None:
    assert num_heads(module(**attributes)) == expected
