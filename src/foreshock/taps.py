"""Taps: what flows through a module in training, seen once, without touching it.

A forward hook sees a tensor and hands it to a function. It fires in training forwards
only, once for each: one that activation checkpointing computes again in the backward pass
does not count twice. A module that a forward calls twice is seen twice. Under
`torch.compile` the hook is traced, and the function is called through an opaque operator,
so that nothing around it is fused otherwise than without it.
"""

import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Literal

import torch
from torch._C._functorch import is_functorch_wrapped_tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

See = Callable[[torch.Tensor], None]
Glance = Callable[[torch.Tensor], bool]

_graph_task = torch._C._current_graph_task_id
_taps: "dict[int, Tap]" = {}
_numbers = itertools.count()
_paused = 0  # a plain number, since autograd's own threads must see it too


class Tap:
    """One hook that is on; `close` takes it off again.

    Args:
        module: whose output or input is seen: the first tensor of it.
        see: called with it, detached, as `apart` has it; it may be a DTensor.
        where: which of the two.
        device: where the model is.
        glance: tried first with a plain tensor, as it is, where autograd and autocast are on: it
            must call no operator of torch. False if it could not do; then `see` is called.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        see: See,
        *,
        where: Literal["output", "input"] = "output",
        device: torch.device,
        glance: Glance | None = None,
    ) -> None:
        self._number = next(_numbers)
        self._see, self._glance = see, glance
        # Whether the last forward outside of backward knew gradients, and so was seen.
        self._seen_before = False
        # What the operator pretends to write to: else a compiler would drop it as useless.
        self._token = torch.zeros((), device=device)
        _taps[self._number] = self
        _operator()
        if where == "output":
            self._hook = module.register_forward_hook(self._on_output, with_kwargs=True)
        else:
            self._hook = module.register_forward_pre_hook(self._on_input, with_kwargs=True)

    def close(self) -> None:
        """Take the hook off; a second call does nothing."""
        self._hook.remove()
        _taps.pop(self._number, None)

    def _on_output(self, module: torch.nn.Module, _args: Any, _named: Any, output: Any) -> None:
        if torch.compiler.is_compiling() or not self._shown(module, output):
            self._pass_on(module, output)

    def _on_input(self, module: torch.nn.Module, args: Any, named: dict[str, Any]) -> None:
        if torch.compiler.is_compiling() or not args or not self._shown(module, args[0]):
            self._pass_on(module, (*args, *named.values()))

    def _shown(self, module: torch.nn.Module, value: Any) -> bool:
        """Whether that was the usual case, a plain tensor in a forward, and has been glanced at.

        What follows otherwise is the same at length. Every line here runs on cold caches.
        """
        if (
            self._glance is None
            or type(value) is not torch.Tensor
            or not module.training
            or not torch.is_grad_enabled()
            or _paused
            or _graph_task() != -1
            or is_functorch_wrapped_tensor(value)
            or not value.is_floating_point()
        ):
            return False
        self._seen_before = True
        return self._glance(value)

    def _pass_on(self, module: torch.nn.Module, found: Any) -> None:
        if not module.training:
            return
        if not torch.is_grad_enabled():
            if not torch.compiler.is_compiling() and not _in_backward():
                self._seen_before = False
            return
        value = first_tensor(found)
        if value is None:
            return
        if torch.compiler.is_compiling():
            torch.ops.foreshock.see(value.detach(), self._token, self._number)
        else:
            self.show(value)

    def show(self, value: torch.Tensor) -> None:
        """Hand on what is seen in a training forward, if it is to be counted."""
        if self._counts() and _has_values(value):
            if self._glance is not None and type(value) is torch.Tensor and self._glance(value):
                return
            with apart(value.device.type):
                self._see(value.detach())

    def _counts(self) -> bool:
        """Whether the forward that is running now is to be counted.

        Of a checkpointed one either the first pass or the one in the backward: the former where
        it knows gradients (non-reentrant), the latter where it does not (reentrant). Hooks on
        saved tensors tell of the former kind, but are hidden by those that a forward puts on
        top of them (checkpoints in checkpoints, offloading): there the first pass tells.
        """
        if _paused:
            return False
        if not _in_backward():
            self._seen_before = True
            return True
        hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)  # pyright: ignore[reportAttributeAccessIssue] - built in C
        if hooks is None:
            return True
        recomputed = "_recomputation_hook" in getattr(hooks[0], "__qualname__", "")
        return not (recomputed or self._seen_before)


def first_tensor(found: Any) -> torch.Tensor | None:
    """The first tensor of numbers, not of indices, in what a module takes or gives.

    That is the tensor itself, or one in a tuple, a list or a dictionary, as which output
    objects pass; None if there is none.
    """
    if isinstance(found, torch.Tensor):
        found = (found,)
    elif isinstance(found, dict):
        found = tuple(found.values())
    if isinstance(found, tuple | list):
        for one in found:
            if isinstance(one, torch.Tensor) and (one.is_floating_point() or one.is_complex()):
                return one
    return None


@contextmanager
def apart(device_type: str) -> Iterator[None]:
    """Compute without autograd, autocast, and modes that watch the program's operators.

    Autocast would take what is measured at the model's precision; selective checkpointing counts
    operators, and ours must not be among them.
    """
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        if torch.is_autocast_enabled(device_type):
            stack.enter_context(torch.autocast(device_type, enabled=False))
        if torch._C._len_torch_dispatch_stack():
            stack.enter_context(_disable_current_modes())
        yield


def _in_backward() -> bool:
    return _graph_task() != -1


def _has_values(value: torch.Tensor) -> bool:
    """Whether it can be measured: not within a function transform, and not only a shape."""
    return not (is_functorch_wrapped_tensor(value) or isinstance(value, FakeTensor))


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
    is removed still is. Nor do models of one class that share it: where one of them is compiled
    and not watched, the other is not seen reliably, unless
    `torch._dynamo.config.skip_nnmodule_hook_guards` is False.
    """
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is not None:
        dynamo.reset()


_made: Any = None


def _operator() -> None:
    """Make the operator when it is first needed: importing this module changes nothing."""
    global _made  # noqa: PLW0603 - torch knows one operator of a name
    if _made is not None:
        return

    @torch.library.custom_op("foreshock::see", mutates_args=("token",))
    def see(value: torch.Tensor, token: torch.Tensor, number: int) -> None:
        tap = _taps.get(number)
        if tap is not None:
            tap.show(value)

    @see.register_fake
    def _(value: torch.Tensor, token: torch.Tensor, number: int) -> None:
        pass

    _made = see
