"""Where tensors lie, for the fused passes, and whether anything has written to the weights."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from foreshock.fused import passes
from foreshock.norms import local
from foreshock.sampling.places import ROW, Place

_PLAIN = (torch.Tensor, torch.nn.Parameter)
# Called for each of hundreds of tensors a step.
_ADDRESS, _CONTIGUOUS = torch.Tensor.data_ptr, torch.Tensor.is_contiguous
_BYTES: Any = torch.Tensor.nbytes.__get__  # pyright: ignore[reportAttributeAccessIssue] - built in C


class Addresses:
    """Knows the parameters, and looks at tensors of their shapes.

    Each look at a tensor is a few cache misses, hundreds of them a step: what need not be looked
    at again is kept.

    Args:
        parameters: `[P]`.
        places: where the sample of each lies, `[P]`.
    """

    def __init__(self, parameters: Sequence[torch.Tensor], places: Sequence[Place]) -> None:
        self._parameters, self._places = parameters, places
        self.plain = [type(one) in _PLAIN and not one.is_complex() for one in parameters]
        """Whether each is a usual tensor, its own local part, `[P]`."""
        self._all_plain = all(self.plain) and all(place.size for place in places)
        begins = np.cumsum([0, *(place.num_rows for place in places[:-1])]) * ROW
        self.table = np.array(
            [
                [place.start, place.count, place.length, place.stride, begin]
                for place, begin in zip(places, begins, strict=True)
            ],
            dtype=np.int64,
        )
        """The places as the fused passes want them, `[P, 5]`."""
        self._known: dict[str, tuple[list[Any], NDArray[np.int64]]] = {}

    def of(self, name: str, tensors: Sequence[torch.Tensor | None]) -> NDArray[np.int64] | None:
        """Addresses of the first elements `[P]`, 0 for a tensor that is not there.

        None if the fused passes cannot visit all of them: they want fp32 on a CPU, and
        contiguous memory. They are good as long as the tensors live and stay as they are.
        """
        looks = _looks(tensors) if self._all_plain else None
        known = self._known.get(name)
        if known is not None and looks is not None and known[0] == looks:
            return known[1]
        self._known.pop(name, None)
        found: list[int] = []
        for one, plain, place in zip(tensors, self.plain, self._places, strict=True):
            if one is None or not place.size:
                found.append(0)
                continue
            if not plain and (one.is_sparse or one.is_conj()):
                return None  # `local` would make a copy, which is gone before it is visited
            part = one if plain else local(one)
            at = passes.address(part)
            if at is None or part.dtype is not torch.float32 or part.numel() != place.own:
                return None
            found.append(at)
        addresses = np.array(found, dtype=np.int64)
        if looks is not None:
            self._known[name] = (looks, addresses)
        return addresses

    def versions(self) -> tuple[list[int], list[int]]:
        """Writes to each parameter that torch has counted, and where it lies."""
        if self._all_plain:
            one_each = [one._version for one in self._parameters]
            return one_each, [one.data_ptr() for one in self._parameters]
        # An operation on a DTensor is counted by the DTensor, one on its part by the part.
        parts = [local(one) for one in self._parameters]
        counts = [one._version for one in (*self._parameters, *parts)]
        return counts, [part.data_ptr() for part in parts]


def _looks(tensors: Sequence[torch.Tensor | None]) -> list[Any] | None:
    """What tells whether tensors of known shapes still can be visited, and where; None if not.

    The address alone does not: memory that was given back is handed out again, to tensors of
    other types and other strides.
    """
    there = [one for one in tensors if one is not None]
    try:
        found: list[Any] = [*map(_ADDRESS, there), *map(_BYTES, there), *map(_CONTIGUOUS, there)]
    except RuntimeError:  # of sparse ones, and of some subclasses
        return None
    found += map(type, there)
    if len(there) < len(tensors):
        found += [one is None for one in tensors]
    return found
