"""Which tensor a tap sees, of all that a module may take or give."""

from collections import OrderedDict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed
from torch import nn
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from foreshock.taps import Tap, first_tensor

pytestmark = pytest.mark.usefixtures("way")

CPU = torch.device("cpu")


class Output(OrderedDict):
    """As transformers' `ModelOutput`: a dictionary whose entries are attributes as well."""

    def __getattr__(self, name: str) -> Any:
        return self[name]


VALUE, OTHER = torch.ones(2, 3), torch.zeros(1)
INDICES = torch.zeros(2, dtype=torch.long)
FOUND: dict[str, tuple[Any, torch.Tensor | None]] = {
    "a tensor": (VALUE, VALUE),
    "a tuple": ((VALUE, OTHER), VALUE),
    "a list": ([VALUE, OTHER], VALUE),
    "None first": ((None, VALUE), VALUE),
    "indices first": ((INDICES, VALUE), VALUE),
    "a dict": ({"loss": None, "logits": VALUE, "hidden": OTHER}, VALUE),
    "a model output": (Output(last_hidden_state=VALUE, past=None), VALUE),
    "half precision": ((VALUE.bfloat16(),), VALUE.bfloat16()),
    "nothing": (None, None),
    "no tensors": ((1, "two"), None),
    "empty": ((), None),
    "indices only": (INDICES, None),
    "an unknown object": (SimpleNamespace(hidden=VALUE), None),
}


@pytest.mark.parametrize("kind", FOUND)
def test_what_a_module_gives(kind: str) -> None:
    given, true = FOUND[kind]

    class Giving(nn.Module):
        def forward(self) -> Any:
            return given

    module, seen = Giving(), []
    tap = Tap(module, seen.append, device=CPU)
    module()
    tap.close()
    if true is None:
        assert seen == [] and first_tensor(given) is None
    else:
        assert len(seen) == 1 and torch.equal(seen[0], true)


def test_what_a_module_takes_by_position_or_name() -> None:
    class Taking(nn.Module):
        def forward(self, mask: Any, *, x: torch.Tensor) -> torch.Tensor:
            return x

    module, seen = Taking(), []
    tap = Tap(module, seen.append, where="input", device=CPU)
    module(None, x=VALUE)
    module(INDICES, x=VALUE)
    tap.close()
    assert len(seen) == 2 and all(torch.equal(one, VALUE) for one in seen)


def test_a_distributed_tensor_reaches_its_function() -> None:
    torch.distributed.init_process_group("fake", rank=0, world_size=1, store=FakeStore())
    try:
        mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
        layer, seen = nn.Linear(4, 4, bias=False), []
        layer.weight = nn.Parameter(distribute_tensor(layer.weight.data, mesh, [Replicate()]))
        tap = Tap(layer, seen.append, device=CPU)
        out = layer(distribute_tensor(torch.ones(2, 4), mesh, [Replicate()]))
        out.to_local().sum().backward()
        tap.close()
        assert isinstance(seen[0], DTensor) and not seen[0].requires_grad
        assert torch.equal(seen[0].to_local(), out.to_local())
    finally:
        torch.distributed.destroy_process_group()


def test_an_exception_of_the_function_reaches_the_loop_and_the_tap_goes_on() -> None:
    layer, seen = nn.Linear(4, 4), []

    def see(value: torch.Tensor) -> None:
        seen.append(value)
        if len(seen) == 1:
            raise KeyError("see")

    tap = Tap(layer, see, device=CPU)
    with pytest.raises(KeyError, match="see"):
        layer(torch.ones(1, 4))
    assert torch.is_grad_enabled()
    layer(torch.ones(1, 4))
    tap.close()
    assert len(seen) == 2
