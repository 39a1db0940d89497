"""What stands in the place of a framework's own while a run is guarded."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any


def stand_in(undo: ExitStack, owner: Any, name: str, value: Any) -> None:
    """Put a value in the place of an object's attribute or method.

    Args:
        undo: puts back, when it is closed, what the object itself had.
        owner: the object.
        name: of the attribute.
        value: what stands there until then.
    """
    there = vars(owner).get(name)

    def put_back() -> None:
        if there is None:
            delattr(owner, name)
        else:
            setattr(owner, name, there)

    setattr(owner, name, value)
    undo.callback(put_back)


def drawn(take: Callable[[], Any]) -> Iterator[Any]:
    """What a function gives, until it raises StopIteration."""
    while True:
        try:
            one = take()
        except StopIteration:
            return
        yield one
