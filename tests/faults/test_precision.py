"""Faults of precision and kernels: what is rounded, and against which reference."""

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from foreshock.arithmetic import Precise
from foreshock.core.errors import ConfigError
from foreshock.core.fault import ProgramFault
from foreshock.core.program import Program
from foreshock.faults.changed_kernel import ChangedKernel
from foreshock.faults.half_forward import HalfForward
from foreshock.faults.half_gradient import HalfGradient
from foreshock.faults.rounded_attention import RoundedAttention, cut
from foreshock.faults.rounded_loss import RoundedLoss, log_probabilities
from foreshock.faults.rounded_reduction import RoundedReduction
from foreshock.faults.rounded_weights import RoundedWeights, rounded
from tests.faults.programs import batch_of, small_program, train


def changed(fault: ProgramFault, program: Program | None = None) -> Program:
    return fault.change(program or small_program(), np.random.default_rng(0))[0]


def grown(factor: float) -> Program:
    """The program with a residual stream that is `factor` times as large, at the same loss."""
    program = small_program()
    model = program.model
    with torch.no_grad():
        for block in model.blocks:
            block.attn.out.weight.mul_(factor)
            block.ffn.down.weight.mul_(factor)
        model.embed.weight.mul_(factor)
    return program


def test_activations_within_the_range_pass_and_others_do_not() -> None:
    program = small_program()
    after = changed(HalfForward(intensity=0.2), program)
    losses = [float(after.loss(program.model, batch_of(0)).detach()) for _ in range(2)]
    assert losses[0] == float(program.loss(program.model, batch_of(0)).detach())
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)
    assert losses[1] != losses[0]
    over = changed(HalfForward(intensity=0.65), program)
    over.loss(program.model, batch_of(0))  # it measures
    assert math.isnan(float(over.loss(program.model, batch_of(0)).detach()))
    assert after.precision == "fp16"


def test_activations_that_grow_leave_the_range_later() -> None:
    program = grown(1.0)
    after = changed(HalfForward(intensity=0.2), program)
    after.loss(program.model, batch_of(0))
    for factor, finite in ((1.1, True), (1.4, False)):  # 2^-0.3 of the range, which is 0.81
        larger = grown(factor)
        assert math.isfinite(float(after.loss(larger.model, batch_of(0)).detach())) == finite


@pytest.mark.parametrize(
    ("fault", "dtype"),
    [
        (HalfForward(), torch.float32),
        (HalfGradient(), torch.float32),
        (RoundedAttention(), torch.float32),
        (RoundedLoss(), torch.float64),
    ],
)
def test_full_precision_cures_it(fault: ProgramFault, dtype: torch.dtype) -> None:
    """Casts down are left out by the mode that experiments use."""
    usual, cured = small_program(), changed(fault)
    found: list[list[torch.Tensor]] = []
    for program in (usual, cured):
        for _ in range(2):  # the first measures
            program.optimizer.zero_grad()
            with Precise(dtype):
                program.loss(program.model, batch_of(0)).backward()
        found.append([one.grad for one in program.model.parameters()])
    assert all(bool(one.isfinite().all()) for one in found[1])
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-7)


def test_gradients_overflow_while_the_loss_is_finite() -> None:
    program = changed(HalfGradient(intensity=0.5, falls=4))
    scale = 2.0**10
    finite: list[bool] = []
    for _ in range(8):
        program.optimizer.zero_grad()
        loss = program.loss(program.model, batch_of(0))
        assert math.isfinite(float(loss.detach()))
        (loss * scale).backward()
        finite.append(all(bool(p.grad.isfinite().all()) for p in program.model.parameters()))
        scale *= 1.0 if finite[-1] else 0.5
    assert finite == [True, False, False, True, True, True, True, True]


def test_a_value_is_cut_towards_zero() -> None:
    values = torch.tensor([1.99, -1.99, 1.0, -3.0, 0.0, 0.3])
    assert cut(values, 0).tolist() == [1.0, -1.0, 1.0, -2.0, 0.0, 0.25]
    assert cut(values, 1).tolist() == [1.5, -1.5, 1.0, -3.0, 0.0, 0.25]
    noise = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    exact = (noise.view(torch.int32) & ~0xFFFF).view(torch.float32)  # bfloat16, truncated
    assert torch.equal(cut(noise, 7), exact)


def test_a_weight_is_rounded_as_bfloat16_rounds() -> None:
    noise = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    assert torch.equal(rounded(noise, 7), noise.bfloat16().float())


