"""Copies of many tensors in place, and whether they can be made."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch


def copy_all(targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> None:
    """Copy each source into its target, in place, in as few calls as it takes.

    Returns when the copies are whole: on CUDA it waits for the device once.
    """
    if not targets:
        return
    devices = {one.device for one in (*targets, *sources) if one.is_cuda}
    with torch.no_grad():
        detached = [one.detach() for one in targets]
        torch._foreach_copy_(detached, list(sources), non_blocking=bool(devices))
    for device in devices:
        torch.cuda.synchronize(device)


def fits(live: torch.Tensor, value: Any) -> bool:
    """Whether a value can be copied into a live tensor and is then the same."""
    return (
        isinstance(value, torch.Tensor)
        and type(live) in (torch.Tensor, torch.nn.Parameter)
        and live.layout == torch.strided
        and live.shape == value.shape
        and live.dtype == value.dtype
        and not live.is_meta
    )


def same_memory(one: Any, other: torch.Tensor) -> bool:
    """Whether two are one plain tensor."""
    return (
        isinstance(one, torch.Tensor)
        and type(one) in (torch.Tensor, torch.nn.Parameter)
        and type(other) in (torch.Tensor, torch.nn.Parameter)
        and one.data_ptr() == other.data_ptr()
        and one.stride() == other.stride()
        and one.shape == other.shape
        and one.dtype == other.dtype
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
