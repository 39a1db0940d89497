"""Where the sample of each parameter lies, in the parameter and in the buffer of all samples."""

import math
from collections.abc import Sequence

import torch

from foreshock.norms import local
from foreshock.ranks.placement import local_part

ROW = 512
"""Elements of a row of a buffer; each sample begins a row of its own."""


class Place:
    """Where a parameter's sample lies: `count` runs of `length`, `stride` apart, from `start`.

    Of shards of whole rows the samples add up to that of the whole; of others (tensor
    parallelism over columns) each rank takes its own, which then depends on the layout.
    """

    def __init__(self, parameter: torch.Tensor, num_runs: int, run: int) -> None:
        part = local(parameter)
        whole = parameter.numel() * (2 if parameter.is_complex() else 1)
        self.own = own = part.numel()
        if whole <= num_runs * run:
            self.length, self.stride, self.start, self.count = own, own, 0, int(own > 0)
            self.scale = 1.0
            return
        row = whole // max(parameter.shape[0], 1)
        self.length = math.gcd(row, run)
        units = whole // self.length
        # Runs may be short where rows are; then there are more of them.
        step = max(1, units // min(num_runs * (run // self.length), 4 * num_runs))
        while math.gcd(step, units) != 1:
            step += 1
        self.stride = step * self.length
        held = local_part(parameter)
        by_rows = held.tensor.shape[1:] == held.shape[1:]  # as FSDP shards
        first = held.offset[0] * row // self.length if by_rows else 0
        self.start = (-first % step) * self.length
        left = own - self.start - self.length
        self.count = left // self.stride + 1 if left >= 0 else 0
        self.scale = whole / (self.length * ((units - 1) // step + 1))
        if not by_rows:  # a sample of this rank's own
            self.scale = own / max(self.size, 1)

    @property
    def size(self) -> int:
        """Elements of the sample."""
        return self.count * self.length

    @property
    def num_rows(self) -> int:
        """Rows of a buffer that the sample takes."""
        return -(-self.size // ROW)

    def view(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sample within a tensor of the parameter's shape, as a view `[count, length]`."""
        flat = local(tensor)
        if not flat.is_contiguous():
            flat = flat.contiguous()
        start = flat.storage_offset() + self.start
        return flat.as_strided((self.count, self.length), (self.stride, 1), start)


class Buffer:
    """The samples of all parameters in one tensor `[R, ROW]`, each from a row of its own on."""

    def __init__(self, places: Sequence[Place], device: torch.device, dtype: torch.dtype) -> None:
        rows = [place.num_rows for place in places]
        self.values = torch.zeros(sum(rows), ROW, dtype=dtype, device=device)
        flat = self.values.view(-1)
        self._parts: list[torch.Tensor] = []
        at = 0
        for place, count in zip(places, rows, strict=True):
            part = flat[at * ROW : at * ROW + place.size]
            self._parts.append(part.view(place.count, place.length) if place.size else part)
            at += count

    def fill(self, views: Sequence[torch.Tensor | None]) -> None:
        """Take in one view for each parameter; None leaves zeros."""
        given = [(p, v) for p, v in zip(self._parts, views, strict=True) if v is not None]
        filled = [(part, view) for part, view in given if part.numel()]
        if filled:
            parts, found = zip(*filled, strict=True)
            torch._foreach_copy_(parts, found)
        missing = [p for p, v in zip(self._parts, views, strict=True) if v is None and p.numel()]
        if missing:
            torch._foreach_zero_(missing)
