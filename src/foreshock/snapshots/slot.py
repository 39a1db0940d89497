"""Memory for one state, taken once and filled again and again."""

import json
from typing import Any

import torch

from foreshock.ranks.placement import layout_of, num_copies, own_data, spread
from foreshock.snapshots.codec import Tensors, decode, encode
from foreshock.snapshots.copying import copy_all


class Slot:
    """Holds a copy of a state tree: tensors in buffers of its own, plain values beside.

    The first state takes the buffers, on the CPU, pinned where the tensor is on a CUDA
    device; later ones are copied into them. A buffer that does not fit any more, because a
    tensor changed its shape or type, is taken anew; the others stay. Of a DTensor it holds what
    this rank does.
    """

    def __init__(self) -> None:
        self._buffers: list[torch.Tensor] = []
        self._layouts: list[Any] = []
        self._names: list[str] = []
        self._structure = ""

    def fill(self, tree: Any) -> None:
        """Copy a state tree in; tensors that share their memory are held once.

        Raises:
            SnapshotError: it holds what a snapshot cannot; the slot's content is lost.
        """
        structure, tensors = encode(tree)
        self._structure = json.dumps(structure)
        self._names = list(tensors)
        self._layouts = [layout_of(one) for one in tensors.values()]
        sources = [own_data(one) for one in tensors.values()]
        del self._buffers[len(sources) :]
        for place, source in enumerate(sources):
            if place == len(self._buffers):
                self._buffers.append(_buffer(source))
            elif not _fits(self._buffers[place], source):
                self._buffers[place] = _buffer(source)
        copy_all(self._buffers, sources)

    def tree(self) -> Any:
        """The state tree; its tensors are the slot's own, to be read and not to be kept."""
        held = [spread(*one) for one in zip(self._buffers, self._layouts, strict=True)]
        tensors: Tensors = dict(zip(self._names, held, strict=True))
        return decode(json.loads(self._structure), tensors)

    @property
    def size_bytes(self) -> int:
        """How much its buffers hold."""
        return sum(one.nbytes for one in self._buffers)

    def share_bytes(self, world: int) -> int:
        """The same with each tensor divided by how many of `world` ranks hold that part."""
        held = [spread(*one) for one in zip(self._buffers, self._layouts, strict=True)]
        pairs = zip(self._buffers, held, strict=True)
        return sum(buffer.nbytes // num_copies(one, world) for buffer, one in pairs)


def _fits(buffer: torch.Tensor, source: torch.Tensor) -> bool:
    pinned = source.is_cuda
    return (
        buffer.shape == source.shape
        and buffer.dtype == source.dtype
        and (not pinned or buffer.is_pinned())
    )


def _buffer(source: torch.Tensor) -> torch.Tensor:
    pinned = source.is_cuda
    return torch.empty(source.shape, dtype=source.dtype, device="cpu", pin_memory=pinned)
