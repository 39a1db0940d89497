"""How the tensors of a snapshot are to be laid out: like those that are live."""

import functools
from collections.abc import Mapping

import torch

from foreshock.snapshots.parts import Part
from foreshock.snapshots.sharded_state import keys_of, sharded_state
from foreshock.snapshots.stores import Like


def like_live(parts: Mapping[str, Part]) -> Like:
    """Which live tensor one of a snapshot's `training` is laid out like.

    Args:
        parts: those that all ranks hold together, by name; captured once, when first asked.
    """

    @functools.cache
    def live() -> dict[str, torch.Tensor]:
        return sharded_state({name: part.capture() for name, part in parts.items()}).tensors

    def like(name: str, shape: tuple[int, ...]) -> torch.Tensor | None:
        top, *path = keys_of(name)
        if top != "training":
            return None
        found = live().get(name.removeprefix("/training"))
        if found is not None and tuple(found.shape) == shape:
            return found
        return parts[path[0]].like(path[1:], shape) if path[0] in parts else None

    return like
