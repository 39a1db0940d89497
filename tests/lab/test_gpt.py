"""The reference model: causal, relative in position, seeded, and plain in size."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from foreshock.core.errors import ConfigError
from foreshock.lab.gpt import GPT, GPTConfig, rope_tables, rotate


def build(seed: int = 0, **changes: Any) -> GPT:
    shape = GPTConfig(vocab=31, width=16, depth=2, heads=2, context=12)
    return GPT(replace(shape, **changes), torch.Generator().manual_seed(seed))


def draw_tokens(*shape: int) -> torch.Tensor:
    return torch.randint(31, shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("qk_norm", [False, True])
@pytest.mark.parametrize("changed", [0, 5, 11])
def test_a_token_changes_no_logits_before_it_and_all_from_it_on(
    changed: int, qk_norm: bool
) -> None:
    model, tokens = build(qk_norm=qk_norm), draw_tokens(2, 12)
    other = tokens.clone()
    other[:, changed] = (other[:, changed] + 1) % 31
    difference = (model(tokens) - model(other)).abs().amax(dim=(0, 2))
    assert difference.shape == (12,)
    assert difference[:changed].eq(0).all()
    assert difference[changed:].gt(0).all()


def test_rotation_makes_products_depend_on_distance_alone() -> None:
    q, k = torch.randn(2, 1, 1, 1, 8, generator=torch.Generator().manual_seed(0))
    cos, sin = rope_tables(20, 8)

    def product(at_q: int, at_k: int) -> float:
        rotated_q = rotate(q, cos[at_q : at_q + 1], sin[at_q : at_q + 1])
        rotated_k = rotate(k, cos[at_k : at_k + 1], sin[at_k : at_k + 1])
        return (rotated_q * rotated_k).sum().item()

    assert product(19, 16) == pytest.approx(product(3, 0), abs=1e-5)
    assert product(3, 0) != pytest.approx(product(0, 3), abs=1e-2)
    assert product(3, 0) != pytest.approx(product(4, 0), abs=1e-2)


def test_rotation_turns_each_pair_by_its_angle() -> None:
    cos, sin = rope_tables(3, 2)  # one pair of frequency 1: the angle is the position
    turned = rotate(torch.tensor([1.0, 0.0]).expand(1, 1, 3, 2), cos, sin)
    position = torch.arange(3.0)
    torch.testing.assert_close(turned[0, 0], torch.stack((position.cos(), position.sin()), -1))


def test_parameter_count_is_that_of_the_matrices_and_norms() -> None:
    vocab, width, depth = 31, 16, 2
    matrices = 2 * vocab * width + depth * 12 * width * width
    norms = (2 * depth + 1) * 2 * width
    assert sum(p.numel() for p in build().parameters()) == matrices + norms
    with_qk_norm = sum(p.numel() for p in build(qk_norm=True).parameters())
    assert with_qk_norm == matrices + norms + depth * 2 * (width // 2)


def test_paths_that_signals_and_faults_rely_on_exist() -> None:
    modules = dict(build().named_modules())
    assert {"embed", "blocks.1.attn.qkv", "blocks.1.ffn.up", "norm", "head"} <= modules.keys()


def test_every_parameter_gets_a_finite_gradient() -> None:
    model, tokens = build(qk_norm=True), draw_tokens(3, 13)
    cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()).backward()
    for path, parameter in model.named_parameters():
        assert parameter.grad is not None, path
        assert parameter.grad.isfinite().all(), path
        assert parameter.grad.abs().sum() > 0, path


def test_the_generator_alone_decides_the_weights() -> None:
    torch.manual_seed(1)
    first = build(seed=3).state_dict()
    torch.manual_seed(2)
    again, other = build(seed=3).state_dict(), build(seed=4).state_dict()
    assert all(torch.equal(first[path], again[path]) for path in first)
    assert not torch.equal(first["head.weight"], other["head.weight"])
    assert first["head.weight"].std().item() == pytest.approx(0.02, rel=0.15)


def test_tables_of_positions_are_not_part_of_the_state() -> None:
    assert not [path for path in build().state_dict() if path.endswith(("cos", "sin"))]


def test_it_learns_a_fixed_batch() -> None:
    model, tokens = build(), draw_tokens(4, 13)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses: list[float] = []
    for _ in range(60):
        loss = cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(torch.tensor(31.0).log().item(), abs=0.1)
    assert losses[-1] < 0.5


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"depth": 0}, "depth=0.* must be >= 1"),
        ({"heads": 3}, "heads=3: RoPE .* a multiple of"),
        ({"dropout": 1.0}, r"dropout=1\.0; "),
    ],
)
def test_a_wrong_shape_is_refused_by_name(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        build(**changes)


def test_rows_longer_than_the_context_are_refused() -> None:
    with pytest.raises(ConfigError, match="13 tokens a row; its context is 12"):
        build()(draw_tokens(1, 13))
