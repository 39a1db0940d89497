"""Which part of a tensor a rank holds, where it lies in the whole, and how many ranks hold it."""

import dataclasses
import sys
from typing import Any, NamedTuple

import torch


class LocalPart(NamedTuple):
    """What one rank holds of a tensor.

    Attributes:
        tensor: the local data, detached; the tensor itself where it is not distributed.
        offset: where it begins in the whole, an index a dimension; the length of the
            dimension where the part is empty.
        shape: shape of the whole.
        weight: 1 / the number of ranks that hold the same part. Partial sums (of squares,
            of digests) times their weight add up, over the ranks, to those of the whole.
        partial: the local data are summands and not elements: the whole is their sum over
            ranks, so that no norm, maximum or digest of the whole follows from the parts.
    """

    tensor: torch.Tensor
    offset: tuple[int, ...]
    shape: tuple[int, ...]
    weight: float
    partial: bool


def local_part(tensor: torch.Tensor, world: int = 1) -> LocalPart:
    """The part of `tensor` that this rank holds; waits for no device, starts no collective.

    Handles DTensors with any mixture of Shard (of any dimension, uneven and empty), Replicate
    and Partial, and the strided shards of FSDP2 over tensor parallelism. A plain tensor is
    taken as held by all `world` ranks; where each rank has its own (experts, say), give 1.

    Args:
        tensor: plain or distributed.
        world: ranks of the group that a reduction runs over.
    """
    weight = 1.0 / num_copies(tensor, world)
    if not is_distributed(tensor):
        plain = tensor.detach()
        return LocalPart(plain, (0,) * plain.ndim, tuple(plain.shape), weight, False)
    from torch.distributed.tensor._utils import (  # noqa: PLC0415 - half a second, seldom needed
        compute_local_shape_and_global_offset,
    )

    spread: Any = tensor.detach()
    _, offset = compute_local_shape_and_global_offset(
        spread.shape, spread.device_mesh, spread.placements
    )
    partial = any(one.is_partial() for one in spread.placements)
    return LocalPart(spread.to_local(), tuple(offset), tuple(spread.shape), weight, partial)


def num_copies(tensor: torch.Tensor, world: int) -> int:
    """How many of `world` ranks hold the same local data.

    Mesh dimensions that replicate count, and so do the ranks beyond the tensor's mesh (data
    parallelism around tensor parallelism). The summands of a Partial dimension are no copies.

    >>> num_copies(torch.zeros(3), world=4)
    4
    """
    if not is_distributed(tensor):
        return world
    spread: Any = tensor
    apart = 1
    for size, placement in zip(spread.device_mesh.shape, spread.placements, strict=True):
        apart *= 1 if placement.is_replicate() else size
    return max(1, world // apart)


def laid_out_like(tensor: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """A gradient laid out as its parameter is; a collective where it was not.

    Sequence parallelism leaves gradients of replicated norms as summands (Partial), of which
    no norm of the whole follows. What is no DTensor is given back.
    """
    if not (is_distributed(tensor) and is_distributed(other)):
        return tensor
    spread: Any = tensor
    wanted: Any = other
    if spread.placements == wanted.placements:
        return tensor
    return spread.detach().redistribute(placements=wanted.placements)


def own_data(tensor: torch.Tensor) -> torch.Tensor:
    """The local data of a DTensor, or the tensor itself; detached, nothing is copied."""
    plain: Any = tensor.detach()
    return plain.to_local() if is_distributed(tensor) else plain


def layout_of(tensor: torch.Tensor) -> Any:
    """How a DTensor is laid out over its mesh, for `spread`; None for a plain tensor."""
    return tensor._spec if is_distributed(tensor) else None  # pyright: ignore[reportAttributeAccessIssue]


def spread(data: torch.Tensor, layout: Any) -> torch.Tensor:
    """A tensor of this local data, laid out as another is; plain if that is None.

    The data stay where they are, on the host too where the mesh is one of accelerators: what
    is held there is copied from, not computed with.

    Args:
        data: as large as this rank's part of what has the layout; of any dtype.
        layout: of `layout_of`.
    """
    if layout is None:
        return data
    from torch.distributed.tensor import DTensor  # noqa: PLC0415 - half a second, seldom needed

    meta = layout.tensor_meta._replace(dtype=data.dtype)
    return DTensor(data, dataclasses.replace(layout, tensor_meta=meta), requires_grad=False)  # pyright: ignore[reportCallIssue]


def own_box(whole: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The part of a whole tensor that this rank holds of another of its shape; a view."""
    part = local_part(like)
    for axis, (start, length) in enumerate(zip(part.offset, part.tensor.shape, strict=True)):
        whole = whole.narrow(axis, min(start, whole.shape[axis]), length)
    return whole


def is_distributed(tensor: torch.Tensor) -> bool:
    """Whether it is a DTensor; does not import them, since none exists before that."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)
