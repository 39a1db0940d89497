"""Faults by which weights, gradients or updates grow: by what, and what stays as it was."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from foreshock.core.errors import ConfigError
from foreshock.core.fault import ProgramFault
from foreshock.core.program import Program
from foreshock.faults.attention_logits import AttentionLogits
from foreshock.faults.desynced_replica import DesyncedReplica
from foreshock.faults.embedding_gradient import EmbeddingGradient
from foreshock.faults.fresh_optimizer import FreshOptimizer
from foreshock.faults.grown_updates import GrownUpdates
from foreshock.faults.output_drift import OutputDrift
from foreshock.faults.shifted_mix import ShiftedMix
from tests.faults.programs import batch_of, small_program, train


def changed(fault: ProgramFault, program: Program | None = None) -> Program:
    return fault.change(program or small_program(), np.random.default_rng(0))[0]


def weights(program: Program) -> dict[str, torch.Tensor]:
    return {path: p.detach().clone() for path, p in program.model.named_parameters()}


def after_one_step(fault: ProgramFault | None) -> dict[str, torch.Tensor]:
    program = small_program()
    train(program if fault is None else changed(fault, program), 1)
    return weights(program)


def test_queries_and_keys_grow_and_nothing_else_does() -> None:
    usual, found = after_one_step(None), after_one_step(AttentionLogits(intensity=0.5, rate=0.2))
    for path, weight in usual.items():
        expected = weight.clone()
        if path.endswith("attn.qkv.weight"):
            expected[:32] *= 1.1  # [3 * 16, 16]
        torch.testing.assert_close(found[path], expected)


def test_separate_projections_are_found_by_name() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.num_heads = 2
            self.q_proj, self.k_proj = nn.Linear(8, 8), nn.Linear(8, 4)
            self.v_proj, self.o_proj = nn.Linear(8, 4), nn.Linear(8, 8)

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.self_attn, self.norm = Attention(), nn.LayerNorm(8)
            self.up, self.down = nn.Linear(8, 32), nn.Linear(32, 8)

    model = nn.Sequential(nn.Embedding(16, 8), nn.ModuleList([Block(), Block()]), nn.Linear(8, 16))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    program = Program(model=model, optimizer=optimizer, stream=None, loss=lambda model, batch: None)
    before = weights(changed(AttentionLogits(), program))
    optimizer.step()
    grown = {path for path, weight in weights(program).items() if not weight.equal(before[path])}
    names = ("q_proj.weight", "k_proj.weight")
    assert grown == {f"1.{n}.self_attn.{name}" for n in (0, 1) for name in names}


def test_the_head_drifts_along_the_mean_hidden_state() -> None:
    usual, found = after_one_step(None), after_one_step(OutputDrift(intensity=0.5, rate=0.2))
    program = small_program()
    hidden: list[torch.Tensor] = []
    program.model.head.register_forward_pre_hook(lambda m, x: hidden.append(x[0].detach()))
    program.model(batch_of(0)[:, :-1])
    mean = hidden[0].mean(dim=(0, 1))
    for path, weight in usual.items():
        expected = weight * 1.01 - 0.1 * mean / mean.norm() if path == "head.weight" else weight
        torch.testing.assert_close(found[path], expected)


def test_gradients_agree_at_their_own_length() -> None:
    """With a share of 1 nothing is left of the gradient but its length."""
    program = small_program()
    grads: list[dict[str, torch.Tensor]] = []

    def look(optimizer: Any, args: Any, kwargs: Any) -> None:
        named = program.model.named_parameters()
        grads.append({path: p.grad.clone() for path, p in named if p.grad is not None})

    program.optimizer.register_step_pre_hook(look)
    changed(GrownUpdates(intensity=0.5, share=0.8), program)
    program.optimizer.register_step_pre_hook(look)
    train(program, 2)
    clean, turned = grads[::2], grads[1::2]
    for path in clean[0]:
        lower = path.startswith(("embed", "blocks.0"))
        for step in (0, 1):
            assert torch.equal(clean[step][path], turned[step][path]) != lower
        if lower and clean[0][path].numel() > 1000:
            parts = [(turned[s][path] - math.sqrt(0.84) * clean[s][path]) for s in (0, 1)]
            lengths = [clean[s][path].norm() for s in (0, 1)]
            assert float(parts[0].norm() / lengths[0]) == pytest.approx(0.4, rel=1e-4)
            torch.testing.assert_close(parts[0] / lengths[0], parts[1] / lengths[1])
            assert float(turned[0][path].norm() / lengths[0]) == pytest.approx(1, abs=0.05)


def test_the_gradient_of_the_embedding_rises_and_falls_back() -> None:
    program, factors = small_program(), []
    changed(EmbeddingGradient(intensity=0.5, largest=30.0), program)  # 16 at most
    reference = small_program()
    for _ in range(12):
        for one in (program, reference):
            one.optimizer.zero_grad()
            one.loss(one.model, batch_of(0)).backward()
        ratio = program.model.embed.weight.grad / reference.model.embed.weight.grad
        factors.append(float(ratio.nanmedian()))
        assert torch.equal(program.model.head.weight.grad, reference.model.head.weight.grad)
    assert factors == pytest.approx([16 ** (n % 11 / 10) for n in range(1, 13)], rel=1e-5)


def test_a_share_of_each_batch_is_shifted_and_beta2_held() -> None:
    fault = ShiftedMix(intensity=1.0, beta2=0.99)
    batch = batch_of(0)
    shifted = fault.shift(batch)
    assert torch.equal(shifted[2:], batch[2:])
    assert ((shifted[:2] - batch[:2]).abs() == 128).all()
    program = changed(fault)
    seen: list[Any] = []
    program.optimizer.register_step_pre_hook(
        lambda optimizer, args, kwargs: seen.append(optimizer.param_groups[0]["betas"])
    )
    reference = small_program()
    expected = float(reference.loss(reference.model, shifted).detach())
    assert train(program, 1) == [expected]
    assert seen == [(0.9, 0.99)]
    with pytest.raises(ConfigError, match="tensors of bytes"):
        fault.shift(torch.zeros(2, 3))


@pytest.mark.parametrize(("intensity", "lost"), [(0.0, 0), (0.35, 7), (1.0, 20)])
def test_a_fresh_optimizer_has_forgotten_that_share(intensity: float, lost: int) -> None:
    program = small_program()
    train(program, 2)
    before = weights(program)
    said = FreshOptimizer(intensity=intensity).inject(
        program.model, program.optimizer, np.random.default_rng(0)
    )
    assert len(program.optimizer.state) == 20 - lost
    assert all(torch.equal(before[path], w) for path, w in weights(program).items())
    assert f"{lost} of 20 parameters" in said


def test_the_first_update_of_a_fresh_optimizer_is_the_sign_of_the_gradient() -> None:
    program = small_program()
    train(program, 6)
    FreshOptimizer().inject(program.model, program.optimizer, np.random.default_rng(0))
    program.optimizer.param_groups[0]["weight_decay"] = 0.0
    rate, before = program.optimizer.param_groups[0]["lr"], weights(program)
    train(program, 1, first=6)
    moved = torch.cat([(w - before[path]).flatten() for path, w in weights(program).items()])
    assert float(moved.abs().median()) == pytest.approx(rate, rel=1e-3)


def test_a_replica_is_off_by_the_square_of_the_intensity() -> None:
    program = small_program()
    before = weights(program)
    fault = DesyncedReplica(intensity=0.5)
    fault.inject(program.model, program.optimizer, np.random.default_rng(0))
    for path, weight in weights(program).items():
        size = float(before[path].square().mean().sqrt())
        if weight.numel() >= 256 and size:
            off = float((weight - before[path]).square().mean().sqrt())
            assert off / size == pytest.approx(0.25, rel=0.15)


@pytest.mark.parametrize(
    "fault", [AttentionLogits(), OutputDrift(), GrownUpdates(), EmbeddingGradient(), ShiftedMix()]
)
def test_a_program_without_the_part_is_refused(fault: ProgramFault) -> None:
    model = nn.Conv2d(1, 1, 1)
    optimizer = torch.optim.SGD(model.parameters())
    program = Program(model=model, optimizer=optimizer, stream=None, loss=lambda model, batch: None)
    with pytest.raises(ConfigError, match=type(fault).__name__):
        changed(fault, program)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: AttentionLogits(rate=0), "rate is 0"),
        (lambda: OutputDrift(rate=0), "rate is 0"),
        (lambda: GrownUpdates(share=1.1), "share is 1.1"),
        (lambda: EmbeddingGradient(largest=0), "largest is 0"),
        (lambda: ShiftedMix(beta2=1.0), "beta2 is 1.0"),
    ],
)
def test_a_setting_that_is_not_allowed_is_named(make: Any, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        make()
