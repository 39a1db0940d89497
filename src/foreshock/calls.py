"""Calls of torch answered otherwise, and blocks listened to, while a context holds."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, final

from torch import nn
from torch.overrides import TorchFunctionMode

Answer = Callable[[tuple[Any, ...], dict[str, Any]], Any]
"""What answers a call: from its arguments by place, and a copy of those by name."""


@final
class Answered(TorchFunctionMode):
    """While it is entered, calls of one function of torch are answered by another.

    Args:
        function: as torch hands it to `__torch_function__`.
        answer: may call the function itself.
    """

    def __init__(self, function: Any, answer: Answer) -> None:
        super().__init__()
        self._function = function
        self._answer = answer

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        given = dict(kwargs or {})
        return self._answer(args, given) if func is self._function else func(*args, **given)


@final
class InTraining:
    """A loss whose training passes run in a context; others, as those of a probe, do not.

    Args:
        loss: `(model, batch) -> loss`.
        context: makes the context of a pass, from the model.
    """

    def __init__(
        self,
        loss: Callable[[Any, Any], Any],
        context: Callable[[nn.Module], AbstractContextManager[Any]],
    ) -> None:
        self._loss = loss
        self._context = context

    def __call__(self, model: nn.Module, batch: Any) -> Any:
        if not model.training:
            return self._loss(model, batch)
        with self._context(model):
            return self._loss(model, batch)


@contextmanager
def listened(
    model: nn.Module, paths: Sequence[str], hook: Callable[[nn.Module, Any, Any], Any]
) -> Iterator[None]:
    """Have a forward hook on these modules, and take it off at the end."""
    hooks = [model.get_submodule(path).register_forward_hook(hook) for path in paths]
    try:
        yield
    finally:
        for one in hooks:
            one.remove()


def leading(args: tuple[Any, ...], given: dict[str, Any], *names: str) -> list[Any]:
    """Arguments by place, with the named ones behind them in this order, taken out of `given`.

    >>> given = {"key": 2, "scale": 3}
    >>> leading((1,), given, "query", "key"), given
    ([1, 2], {'scale': 3})
    """
    return [*args, *(given.pop(name) for name in names if name in given)]
