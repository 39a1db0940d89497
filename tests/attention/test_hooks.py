"""The hooks of the tap: what they leave behind, and forwards that are not as usual."""

import copy
import io
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from foreshock.attention.tap import AttentionTap
from tests.attention.models import CPU, ByHand, Fused, reference_logits


def tapped(*modules: nn.Module) -> AttentionTap:
    return AttentionTap([(f"m{i}", one) for i, one in enumerate(modules)], CPU)


def state_of(module: nn.Module) -> dict[str, Any]:
    return {
        name: dict(value) if isinstance(value, dict) else value
        for name, value in vars(module).items()
    }


def test_close_leaves_everything_as_it_was() -> None:
    functions = dict(vars(torch.nn.functional))
    modules: list[nn.Module] = [Fused(), ByHand(), nn.MultiheadAttention(16, 2, batch_first=True)]
    kept = modules[0].register_forward_hook(lambda *_: None)
    before = [state_of(one) for one in modules]
    with tapped(*modules) as tap:
        x = torch.randn(2, 5, 16, requires_grad=True)
        modules[0](x), modules[1](x), modules[2](x, x, x)
        tap.want_exact = True
    assert [state_of(one) for one in modules] == before
    assert dict(vars(torch.nn.functional)) == functions
    assert torch._C._len_torch_function_stack() == 0
    taken = tap.num_measured
    modules[0](x)
    assert tap.num_measured == taken
    kept.remove()


class Broken(ByHand):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if self.options.get("broken"):
            raise self.options["broken"]
        return super().attend(q, k, v)


def test_a_forward_that_raises_leaves_no_mode_behind() -> None:
    module, x = Broken(broken=ValueError("no")), torch.randn(2, 5, 16)
    tap = tapped(module)
    hooks = len(module._forward_hooks)
    for _ in range(3):
        with torch.device("cpu"), pytest.raises(ValueError, match="no"):
            module(x)
        assert torch._C._len_torch_function_stack() == 0
    module.options.clear()
    module(x)
    assert torch._C._len_torch_function_stack() == 0
    assert tap.num_measured == (1,)
    assert len(module._forward_hooks) == hooks
    tap.close()
    assert not module._forward_hooks and not module._forward_hooks_always_called


@pytest.mark.parametrize("again", [True, False])
def test_an_interrupt_is_healed_by_the_next_forward_or_by_closing(again: bool) -> None:
    module, x = Broken(broken=KeyboardInterrupt()), torch.randn(2, 5, 16)
    tap = tapped(module)
    with pytest.raises(KeyboardInterrupt):
        module(x)
    module.options.clear()
    if again:
        module(x)
        assert torch._C._len_torch_function_stack() == 0
        assert tap.num_measured == (1,)
    tap.close()
    assert torch._C._len_torch_function_stack() == 0
    assert not module._forward_hooks and not module._forward_hooks_always_called


def test_copies_and_pickles_are_not_watched() -> None:
    module, x = Fused(), torch.randn(2, 5, 16)
    tap = tapped(module)
    module(x)
    twin = copy.deepcopy(module)
    buffer = io.BytesIO()
    torch.save(module, buffer)
    buffer.seek(0)
    for other in (twin, torch.load(buffer, weights_only=False)):
        assert torch.equal(other(x), module(x))
    assert tap.num_measured == (3,)


def test_a_failing_measurement_is_named_and_training_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("out of memory\nand more")

    module, x = Fused(), torch.randn(2, 5, 16)
    tap = tapped(module)
    monkeypatch.setattr(tap._record, "add_logsumexp", fail)
    for _ in range(2):
        module(x).sum().backward()
    assert tap.status()["m0"].endswith("RuntimeError: out of memory")


def test_a_module_that_changes_its_way_is_seen_again() -> None:
    class Either(Fused):
        def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            if self.options.get("by_hand"):
                return ByHand.attend(self, q, k, v)
            return Fused.attend(self, q, k, v)

    module, x = Either(), torch.randn(2, 5, 16)
    tap = tapped(module)
    module(x), module(x)
    assert tap.num_measured == (2,)
    module.options["by_hand"] = True
    for _ in range(3):
        module(x)
    assert tap.num_measured == (4,)  # the first after the change passes unseen
    assert tap.status() == {"m0": "sampled"}


def test_a_forward_that_departs_from_the_usual_order_is_measured_from_then_on() -> None:
    modules = [Fused() for _ in range(3)]
    tap = tapped(*modules)
    x = torch.randn(2, 20, 16)

    def forward(*places: int) -> int:
        before = sum(tap.num_measured)
        sum(modules[place](x).sum() for place in places).backward()
        tap.read_and_reset()
        return sum(tap.num_measured) - before

    for _ in range(4):
        assert forward(0, 1, 2) == 3
    forward(0, 1)  # ends early: what was held may be lost, once
    for places in ((0, 2), (0, 1, 2), (2, 1), (0, 1), (0, 1, 2), (0, 1, 2), (0, 1, 2), (0, 1)):
        assert forward(*places) == len(places)
    assert set(tap.status().values()) == {"log-sum-exp"}


def test_training_layer_by_layer_is_measured_after_one_surprise() -> None:
    modules = [Fused() for _ in range(3)]
    tap = tapped(*modules)
    x = torch.randn(2, 20, 16)
    counts = []
    for _ in range(6):
        for module in modules:
            module(x).sum().backward()
        tap.read_and_reset()
        counts.append(sum(tap.num_measured))
    assert all(b - a == 3 for a, b in zip(counts[-3:], counts[-2:], strict=False))
    assert set(tap.status().values()) == {"log-sum-exp"}


def test_an_abandoned_forward_is_let_go() -> None:
    modules = [Fused() for _ in range(2)]
    tap = tapped(*modules)
    x = torch.randn(2, 20, 16)
    for _ in range(4):
        [module(x) for module in modules]
    modules[0](x * 100)
    tap.forget()
    assert (tap.read_and_reset() == -math.inf).all()
    assert not tap._burst._held
    for _ in range(2):
        [module(x) for module in modules]
        assert tap.read_and_reset().isfinite().all()


def test_a_frozen_attention_is_measured_as_well() -> None:
    module, x = Fused(), torch.randn(2, 5, 16)
    module.requires_grad_(False)
    tap = tapped(module)
    for _ in range(2):
        module(x)
    assert tap.num_measured == (2,)
    assert tap.read_and_reset().isfinite().all()


def test_a_module_frozen_later_is_measured_again() -> None:
    module, x = Fused(), torch.randn(2, 20, 16)
    tap = tapped(module)
    for _ in range(3):
        module(x)
    module.requires_grad_(False)
    for _ in range(3):
        module(x)
    assert tap.num_measured == (5,)  # the first after the change passes unseen


def test_a_shared_module_counts_every_call() -> None:
    module = Fused()
    tap = tapped(module)
    small, large = torch.randn(2, 5, 16), torch.randn(2, 5, 16) * 50
    for x in (large, small):
        module(x)
    truth = reference_logits(*module.project(large)[:2]).amax((0, 2, 3))
    assert (tap.read_and_reset()[0, :, 1].double() >= truth - 1e-3).all()
    assert tap.num_measured == (2,)
