"""How far the replicas of a tensor lie apart, as numbers."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from foreshock.ranks.exchange import Group, gather
from foreshock.ranks.placement import local_part
from foreshock.ranks.replicas import Mismatch, Replicas

_CHUNK = 1 << 18  # elements of each rank that are compared at a time


@dataclass(frozen=True, kw_only=True)
class Deviation:
    """How far each replica of a tensor lies from their median.

    Attributes:
        differences: `||x - median|| / max(||median||, floor)` by global rank, the median taken
            over ranks element by element; Inf where a rank has no tensor, or a non-finite
            value where the median is another.
        rounding: relative rounding of the tensor's dtype (0 for 32 bits and more).
        sampled: whether a sample of the elements was compared.
    """

    differences: dict[int, float]
    rounding: float
    sampled: bool


def deviations(
    mismatches: Sequence[Mismatch],
    replicas: Replicas,
    tensors: Mapping[str, torch.Tensor | None],
    *,
    device: torch.device,
    group: Group = None,
    sample_elements: int = 1 << 20,
    floor: float = 0.0,
) -> list[Deviation]:
    """The deviation of each mismatch; collective, waits for the host.

    Args:
        mismatches: the same on every rank.
        replicas: which ranks hold the same data.
        tensors: this rank's, by path; None for one that it should have and has not.
        device: where the group's backend wants its tensors.
        group: the ranks.
        sample_elements: of longer tensors about so many elements are compared, evenly strided.
        floor: a smaller norm counts as this one: what is nothing but rounding noise (the
            gradient of a bias before a normalisation) differs by its own size.
    """
    return [
        _deviation(
            one,
            replicas,
            _sample(tensors.get(one.name), device, sample_elements),
            group=group,
            floor=floor,
        )
        for one in mismatches
    ]


def _deviation(
    mismatch: Mismatch,
    replicas: Replicas,
    own: tuple[torch.Tensor, bool, float],
    *,
    group: Group,
    floor: float,
) -> Deviation:
    values, sampled, rounding = own
    device = values.device
    told = gather(
        torch.tensor([len(values), float(sampled), rounding], dtype=torch.float64, device=device),
        group,
    ).tolist()
    place = {rank: index for index, rank in enumerate(replicas.ranks)}
    members = sorted(rank for ranks in mismatch.classes for rank in ranks)
    size = max(int(row[0]) for row in told)
    present = [rank for rank in members if int(told[place[rank]][0])]
    padded = values.new_zeros(size)
    padded[: len(values)] = values
    squares = torch.zeros(len(present), dtype=torch.float64, device=device)
    total = torch.zeros((), dtype=torch.float64, device=device)
    for start in range(0, size, _CHUNK):
        rows = gather(padded[start : start + _CHUNK], group)[[place[rank] for rank in present]]
        middle = _median(rows)
        gap = (rows - middle).square()
        alike = (rows == middle) | (rows.isnan() & middle.isnan())
        gap = torch.where(alike, 0.0, gap.nan_to_num(nan=math.inf))
        squares += gap.sum(-1)
        total += torch.where(middle.isfinite(), middle.square(), 0.0).sum()
    scale = max(float(total.sqrt()), floor)
    found = dict.fromkeys(members, math.inf)
    for rank, square in zip(present, squares.tolist(), strict=True):
        found[rank] = 0.0 if square == 0 else math.sqrt(square) / scale if scale else math.inf
    if 2 * len(present) <= len(members):  # most have none: those that have one are the odd ones
        found = {rank: math.inf if rank in present else 0.0 for rank in members}
    return Deviation(
        differences=found,
        rounding=max(told[place[rank]][2] for rank in members),
        sampled=any(told[place[rank]][1] for rank in members),
    )


def _median(rows: torch.Tensor) -> torch.Tensor:
    """Median of each column; of an even number the mean of the middle two, NaNs highest."""
    ordered = rows.sort(0).values
    low, high = ordered[(len(rows) - 1) // 2], ordered[len(rows) // 2]
    return torch.where(low == high, low, (low + high) / 2)


def _sample(
    tensor: torch.Tensor | None, device: torch.device, sample_elements: int
) -> tuple[torch.Tensor, bool, float]:
    """(elements as fp64, whether they are a sample, rounding of the dtype)."""
    if tensor is None:
        return torch.zeros(0, dtype=torch.float64, device=device), False, 0.0
    local = local_part(tensor).tensor
    narrow = local.is_floating_point() and local.dtype.itemsize < 4
    rounding = torch.finfo(local.dtype).eps if narrow else 0.0
    flat = local.reshape(-1)
    stride = -(-len(flat) // sample_elements)
    length = local.shape[-1] if local.ndim else 1
    while stride > 1 and math.gcd(stride, length) > 1:
        stride += 1
    values = flat[::stride].to(device, torch.float64)
    return values, stride > 1, rounding
