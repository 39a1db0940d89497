"""An extra forward and backward that leaves everything bit for bit as it was."""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from foreshock.taps import is_paused, paused


def canary_running() -> bool:
    """Whether the forward or backward that is running is no step of training.

    Hooks that count, record or change ask this, and do nothing while it is true.
    """
    return is_paused()


@contextmanager
def leave_no_trace(
    model: torch.nn.Module, generators: Sequence[torch.Generator] = ()
) -> Iterator[None]:
    """Put back every random state, buffer, training mode and gradient at the end.

    Random states are those of Python, NumPy (the global one), PyTorch on the CPU and on the
    devices of the model, and the generators that are given. Gradients are set aside (None
    inside) and put back as the same objects. Not covered is what a module keeps outside its
    buffers (a Python counter in its forward); it can ask `canary_running`.

    Args:
        model: the module that runs inside.
        generators: random generators of the user's own.
    """
    randoms = _RandomStates(model, generators)
    modes = [(module, module.training) for module in model.modules()]
    buffers = [
        (module, name, buffer, None if buffer is None else buffer.detach().clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
    ]
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    try:
        for parameter, _ in gradients:
            parameter.grad = None
        with paused():
            yield
    finally:
        for parameter, gradient in gradients:
            parameter.grad = gradient
        with torch.no_grad():
            for module, name, buffer, kept in buffers:
                module._buffers[name] = buffer
                if buffer is not None and kept is not None:
                    # always, since batch normalisation writes without being counted, and by
                    # `data`, which a graph that waits for its backward does not count either
                    buffer.data.copy_(kept)
        for module, training in modes:
            module.training = training
        randoms.restore()


def seed_all(seed: int, generators: Sequence[torch.Generator] = ()) -> None:
    """Seed Python, NumPy, PyTorch on all devices, and the given generators alike."""
    random.seed(seed)
    np.random.seed(seed % (1 << 32))
    torch.manual_seed(seed)
    for generator in generators:
        generator.manual_seed(seed)


class _RandomStates:
    def __init__(self, model: torch.nn.Module, generators: Sequence[torch.Generator]) -> None:
        self._python = random.getstate()
        self._numpy = np.random.get_state()
        self._torch = torch.get_rng_state()
        self._own = [(generator, generator.get_state()) for generator in generators]
        self._devices: list[tuple[Any, torch.device, torch.Tensor]] = []
        kinds = {tensor.device.type for tensor in model.parameters()} - {"cpu", "meta"}
        for kind in sorted(kinds):
            module = torch.get_device_module(kind)
            for place in range(module.device_count()):
                device = torch.device(kind, place)
                self._devices.append((module, device, module.get_rng_state(device)))

    def restore(self) -> None:
        random.setstate(self._python)
        np.random.set_state(self._numpy)
        torch.set_rng_state(self._torch)
        for generator, state in self._own:
            generator.set_state(state)
        for module, device, state in self._devices:
            module.set_rng_state(state, device)
