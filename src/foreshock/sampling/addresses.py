"""Where tensors lie, for the fused passes, and whether anything has written to the weights."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from foreshock.norms import local
from foreshock.sampling.places import ROW, Place

_PLAIN = (torch.Tensor, torch.nn.Parameter)


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
        self._known: dict[str, tuple[list[int], NDArray[np.int64]]] = {}

    def of(self, name: str, tensors: Sequence[torch.Tensor | None]) -> NDArray[np.int64] | None:
        """Addresses of the first elements `[P]`, 0 for a tensor that is not there.

        None if the fused passes cannot visit all of them: they want fp32 on a CPU, and
        contiguous memory. What is known of a name is kept as long as its addresses stay.
        """
        if self._all_plain:
            found = [0 if one is None or one.is_sparse else one.data_ptr() for one in tensors]
            known = self._known.get(name)
            if known is not None and known[0] == found:
                return known[1]
        found: list[int] = []
        for one, plain, place in zip(tensors, self.plain, self._places, strict=True):
            if one is None or not place.size:
                found.append(0)
                continue
            part = one if plain else local(one)
            if not _can_be_visited(part) or part.numel() != place.own:
                self._known.pop(name, None)
                return None
            found.append(part.data_ptr())
        self._known[name] = (found, np.array(found, dtype=np.int64))
        return self._known[name][1]

    def versions(self) -> tuple[list[int], list[int]]:
        """Writes to each parameter that torch has counted, and where it lies."""
        if self._all_plain:
            one_each = [one._version for one in self._parameters]
            return one_each, [one.data_ptr() for one in self._parameters]
        # An operation on a DTensor is counted by the DTensor, one on its part by the part.
        parts = [local(one) for one in self._parameters]
        counts = [one._version for one in (*self._parameters, *parts)]
        return counts, [part.data_ptr() for part in parts]


def _can_be_visited(part: torch.Tensor) -> bool:
    usual = part.is_cpu and part.dtype == torch.float32 and part.layout is torch.strided
    return usual and part.is_contiguous() and part.data_ptr() != 0
