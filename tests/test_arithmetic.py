"""Passes in another arithmetic: against the same computation written out by hand."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from foreshock.arithmetic import Precise, forward_in, loss_in, parts_in, plain_kernels
from foreshock.lab.gpt import GPT, GPTConfig


class Half(torch.autograd.Function):
    """Rounds to half precision both ways."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.half().float()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> torch.Tensor:
        return gradients[0].half().float()


def layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3))


INPUT = torch.randn(4, 8, generator=torch.Generator().manual_seed(1))
TARGET = torch.tensor([0, 1, 2, 0])


def test_rounding_that_is_emulated_is_left_out_forward_and_backward() -> None:
    x = torch.full((3,), 1.0001, requires_grad=True)
    plain = (Half.apply(x) * 1e6).sum()
    plain.backward()
    assert plain.item() == 3e6 and torch.isinf(x.grad).all()
    x.grad = None
    mode = Precise(torch.float32)
    with forward_in(mode):
        exact = (Half.apply(x) * 1e6).sum()
        exact.backward()
    assert exact.item() == pytest.approx(3.0003e6, rel=1e-6)
    assert x.grad.tolist() == [1e6] * 3
    assert mode.num_touched == 2  # one rounding each way


@pytest.mark.parametrize("cast", ["half", "to", "to_dtype", "type", "bfloat16", "type_as"])
def test_every_way_to_cast_down_is_seen(cast: str) -> None:
    x = torch.full((2,), 1.0001)
    casts = {
        "half": x.half,
        "bfloat16": x.bfloat16,
        "to": lambda: x.to(torch.float16),
        "to_dtype": lambda: x.to(dtype=torch.bfloat16),
        "type": lambda: x.type(torch.float16),
        "type_as": lambda: x.type_as(torch.zeros((), dtype=torch.bfloat16)),
    }
    mode = Precise(torch.float32)
    with mode:
        found = casts[cast]()
    assert found.dtype == torch.float32
    assert torch.equal(found, x)
    assert mode.num_touched


def test_what_computes_in_fp32_already_is_untouched() -> None:
    model, mode = layers(), Precise(torch.float32)
    plain = F.cross_entropy(model(INPUT), TARGET)
    with forward_in(mode):
        found = F.cross_entropy(model(INPUT), TARGET)
        found.backward()
    assert torch.equal(found, plain)
    assert mode.num_touched == 0


def test_a_program_in_sixteen_bits_computes_in_fp32() -> None:
    model = layers()
    wanted = F.cross_entropy(model(INPUT), TARGET)

    def loss() -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = model(INPUT)
        return F.cross_entropy(out.float(), TARGET)

    assert not torch.equal(loss(), wanted)
    mode = Precise(torch.float32)
    with forward_in(mode):
        assert torch.equal(loss(), wanted)
    assert mode.num_touched
    assert not torch.equal(loss(), wanted)  # autocast is back


def test_weights_in_sixteen_bits_keep_their_type_and_get_their_gradients() -> None:
    model = layers().bfloat16()
    reference = layers().bfloat16().float()
    wanted = F.cross_entropy(reference(INPUT), TARGET)
    wanted.backward()
    with forward_in(Precise(torch.float32)):
        found = F.cross_entropy(model(INPUT.bfloat16()), TARGET)
        found.backward()
    assert torch.equal(found, wanted)
    for one, other in zip(model.parameters(), reference.parameters(), strict=True):
        assert one.dtype == torch.bfloat16
        assert torch.equal(one.grad, other.grad.bfloat16())


def test_parts_compute_in_fp64_and_the_rest_as_it_did() -> None:
    torch.manual_seed(0)
    model = GPT(GPTConfig(width=16, depth=2, heads=2, context=8))
    tokens = torch.randint(0, 256, (2, 8))
    seen: list[torch.dtype] = []
    attention = [block.attn for block in model.blocks]
    seen_inside: list[torch.dtype] = []
    hooks = [
        model.blocks[0].ffn.register_forward_hook(lambda m, a, out: seen.append(out.dtype)),
        attention[0].qkv.register_forward_hook(lambda m, a, out: seen_inside.append(out.dtype)),
        attention[0].register_forward_hook(lambda m, a, out: seen.append(out.dtype)),
    ]
    with parts_in(Precise(torch.float64), attention):
        found = model(tokens)
        found.sum().backward()
    for hook in hooks:
        hook.remove()
    assert seen == [torch.float32] * 2
    assert seen_inside == [torch.float64]
    assert torch.allclose(found, model(tokens), atol=1e-5)
    assert not any(one._forward_hooks or one._forward_pre_hooks for one in model.modules())


def test_the_loss_is_made_in_fp64_of_logits_as_they_are() -> None:
    model = nn.Linear(8, 3)
    with torch.no_grad():
        model.weight.mul_(40)  # so sure that fp32 rounds the loss to 0
    labels = model(INPUT).argmax(dim=1)

    def loss() -> torch.Tensor:
        return F.cross_entropy(model(INPUT).float(), labels)

    mode = Precise(torch.float64)
    with loss_in(mode, model):
        found = loss()
        found.backward()
    wanted = F.cross_entropy(model(INPUT).double(), labels)
    assert found.dtype == torch.float64
    assert found.item() == wanted.item()
    assert mode.reached
    assert model.weight.grad.dtype == torch.float32


def test_a_model_that_gives_its_loss_is_not_taken_for_one_that_gives_logits() -> None:
    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = layers()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.cross_entropy(self.inner(x), TARGET)

    model, mode = Whole(), Precise(torch.float64)
    with loss_in(mode, model):
        model(INPUT).backward()
    assert not mode.reached


def test_an_error_inside_leaves_nothing_behind() -> None:
    model, kind = layers(), torch.amp.autocast_mode.autocast
    entered = kind.__enter__
    for made in (
        lambda: forward_in(Precise(torch.float32)),
        lambda: parts_in(Precise(torch.float64), [model[0]]),
        lambda: loss_in(Precise(torch.float64), model),
        plain_kernels,
    ):
        with pytest.raises(RuntimeError), made():
            model(torch.zeros(2, 5))
        assert torch._C._len_torch_function_stack() == 0
        assert kind.__enter__ is entered
        assert not torch.is_autocast_enabled("cpu")
        assert torch.backends.cuda.flash_sdp_enabled()
    assert not any(one._forward_hooks or one._forward_pre_hooks for one in model.modules())
    assert torch.equal(model(INPUT), layers()(INPUT))
