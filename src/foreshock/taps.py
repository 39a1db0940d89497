"""Taps: what flows through a module in training, seen once, without touching it.

A forward hook sees a tensor and hands it to a function. It fires in training forwards
only, once for each: one that activation checkpointing computes again in the backward pass
does not count twice. Under `torch.compile` the hook is traced, and the function is called
through an opaque operator, so that nothing around it is fused otherwise than without it.
"""

import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch

See = Callable[[torch.Tensor], None]

_seers: dict[int, See] = {}
_numbers = itertools.count()
_paused = 0  # a plain number, since autograd's own threads must see it too


class Tap:
    """One hook that is on; `close` takes it off again.

    Args:
        module: whose output or input is seen: the first tensor of it.
        see: called with it, detached, under `torch.no_grad`; it may be a DTensor.
        where: which of the two.
        device: where the model is.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        see: See,
        *,
        where: Literal["output", "input"] = "output",
        device: torch.device,
    ) -> None:
        self._number = next(_numbers)
        self._see = see
        # What the operator pretends to write to: else a compiler would drop it as useless.
        self._token = torch.zeros((), device=device)
        _seers[self._number] = see
        _operator()
        if where == "output":
            self._hook = module.register_forward_hook(self._on_output, with_kwargs=True)
        else:
            self._hook = module.register_forward_pre_hook(self._on_input, with_kwargs=True)

    def close(self) -> None:
        """Take the hook off; a second call does nothing."""
        self._hook.remove()
        _seers.pop(self._number, None)

    def _on_output(self, module: torch.nn.Module, _args: Any, _named: Any, output: Any) -> None:
        self._pass_on(module, output)

    def _on_input(self, module: torch.nn.Module, args: Any, named: dict[str, Any]) -> None:
        self._pass_on(module, (*args, *named.values()))

    def _pass_on(self, module: torch.nn.Module, found: Any) -> None:
        if not module.training or not torch.is_grad_enabled():
            return
        value = first_tensor(found)
        if value is None:
            return
        if torch.compiler.is_compiling():
            torch.ops.foreshock.see(value.detach(), self._token, self._number)
        else:
            _show(value, self._see)


def first_tensor(found: Any) -> torch.Tensor | None:
    """The first tensor of what a module takes or gives: itself, or in a tuple or output object."""
    if isinstance(found, torch.Tensor):
        return found
    if isinstance(found, dict):
        found = tuple(found.values())
    if isinstance(found, tuple | list):
        for one in found:
            if isinstance(one, torch.Tensor) and one.is_floating_point():
                return one
    return None


def counts() -> bool:
    """Whether the forward that is running now is to be counted.

    Of a checkpointed one either the first pass or the one in the backward: the former where
    it knows gradients (non-reentrant), the latter where it does not (reentrant).
    """
    if _paused:
        return False
    if torch._C._current_graph_task_id() == -1:
        return True
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)  # pyright: ignore[reportAttributeAccessIssue] - built in C
    if hooks is None:
        return True
    return "_recomputation_hook" not in getattr(hooks[0], "__qualname__", "")


def is_paused() -> bool:
    """Whether what runs now is nobody's training."""
    return _paused > 0


@contextmanager
def paused() -> Iterator[None]:
    """Forwards in here are nobody's training: no tap sees them."""
    global _paused  # noqa: PLW0603 - whether to count is a fact of the process
    _paused += 1
    try:
        yield
    finally:
        _paused -= 1


def recompile() -> None:
    """Make compiled code notice hooks that came or went: all of it is compiled anew.

    Compiled code does not look at hooks again: one that is added is never called, one that
    is removed still is.
    """
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is not None:
        dynamo.reset()


def _show(value: torch.Tensor, see: See) -> None:
    if counts():
        with torch.no_grad():
            see(value.detach())


_made: Any = None


def _operator() -> None:
    """Make the operator when it is first needed: importing this module changes nothing."""
    global _made  # noqa: PLW0603 - torch knows one operator of a name
    if _made is not None:
        return

    @torch.library.custom_op("foreshock::see", mutates_args=("token",))
    def see(value: torch.Tensor, token: torch.Tensor, number: int) -> None:
        seer = _seers.get(number)
        if seer is not None:
            _show(value, seer)

    @see.register_fake
    def _(value: torch.Tensor, token: torch.Tensor, number: int) -> None:
        pass

    _made = see
