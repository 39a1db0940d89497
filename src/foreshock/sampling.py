"""The same small sample of weights, gradients and moments, taken once a step for all signals.

A sample is some 256 runs of 16 neighbours of each tensor. Neighbours share a cache line, so
that 4,096 elements cost what 256 cost; the runs visit every row and column in turn. Measured
on transformers, its norms err by half as much as those of 1,024 single elements, which cost
twice the time. One lone large element outside the sample is not seen, and of a matrix with
thousands of unequal rows, such as the embedding of a large vocabulary, it says little: each
signal that uses it states the error.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from foreshock.core.signal import Moment, Site
from foreshock.norms import local, row_norms
from foreshock.ranks.placement import laid_out_like, local_part

NUM_RUNS, RUN = 256, 16
_ROW = 512
_SHARED = "sampling"


class _Place:
    """Where a parameter's sample lies: `count` runs of `length`, `stride` apart, from `start`.

    Of shards of whole rows the samples add up to that of the whole; of others (tensor
    parallelism over columns) each rank takes its own, which then depends on the layout.
    """

    def __init__(self, parameter: torch.Tensor, num_runs: int, run: int) -> None:
        part = local(parameter)
        whole = parameter.numel() * (2 if parameter.is_complex() else 1)
        own = part.numel()
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
        return self.count * self.length

    def view(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sample within a tensor of the parameter's shape, as a view `[count, length]`."""
        flat = local(tensor)
        if not flat.is_contiguous():
            flat = flat.contiguous()
        start = flat.storage_offset() + self.start
        return flat.as_strided((self.count, self.length), (self.stride, 1), start)


def gradient_of(parameter: torch.Tensor) -> torch.Tensor | None:
    """A parameter's gradient, laid out as the parameter is."""
    grad = parameter.grad
    return None if grad is None else laid_out_like(grad, parameter)


