"""The state tensors that an optimizer keeps for each parameter, found without a search."""

import operator
from collections.abc import Sequence
from typing import Any

import torch

Tensors = list[torch.Tensor | None]


class StateTensors:
    """Finds the tensors of one kind for all parameters; what does not change is kept.

    Looking up a parameter hashes it, in Python, and a shape is made anew at each look: over
    hundreds of parameters that costs more than to read the sample.

    Args:
        optimizer: whose state.
        parameters: `[P]`.
    """

    def __init__(self, optimizer: Any, parameters: Sequence[torch.Tensor]) -> None:
        self._optimizer = optimizer
        self._parameters = parameters
        self._states: list[Any] = []
        self._of_each: list[dict[str, Any]] = [{} for _ in parameters]
        self._found: dict[tuple[str, ...], tuple[list[Any], Tensors]] = {}

    def first_of(self, keys: Sequence[str]) -> Tensors:
        """The tensor under the first of these keys that each parameter has, `[P]`, or None.

        Only tensors of the parameter's shape count.
        """
        raw = [
            next((state[key] for key in keys if state.get(key) is not None), None)
            for state in self._present()
        ]
        known = self._found.get(tuple(keys))
        if known is None or not _same(known[0], raw):
            known = (raw, [_shaped(*pair) for pair in zip(raw, self._parameters, strict=True)])
            self._found[tuple(keys)] = known
        return known[1]

    def num_updates(self) -> Any:
        """Updates that the optimizer has counted for its first parameter: a tensor or a number."""
        for state in self._present():
            if "step" in state:
                return state["step"]
        return 0

    def _present(self) -> list[dict[str, Any]]:
        """The state of each parameter, `[P]`, empty where it has none yet."""
        state = self._optimizer.state
        now = [*state, *state.values()]
        if not _same(self._states, now):
            self._states = now
            self._of_each = [state.get(one, {}) for one in self._parameters]
        return self._of_each


def _same(known: Sequence[Any], now: Sequence[Any]) -> bool:
    """Whether both hold the very same objects."""
    return len(known) == len(now) and all(map(operator.is_, known, now))


def _shaped(found: Any, parameter: torch.Tensor) -> torch.Tensor | None:
    return found if isinstance(found, torch.Tensor) and found.shape == parameter.shape else None