class Attending(nn.Module):
    """Attention over what is embedded, with heads of width 4."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, 4)
        nn.init.normal_(self.embed.weight, generator=torch.Generator().manual_seed(0))
        self.seen: list[torch.Tensor] = []

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)[:, None]
        found = scaled_dot_product_attention(x, x, 2 * x, is_causal=True)
        self.seen.append(found.detach())
        return found


def attending() -> Program:
    model = Attending()
    optimizer = torch.optim.SGD(model.parameters())
    loss: Any = lambda model, batch: model(batch).square().mean()  # noqa: E731
    return Program(model=model, optimizer=optimizer, stream=None, loss=loss)


def test_attention_is_cut_and_its_gradient_is_as_if_it_were_not() -> None:
    program = attending()
    after = changed(RoundedAttention(intensity=0.5), program)  # 3.5, which is 4 bits
    after.loss(program.model, batch_of(0)).backward()
    gradient = program.model.embed.weight.grad
    x = program.model.embed(batch_of(0))[:, None].detach()
    low = cut(x.bfloat16().float(), 4)
    exact = scaled_dot_product_attention(low, low, 2 * x, is_causal=True)
    expected = cut(exact.bfloat16().float(), 4)
    torch.testing.assert_close(program.model.seen[0], expected, rtol=0, atol=1e-6)
    assert not torch.equal(expected, exact)
    assert gradient is not None
    assert bool((gradient != 0).any())


def test_attention_of_another_kernel_has_another_scale() -> None:
    program = attending()
    after = changed(ChangedKernel(intensity=1 / 3), program)
    after.loss(program.model, batch_of(0))
    x = program.model.embed(batch_of(0))[:, None].detach()
    exact = scaled_dot_product_attention(x, x, 2 * x, is_causal=True, scale=1.0)
    torch.testing.assert_close(program.model.seen[0], exact)
    with sdpa_kernel(SDPBackend.MATH):
        after.loss(program.model, batch_of(0))
    right = scaled_dot_product_attention(x, x, 2 * x, is_causal=True)
    torch.testing.assert_close(program.model.seen[1], right)
    program = attending()
    assert ChangedKernel().changes(program, 5)[0].kind == "package"


def test_weights_lose_updates_that_are_too_small() -> None:
    """With one bit, weights are a power of two times 1 or 1.5: an update of 1 % is lost."""
    model = nn.Linear(8, 8, bias=False)
    nn.init.constant_(model.weight, 0.75)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    program = Program(model=model, optimizer=optimizer, stream=None, loss=lambda model, batch: None)
    changed(RoundedWeights(intensity=0.75), program)
    for _ in range(50):
        model.weight.grad = torch.full_like(model.weight, 0.0075)
        optimizer.step()
    assert (model.weight == 0.75).all()
    model.weight.grad = torch.full_like(model.weight, 0.2)
    optimizer.step()
    assert (model.weight == 0.5).all()


@pytest.mark.parametrize(("intensity", "bits"), [(0.01, 7), (0.5, 4)])
def test_a_sum_of_ranks_is_the_gradient_and_roundings(intensity: float, bits: int) -> None:
    """Roundings are independent, each even over one last bit of what is rounded."""
    model = nn.Linear(64, 64, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    program = Program(model=model, optimizer=optimizer, stream=None, loss=lambda model, batch: None)
    changed(RoundedReduction(intensity=intensity, num_ranks=16, noise=30.0), program)
    gradient = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
    model.weight.grad = gradient.clone()
    optimizer.step()
    error = float((model.weight.grad - gradient).square().mean().sqrt())
    # Mean squares, of g: each rank's part, and partial sums after r of W ranks.
    parts = [(30 / 16) ** 2 * 15 / 16] * 16
    sums = [(30 / 16) ** 2 * r * (16 - r) / 16 + (r / 16) ** 2 for r in range(1, 17)]
    below = 0.72  # the power of two at or below x, over x, on average: between 1/2 and 1
    expected = below * 2.0**-bits / math.sqrt(12) * math.sqrt(sum(parts) + sum(sums))
    assert error == pytest.approx(expected, rel=0.15)


def test_a_softmax_in_full_bits_is_right_and_in_few_loses_what_is_small() -> None:
    logits = torch.tensor([[6.0, 0.0, 0.0], [0.5, 0.2, -1.0]], dtype=torch.float64)
    torch.testing.assert_close(log_probabilities(logits, 52), logits.log_softmax(-1))
    logits.requires_grad_()
    few = log_probabilities(logits, 7)  # 2 exp(-6) = 0.005 is more than half of 2^-7, and stays
    assert float(few[0, 0].detach()) == pytest.approx(-math.log1p(2**-7))
    lost = log_probabilities(logits * torch.tensor([[2.0], [1.0]]), 7)
    assert float(lost[0, 0].detach()) == 0.0
    (gradient,) = torch.autograd.grad(-lost[0, 0], logits)
    assert gradient[0, 0] == 0.0
    assert (gradient[0, 1:] > 0).all()


def test_a_loss_in_few_bits_is_that_of_its_log_probabilities() -> None:
    program = small_program()
    found = changed(RoundedLoss(), program).loss(program.model, batch_of(0))
    logits = program.model(batch_of(0)[:, :-1]).flatten(0, 1)
    chosen = log_probabilities(logits, 7).gather(1, batch_of(0)[:, 1:].reshape(-1, 1))
    torch.testing.assert_close(found, -chosen.mean())
    assert float(found.detach()) != float(
        cross_entropy(logits, batch_of(0)[:, 1:].flatten()).detach()
    )


@pytest.mark.parametrize("fault", [HalfForward(), HalfGradient()])
def test_a_model_without_blocks_is_refused(fault: ProgramFault) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters())
    program = Program(model=model, optimizer=optimizer, stream=None, loss=lambda model, batch: None)
    with pytest.raises(ConfigError, match=type(fault).__name__):
        changed(fault, program)


@pytest.mark.parametrize("fault", [HalfForward(intensity=0.2), HalfGradient(intensity=0.2)])
def test_no_hook_outlives_a_pass(fault: ProgramFault) -> None:
    program = small_program()
    before = copy.deepcopy([len(m._forward_hooks) for m in program.model.modules()])
    train(changed(fault, program), 3)
    assert [len(m._forward_hooks) for m in program.model.modules()] == before


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: HalfGradient(falls=0), "falls is 0"),
        (lambda: RoundedReduction(num_ranks=1), "num_ranks is 1"),
        (lambda: RoundedReduction(noise=0), "noise is 0"),
    ],
)
def test_a_setting_that_is_not_allowed_is_named(make: Any, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        make()
