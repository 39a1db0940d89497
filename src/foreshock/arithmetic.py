"""A program's passes in another arithmetic, with nothing of the program changed.

While a `Precise` is in force, functions of torch that would compute below a precision compute in
it: tensors given to them are cast up, casts down are left out, autocast is off, and so is what
emulates rounding by a cast there and back. What it touched is counted, so that a comparison in
which nothing was changed is known as one.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Final, final

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

_BELOW: Final[Mapping[torch.dtype, frozenset[torch.dtype]]] = {
    torch.float32: frozenset({torch.float16, torch.bfloat16}),
    torch.float64: frozenset({torch.float16, torch.bfloat16, torch.float32}),
}
_CASTS: Final = {
    torch.Tensor.half: torch.float16,
    torch.Tensor.bfloat16: torch.bfloat16,
    torch.Tensor.float: torch.float32,
}
_ARITHMETIC: Final = frozenset(
    f"__{side}{name}__"
    for side in ("", "r")
    for name in ("add", "sub", "mul", "matmul", "truediv", "div", "pow", "mod", "floordiv")
) | {"__neg__", "__abs__", "__getitem__"}
_OF_THE_TENSOR_ITSELF: Final = frozenset(
    {
        "register_hook",
        "register_post_accumulate_grad_hook",
        "retain_grad",
        "data_ptr",
        "untyped_storage",
        "storage",
        "is_set_to",
        "view_as_complex",
        "view",  # to another type of the same bits, too
    }
)


@final
class Precise(TorchFunctionMode):
    """Lets functions of torch compute at least in this precision; a context manager.

    Args:
        dtype: `torch.float32` or `torch.float64`.
        active: whether it begins so; switched by `switched_on` and `switched_off`.

    Attributes:
        num_touched: calls that computed in another precision for it.
        reached: whether it met an output of the model that a loss can be made of.
    """

    def __init__(self, dtype: torch.dtype, *, active: bool = True) -> None:
        super().__init__()
        self.dtype = dtype
        self.active = active
        self.num_touched = 0
        self.reached = False
        self._below = _BELOW[dtype]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not self.active:
            return func(*args, **kwargs)
        if func is torch.Tensor.backward and kwargs.get("inputs") is None:
            return self._backward(args[0], kwargs)
        if func in _CASTS:
            wanted = _CASTS[func] if args[0].is_floating_point() else None
            return func(*args, **kwargs) if wanted not in self._below else self._cast(args[0])
        name = getattr(func, "__name__", "")
        if name in ("to", "type", "type_as") and args and isinstance(args[0], torch.Tensor):
            return self._to(func, name, args, kwargs)
        if not self._computes(func, name, kwargs):
            return func(*args, **kwargs)
        kwargs = {key: self._up(one) for key, one in kwargs.items()}
        if kwargs.get("dtype") in self._below:
            self.num_touched += 1
            kwargs["dtype"] = self.dtype
        return func(*(self._up(one) for one in args), **kwargs)

    def up(self, tree: Any) -> Any:
        """The same, with its floating-point tensors cast up."""
        return self._up(tree)

    def _backward(self, loss: torch.Tensor, kwargs: Mapping[str, Any]) -> None:
        """The backward pass with the mode in force, so that hooks on gradients meet it too.

        torch takes the mode off while one of its functions runs that a mode has seen; the
        engine itself is none.
        """
        given = kwargs.get("gradient")
        engine: Any = torch.autograd.Variable._execution_engine
        create_graph = bool(kwargs.get("create_graph"))
        retain_graph = kwargs.get("retain_graph")
        with self:
            engine.run_backward(
                (loss,),
                (torch.ones_like(loss) if given is None else given,),
                create_graph if retain_graph is None else retain_graph,
                create_graph,
                (),
                allow_unreachable=True,
                accumulate_grad=True,
            )

    def _computes(self, func: Any, name: str, kwargs: Mapping[str, Any]) -> bool:
        """Whether a function's arguments may be replaced by copies."""
        if name.startswith("__"):
            return name in _ARITHMETIC
        in_place = name.endswith("_") or kwargs.get("out") is not None
        module = getattr(func, "__module__", None) or ""
        return not (
            in_place or name in _OF_THE_TENSOR_ITSELF or module.startswith("torch.autograd")
        )

    def _cast(self, tensor: torch.Tensor) -> torch.Tensor:
        self.num_touched += 1
        return tensor.to(self.dtype) if tensor.dtype in self._below else tensor

    def _to(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        given = [*args[1:], *kwargs.values()]
        told = [one for one in given if isinstance(one, torch.dtype)]
        told += [one.dtype for one in given if isinstance(one, torch.Tensor)]
        if not any(one in self._below for one in told) or not args[0].is_floating_point():
            return func(*args, **kwargs)
        self.num_touched += 1
        if name == "type_as":
            return args[0].to(self.dtype)
        args = [args[0], *(self._instead(one) for one in args[1:])]
        return func(*args, **{key: self._instead(one) for key, one in kwargs.items()})

    def _instead(self, given: Any) -> Any:
        if isinstance(given, torch.dtype) and given in self._below:
            return self.dtype
        if isinstance(given, torch.Tensor) and given.dtype in self._below:
            return given.to(self.dtype)
        return given

    def _up(self, given: Any) -> Any:
        if isinstance(given, torch.Tensor):
            if given.dtype not in self._below:
                return given
            self.num_touched += 1
            return given.to(self.dtype)
        if type(given) in (list, tuple):
            return type(given)(self._up(one) for one in given)
        if type(given) is dict:
            return {key: self._up(one) for key, one in given.items()}
        return given


@contextmanager
def forward_in(mode: Precise) -> Iterator[None]:
    """Every pass in the mode's precision, forward and backward; autocast is off."""
    with without_autocast(mode), eager(), mode:
        yield


@contextmanager
def parts_in(mode: Precise, modules: list[nn.Module]) -> Iterator[None]:
    """What these modules compute in the mode's precision; what they give has its own type."""
    depth = 0

    def enter(module: nn.Module, args: Any, kwargs: Any) -> None:
        nonlocal depth
        depth += 1
        mode.active = True

    def leave(module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        nonlocal depth
        depth -= 1
        mode.active = depth > 0
        own = next((one.dtype for one in _tensors([args, kwargs])), None)
        return output if mode.active or own is None else _as(output, own)

    mode.active = False
    with ExitStack() as stack:
        stack.enter_context(eager())
        for module in modules:
            _off_inside(module, stack)
            hook = module.register_forward_pre_hook(enter, with_kwargs=True)
            stack.callback(hook.remove)
            # The first to see what comes out: what measures it sees it in its own type.
            after = module.register_forward_hook(leave, with_kwargs=True, prepend=True)
            stack.callback(after.remove)
        stack.enter_context(mode)
        yield


@contextmanager
def loss_in(mode: Precise, model: nn.Module) -> Iterator[None]:
    """What is made of the model's output in the mode's precision, the model as it is."""

    def enter(module: nn.Module, args: Any) -> None:
        mode.active = False

    def leave(module: nn.Module, args: Any, output: Any) -> Any:
        mode.active = True
        mode.reached = mode.reached or any(one.ndim > 1 for one in _tensors(output))
        return mode.up(output)

    before = model.register_forward_pre_hook(enter, prepend=True)
    after = model.register_forward_hook(leave)  # the last: what measures it sees its own type
    try:
        with eager(), mode:
            yield
    finally:
        before.remove()
        after.remove()


@contextmanager
def without_autocast(mode: Precise) -> Iterator[None]:
    """Autocast off, whoever asks for it inside; each such request counts as touched."""
    kind: Any = torch.amp.autocast_mode.autocast
    enter, leave = kind.__enter__, kind.__exit__

    def entered(one: Any) -> Any:
        mode.num_touched += bool(getattr(one, "_enabled", False))
        return one

    def left(one: Any, *_: Any) -> bool:
        return False

    with ExitStack() as stack:
        for device in _devices():
            stack.enter_context(torch.autocast(device, enabled=False))
        kind.__enter__, kind.__exit__ = entered, left
        try:
            yield
        finally:
            kind.__enter__, kind.__exit__ = enter, leave


def _off_inside(module: nn.Module, stack: ExitStack) -> None:
    """Autocast off while a module computes."""
    open_ones: list[ExitStack] = []

    def enter(one: nn.Module, args: Any) -> None:
        inner = ExitStack()
        for device in _devices():
            inner.enter_context(torch.autocast(device, enabled=False))
        open_ones.append(inner)

    def leave(one: nn.Module, args: Any, output: Any) -> None:
        if open_ones:
            open_ones.pop().close()

    def close() -> None:
        while open_ones:
            open_ones.pop().close()

    stack.callback(close)
    stack.callback(module.register_forward_pre_hook(enter).remove)
    stack.callback(module.register_forward_hook(leave, always_call=True).remove)


@contextmanager
def eager() -> Iterator[None]:
    """Nothing compiled, while it lasts: compiled modules run as they are written."""
    with torch.compiler.set_stance("force_eager"):
        yield


@contextmanager
def plain_kernels() -> Iterator[None]:
    """No compiled code, and attention by matrix products and a softmax, not by a fused kernel."""
    with eager(), sdpa_kernel(SDPBackend.MATH):
        yield


def _devices() -> list[str]:
    return ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def _tensors(tree: Any) -> Iterator[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        if tree.is_floating_point():
            yield tree
    elif isinstance(tree, list | tuple):
        for one in tree:
            yield from _tensors(one)
    elif isinstance(tree, Mapping):
        for one in tree.values():
            yield from _tensors(one)


def _as(tree: Any, dtype: torch.dtype) -> Any:
    if isinstance(tree, torch.Tensor):
        return tree.to(dtype) if tree.is_floating_point() else tree
    if type(tree) in (list, tuple):
        return type(tree)(_as(one, dtype) for one in tree)
    return tree