class Buffer:
    """The samples of all parameters in one tensor `[R, 512]`, each from a row of its own on."""

    def __init__(self, places: Sequence[_Place], device: torch.device, dtype: torch.dtype) -> None:
        rows = [-(-place.size // _ROW) for place in places]
        self.values = torch.zeros(sum(rows), _ROW, dtype=dtype, device=device)
        flat = self.values.view(-1)
        self._parts: list[torch.Tensor] = []
        at = 0
        for place, count in zip(places, rows, strict=True):
            part = flat[at * _ROW : at * _ROW + place.size]
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


class Sampling:
    """The samples of one attachment. Made once by `of`; every sample is taken once a moment.

    Weights, gradients and moments are sampled at the same places, so that they can be
    compared element by element. Values are fp32 (fp64 for parameters in fp64).
    """

    def __init__(self, site: Site, *, num_runs: int = NUM_RUNS, run: int = RUN) -> None:
        self._optimizer = site.optimizer
        self._parameters = [parameter for _, parameter in site.parameters]
        self.device = local(self._parameters[0]).device
        wide = any(p.dtype in (torch.float64, torch.complex128) for p in self._parameters)
        self._dtype = torch.float64 if wide else torch.float32
        self._places = [_Place(p, num_runs, run) for p in self._parameters]
        rows = [-(-place.size // _ROW) for place in self._places]
        self._num_rows = torch.tensor(rows, dtype=torch.int64, device=self.device)
        owner = [i for i, count in enumerate(rows) for _ in range(count)]
        self._owner = torch.tensor(owner, dtype=torch.int64, device=self.device)
        self.scale = torch.tensor(
            [place.scale for place in self._places], dtype=torch.float64, device=self.device
        )
        """What a sum over each sample is multiplied by to be one over the whole, `[P]`."""
        self.num_sampled = torch.tensor(
            [place.size for place in self._places], dtype=torch.float64, device=self.device
        )
        """Elements of each parameter that this rank samples, `[P]`."""
        self.padding = torch.tensor(rows, device=self.device) * _ROW - self.num_sampled
        """Zeros that fill up the last row of each, `[P]`."""
        self._buffers: dict[str, Buffer] = {}
        self._views: dict[str, list[tuple[int, torch.Tensor] | None]] = {}
        self._moment: Moment | None = None
        self._taken: set[str] = set()
        self._true_factor: Any = 1.0
        self._versions: list[tuple[int, int, int]] | None = None
        kinds = (torch.Tensor, torch.nn.Parameter)
        self._plain = [type(one) in kinds and not one.is_complex() for one in self._parameters]
        self._scratch: list[torch.Tensor] = []

    @classmethod
    def of(cls, site: Site) -> "Sampling":
        """The sampling that all signals of this attachment share."""
        if _SHARED not in site.shared:
            site.shared[_SHARED] = cls(site)
        return site.shared[_SHARED]

    def weights_before(self, moment: Moment) -> torch.Tensor:
        """Weights before the update, `[R, 512]`; ask at that time.

        Those after the last update are taken for them if nothing has written to the weights
        since, as torch counts it, and they lie where they lay: a write in place past `.data`, or
        to a DTensor by a foreach operation, shows as part of the update.
        """
        if self._versions is not None and self._versions == self._present_versions():
            self._swap(moment, "weights after", "weights before")
        return self._take(moment, "weights before", self._parameters, keep_views=True)

    def weights_after(self, moment: Moment) -> torch.Tensor:
        """Weights after the update, `[R, 512]`; ask at that time."""
        found = self._take(moment, "weights after", self._parameters, keep_views=True)
        self._versions = self._present_versions()
        return found

    def gradients(self, moment: Moment) -> torch.Tensor:
        """Gradients as they are in memory before the update, `[R, 512]`.

        Multiply by a factor of `factors`. Later in the step, when they may be clipped or gone,
        what was taken is returned.
        """
        if self._moment is moment and "gradients" in self._taken:
            return self._buffers["gradients"].values
        self._true_factor = moment.true_factor
        grads = [gradient_of(parameter) for parameter in self._parameters]
        return self._take(moment, "gradients", grads, keep_views=False)

    def factors(self, moment: Moment) -> tuple[Any, Any]:
        """What `gradients` is multiplied by to be the true ones, and those that are used.

        Each is `[]` or a number: the factors of the moment, as they were when it was taken.
        """
        true = self._true_factor
        return true, true * moment.used_factor / moment.true_factor

    def state(self, moment: Moment, keys: Sequence[str]) -> torch.Tensor | None:
        """The first of the optimizer's state tensors that is there, `[R, 512]`; None if none is."""
        states = self._optimizer.state
        for key in keys:
            found = [states.get(parameter, {}).get(key) for parameter in self._parameters]
            shaped = [
                one if one is not None and one.shape == parameter.shape else None
                for one, parameter in zip(found, self._parameters, strict=True)
            ]
            if any(one is not None for one in shaped):
                return self._take(moment, key, shaped, keep_views=True)
        return None

    def scratch(self, which: int = 0) -> torch.Tensor:
        """Room for an intermediate result, `[R, 512]`: new memory costs more than arithmetic.

        What stands in it lasts until the next call of a method of this class.
        """
        while len(self._scratch) <= which:
            shape = (len(self._owner), _ROW)
            self._scratch.append(torch.zeros(shape, dtype=self._dtype, device=self.device))
        return self._scratch[which]

    def norms(self, values: torch.Tensor) -> torch.Tensor:
        """L2 norm of each parameter's whole tensor, estimated from its sample, `[P]` in fp64."""
        return (self.sums(row_norms(values).square()) * self.scale).sqrt()

    def totals(self, values: torch.Tensor) -> torch.Tensor:
        """Sum over each parameter's whole tensor, estimated from its sample, `[P]` in fp64."""
        if not values.is_cpu or values.dtype == torch.float64:
            return self.sums(values.sum(dim=1, dtype=torch.float64)) * self.scale
        rows = values.sum(dim=1).to(torch.float64)
        beyond = np.flatnonzero(~np.isfinite(rows.numpy()))
        if len(beyond):
            places = torch.from_numpy(beyond)
            rows[places] = values[places].sum(dim=1, dtype=torch.float64)
        return self.sums(rows) * self.scale

    def num_nonzero(self, values: torch.Tensor) -> torch.Tensor:
        """Entries of each parameter's sample that are not zero, `[P]`; a NaN counts as one."""
        return self.sums(torch.ne(values, 0, out=self.scratch()).sum(dim=1))

    def sums(self, rows: torch.Tensor) -> torch.Tensor:
        """Sum a quantity of each row `[R]` into one of each parameter `[P]`, in fp64."""
        found = torch.zeros(len(self._places), dtype=torch.float64, device=self.device)
        return found.index_add_(0, self._owner, rows.to(torch.float64))

    def largest(self, values: torch.Tensor) -> torch.Tensor:
        """Largest magnitude in each parameter's sample, `[P]` in fp64; NaN if there is one."""
        rows = torch.abs(values, out=self.scratch()).amax(dim=1).to(torch.float64)
        return torch.segment_reduce(rows, "max", lengths=self._num_rows, initial=0.0)

    def _present_versions(self) -> list[tuple[int, int, int]]:
        # An operation on a DTensor is counted by the DTensor, one on its part by the part.
        return [
            (one._version, one._version, one.data_ptr())
            if plain
            else (one._version, (part := local(one))._version, part.data_ptr())
            for one, plain in zip(self._parameters, self._plain, strict=True)
        ]

    def _swap(self, moment: Moment, there: str, here: str) -> None:
        """What was taken under one name now counts as taken under another."""
        self._begin(moment)
        if here not in self._taken and there in self._buffers:
            held = self._buffers.pop(there)
            if here in self._buffers:
                self._buffers[there] = self._buffers[here]
            self._buffers[here] = held
            self._taken.add(here)

    def _begin(self, moment: Moment) -> None:
        if self._moment is not moment:
            self._moment = moment
            self._taken.clear()

    def _take(
        self,
        moment: Moment,
        name: str,
        tensors: Sequence[torch.Tensor | None],
        *,
        keep_views: bool,
    ) -> torch.Tensor:
        self._begin(moment)
        buffer = self._buffers.get(name)
        if buffer is None:
            buffer = Buffer(self._places, self.device, self._dtype)
            self._buffers[name] = buffer
        if name not in self._taken:
            self._taken.add(name)
            views = self._kept(name, tensors) if keep_views else self._fresh(tensors)
            buffer.fill(views)
        return buffer.values

    def _fresh(self, tensors: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
        return [
            None if one is None or not place.size else place.view(_dense(one))
            for one, place in zip(tensors, self._places, strict=True)
        ]

    def _kept(self, name: str, tensors: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """Views of tensors that usually stay where they are, made anew where they do not."""
        known = self._views.setdefault(name, [None] * len(self._places))
        found: list[torch.Tensor | None] = []
        for at, (one, place) in enumerate(zip(tensors, self._places, strict=True)):
            if one is None or not place.size:
                found.append(None)
                continue
            if one.is_sparse:
                found.append(place.view(one.to_dense()))
                continue
            kept = known[at]
            part = one if self._plain[at] else local(one)
            if kept is None or kept[0] != part.data_ptr() or not part.is_contiguous():
                kept = (part.data_ptr(), place.view(one))
                known[at] = kept
            found.append(kept[1])
        return found


def _dense(one: torch.Tensor) -> torch.Tensor:
    """A sparse gradient as a dense one: its sample must lie where that of the weights does."""
    return one.to_dense() if one.is_sparse else one
