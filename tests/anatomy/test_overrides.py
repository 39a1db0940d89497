"""What the user says of a model's parts replaces what is found."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import nn

from foreshock.anatomy import anatomy_of
from foreshock.core.errors import ConfigError
from foreshock.lab.gpt import GPT, GPTConfig
from tests.anatomy.expectations import holds, params


class Odd(nn.Module):
    """A model whose parts nobody can guess."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.p, self.q = nn.Bilinear(4, 4, 4), nn.Bilinear(4, 4, 4)
            self.scale = nn.Linear(4, 4)

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Bilinear(4, 4, 4)
        self.steps = nn.ModuleList(Odd.Layer() for _ in range(2))
        self.smooth, self.leave = nn.Linear(4, 4), nn.Linear(4, 4)


OVERRIDES: dict[str, Mapping[str, str | Sequence[str]]] = {
    "one pattern each": {
        "embedding": "enter",
        "block": "steps.?",
        "attention": "steps.*.p",
        "ffn": "*.q",
        "norm": "*.scale",
        "last_norm": "smo*",
        "head": "leave",
    },
    "several": {
        "embedding": ["enter"],
        "block": ["steps.0", "steps.1"],
        "attention": ("steps.0.p", "steps.1.p"),
        "ffn": ["steps.0.q", "steps.1.*q"],
        "norm": ["steps.[01].scale"],
        "last_norm": ["smooth"],
        "head": ["leave"],
    },
}


@pytest.mark.parametrize("name", OVERRIDES)
@pytest.mark.parametrize("wrap", [lambda one: one, torch.compile])
def test_patterns_on_plain_paths(name: str, wrap: Callable[[nn.Module], nn.Module]) -> None:
    model = wrap(Odd())
    found = anatomy_of(model, OVERRIDES[name])
    assert [found.plain(one) for one in found.embeddings] == ["enter"]
    assert found.plain(found.last_norm or "") == "smooth"
    assert found.plain(found.head or "") == "leave"
    for number, one in enumerate(found.blocks):
        assert found.plain(one.attention[0]) == f"steps.{number}.p"
        assert found.plain(one.ffn[0]) == f"steps.{number}.q"
        assert found.plain(one.norms[0]) == f"steps.{number}.scale"
    roles = {found.group_of(path): found.role_of(path) for path, _ in params(model)}
    assert roles == {
        "enter": "embedding",
        **{f"steps.{n}.{part}": role for n in range(2) for part, role in PARTS.items()},
        "smooth": "norm",
        "leave": "head",
    }
    holds(model, found)


PARTS = {"p": "attention", "q": "ffn", "scale": "norm"}


def test_a_pattern_replaces_what_is_found_in_the_blocks_where_it_matches() -> None:
    found = anatomy_of(GPT(GPTConfig()), {"attention": "blocks.1.attn.qkv"})
    assert [one.attention for one in found.blocks] == [
        ("blocks.0.attn",),
        ("blocks.1.attn.qkv",),
        ("blocks.2.attn",),
    ]
    assert found.group_of("blocks.1.attn.out.weight") == "blocks.1.attn"
    assert found.role_of("blocks.1.attn.out.weight") == "other"


def test_a_part_may_change_its_role_and_a_star_takes_the_outermost() -> None:
    model = GPT(GPTConfig(depth=2))
    found = anatomy_of(model, {"ffn": ["*.attn*", "*.ffn"], "attention": []})
    assert found.attention_parts == ()
    assert found.blocks[0].ffn == (
        "blocks.0.attn_norm",
        "blocks.0.attn",
        "blocks.0.ffn",
    )
    assert found.blocks[0].norms == ("blocks.0.ffn_norm",)
    assert found.role_of("blocks.0.attn.qkv.weight") == "ffn"


def test_no_pattern_says_that_there_is_none() -> None:
    model = GPT(GPTConfig(depth=2))
    nothing = {key: [] for key in ("embedding", "block", "last_norm", "head")}
    found = anatomy_of(model, nothing)
    assert (found.embeddings, found.blocks, found.last_norm, found.head) == ((), (), None, None)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"atention": "*.attn"}, ["'atention'", "attention", "last_norm"]),
        ({"attention": "*.atn"}, ["'*.atn'", "attn"]),
        ({"head": "lm_head"}, ["'lm_head'", "near", "'head'"]),
        ({"block": ["blocks.0", "blocks.77"]}, ["'blocks.77'", "'blocks.0'"]),
        ({"head": "*.ffn"}, ["3 modules", "'blocks.0.ffn'"]),
        ({"norm": [3]}, ["norm=3"]),
    ],
)
def test_errors_name_what_was_given_and_what_is_near(overrides: Any, words: list[str]) -> None:
    with pytest.raises(ConfigError) as told:
        anatomy_of(GPT(GPTConfig()), overrides)
    assert [word for word in words if word not in str(told.value)] == []
