"""Small facts that every rank tells every other: at set-up, or when something was found."""

import json
from typing import Any

import torch
import torch.distributed as dist

Group = dist.ProcessGroup | None


def num_ranks(group: Group) -> int:
    """Ranks of the group; 1 where nothing is distributed."""
    return dist.get_world_size(group) if is_running() else 1


def own_index(group: Group) -> int:
    """This rank's place in the group."""
    return dist.get_rank(group) if is_running() else 0


def global_ranks(group: Group) -> tuple[int, ...]:
    """Global rank of each place in the group."""
    if not is_running():
        return (0,)
    return tuple(dist.get_process_group_ranks(group or dist.group.WORLD))


def is_running() -> bool:
    """Whether a process group exists."""
    return dist.is_available() and dist.is_initialized()


def exchange(fact: Any, device: torch.device, group: Group) -> list[Any]:
    """What each rank said, in the order of the group. Travels as JSON: nothing is unpickled.

    Two collectives and one wait for the host, so not for every step.

    Args:
        fact: what JSON can hold.
        device: where the group's backend wants its tensors.
        group: the ranks that take part; all of them must call.
    """
    if num_ranks(group) == 1:
        return [json.loads(json.dumps(fact))]
    data = torch.tensor(list(json.dumps(fact).encode()), dtype=torch.uint8, device=device)
    sizes = gather(torch.tensor([data.numel()], device=device), group)[:, 0].tolist()
    padded = torch.zeros(max(sizes), dtype=torch.uint8, device=device)
    padded[: data.numel()] = data
    rows = gather(padded, group).cpu().numpy()
    return [json.loads(row[:size].tobytes()) for row, size in zip(rows, sizes, strict=True)]


def gather(tensor: torch.Tensor, group: Group) -> torch.Tensor:
    """The tensor of each rank, `[W, ...]`; all must have one shape and dtype."""
    if num_ranks(group) == 1:
        return tensor.detach()[None]
    rows = [torch.empty_like(tensor) for _ in range(num_ranks(group))]
    dist.all_gather(rows, tensor.detach().contiguous(), group=group)
    return torch.stack(rows)
