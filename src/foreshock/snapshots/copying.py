"""Copies of many tensors in place, and whether they can be made."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from foreshock.ranks.placement import is_distributed, layout_of, own_data

_PLAIN = (torch.Tensor, torch.nn.Parameter)


def copy_all(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    """Copy each source into its target, in place, in as few calls as it takes.

    Of a DTensor each rank copies what it holds into what it holds. Returns when the copies are
    whole: on CUDA it waits for the device once.
    """
    if not targets:
        return
    into, held = [own_data(one) for one in targets], [own_data(one) for one in sources]
    devices = {one.device for one in (*into, *held) if one.is_cuda}
    with torch.no_grad():
        torch._foreach_copy_(into, held, non_blocking=bool(devices))
    for device in devices:
        torch.cuda.synchronize(device)


def fits(live: torch.Tensor, value: Any) -> bool:
    """Whether a value can be copied into a live tensor and is then the same."""
    if not isinstance(value, torch.Tensor) or live.is_meta:
        return False
    if is_distributed(live) or is_distributed(value):
        return _laid_out_alike(live, value)
    return (
        type(live) in _PLAIN
        and live.layout == torch.strided
        and live.shape == value.shape
        and live.dtype == value.dtype
    )


def same_memory(one: Any, other: torch.Tensor) -> bool:
    """Whether two are one tensor."""
    if not isinstance(one, torch.Tensor):
        return False
    if is_distributed(one) or is_distributed(other):
        if not _laid_out_alike(one, other):
            return False
        one, other = own_data(one), own_data(other)
    return (
        type(one) in _PLAIN
        and type(other) in _PLAIN
        and one.data_ptr() == other.data_ptr()
        and one.stride() == other.stride()
        and one.shape == other.shape
        and one.dtype == other.dtype
    )


def _laid_out_alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether both are DTensors of one shape and dtype, of which each rank holds one part."""
    if not (is_distributed(one) and is_distributed(other)):
        return False
    first, second = layout_of(one), layout_of(other)
    return (
        one.shape == other.shape
        and one.dtype == other.dtype
        and (first.mesh, first.placements) == (second.mesh, second.placements)
        and own_data(one).shape == own_data(other).shape
    )


def alike(live: Mapping[str, Any], saved: Mapping[str, Any]) -> bool:
    """Whether what was saved has the names of what is live, and tensors that fit."""
    if live.keys() != saved.keys():
        return False
    for name, value in saved.items():
        if isinstance(value, torch.Tensor):
            if not isinstance(live[name], torch.Tensor) or not fits(live[name], value):
                return False
        elif name != "params" and (
            isinstance(live[name], torch.Tensor)
            or not isinstance(value, bool | int | float | str | tuple | list | None)
        ):
            return False
    return True
