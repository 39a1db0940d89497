"""The same small sample of weights, gradients and moments, taken once a step for all signals.

A sample is some 256 runs of 16 neighbours of each tensor. Neighbours share a cache line, so
that 4,096 elements cost what 256 cost; the runs visit every row and column in turn. Measured
on transformers, its norms err by half as much as those of 1,024 single elements, which cost
twice the time. One lone large element outside the sample is not seen, and of a matrix with
thousands of unequal rows, such as the embedding of a large vocabulary, it says little: each
signal that uses it states the error.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from foreshock.core.signal import Moment, Site
from foreshock.fused import passes
from foreshock.norms import local, row_norms
from foreshock.ranks.placement import laid_out_like
from foreshock.sampling.addresses import Addresses
from foreshock.sampling.places import ROW, Buffer, Place
from foreshock.sampling.state import StateTensors

NUM_RUNS, RUN = 256, 16
_SHARED = "sampling"


def gradient_of(parameter: torch.Tensor) -> torch.Tensor | None:
    """A parameter's gradient, laid out as the parameter is."""
    grad = parameter.grad
    return None if grad is None else laid_out_like(grad, parameter)


class _Moments(NamedTuple):
    """What `visit` is to tell of the optimizer's moments; see `Sampling.count_moments`."""

    first: Sequence[str]
    second: Sequence[str]
    least: Callable[[], float]


class Sampling:
    """The samples of one attachment. Made once by `of`; every sample is taken once a moment.

    Weights, gradients and moments are sampled at the same places, so that they can be
    compared element by element. Values are fp32 (fp64 for parameters in fp64).
    """

    def __init__(self, site: Site, *, num_runs: int = NUM_RUNS, run: int = RUN) -> None:
        self._parameters = [parameter for _, parameter in site.parameters]
        self.device = local(self._parameters[0]).device
        wide = any(p.dtype in (torch.float64, torch.complex128) for p in self._parameters)
        self._dtype = torch.float64 if wide else torch.float32
        self._places = [Place(p, num_runs, run) for p in self._parameters]
        rows = [place.num_rows for place in self._places]
        self._num_rows = torch.tensor(rows, dtype=torch.int64, device=self.device)
        owner = [i for i, count in enumerate(rows) for _ in range(count)]
        self._owner = torch.tensor(owner, dtype=torch.int64, device=self.device)
        self.scale = torch.tensor(
            [place.scale for place in self._places], dtype=torch.float64, device=self.device
        )
        """What a sum over each sample is multiplied by to be one over the whole, `[P]`."""
        self._scales = np.array([place.scale for place in self._places])
        self.num_sampled = torch.tensor(
            [place.size for place in self._places], dtype=torch.float64, device=self.device
        )
        """Elements of each parameter that this rank samples, `[P]`."""
        self.padding = torch.tensor(rows, device=self.device) * ROW - self.num_sampled
        """Zeros that fill up the last row of each, `[P]`."""
        self._buffers: dict[str, Buffer] = {}
        self._views: dict[str, list[tuple[int, torch.Tensor] | None]] = {}
        self._moment: Moment | None = None
        self._taken: set[str] = set()
        self._true_factor: Any = 1.0
        self._versions: tuple[list[int], list[int]] | None = None
        self._addresses = Addresses(self._parameters, self._places)
        self._state = StateTensors(site.optimizer, self._parameters)
        self._scratch: list[torch.Tensor] = []
        self._moments: _Moments | None = None
        self._visit: passes.Updates | None = None

    @classmethod
    def of(cls, site: Site) -> "Sampling":
        """The sampling that all signals of this attachment share."""
        if _SHARED not in site.shared:
            site.shared[_SHARED] = cls(site)
        return site.shared[_SHARED]

    def weights_before(self, moment: Moment) -> torch.Tensor:
        """Weights before the update, `[R, ROW]`; ask at that time.

        Those after the last update are taken for them if nothing has written to the weights
        since, as torch counts it, and they lie where they lay: a write in place past `.data`, or
        to a DTensor by a foreach operation, shows as part of the update.
        """
        if self._versions is not None and self._versions == self._addresses.versions():
            self._swap(moment, "weights after", "weights before")
        return self._take(moment, "weights before", self._parameters, keep_views=True)

    def weights_after(self, moment: Moment) -> torch.Tensor:
        """Weights after the update, `[R, ROW]`; ask at that time."""
        found = self._take(moment, "weights after", self._parameters, keep_views=True)
        self._versions = self._addresses.versions()
        return found

    def forget(self) -> None:
        """Take nothing for what it was: time went back, and the weights with it.

        Torch need not have counted that they were written to, as it does not on a DTensor's part.
        """
        self._versions = None

    def gradients(self, moment: Moment) -> torch.Tensor:
        """Gradients as they are in memory before the update, `[R, ROW]`.

        Multiply by a factor of `factors`. Later in the step, when they may be clipped or gone,
        what was taken is returned.
        """
        if self._moment is moment and "gradients" in self._taken:
            return self._buffers["gradients"].values
        self._true_factor = moment.true_factor
        grads = [
            one.grad if plain else gradient_of(one)
            for one, plain in zip(self._parameters, self._addresses.plain, strict=True)
        ]
        return self._take(moment, "gradients", grads, keep_views=False)

    def factors(self, moment: Moment) -> tuple[Any, Any]:
        """What `gradients` is multiplied by to be the true ones, and those that are used.

        Each is `[]` or a number: the factors of the moment, as they were when it was taken.
        """
        true = self._true_factor
        if true is moment.true_factor:  # which may be Inf: of gradients that were clipped to 0
            return true, moment.used_factor
        return true, true * moment.used_factor / moment.true_factor

    def state(self, moment: Moment, keys: Sequence[str]) -> torch.Tensor | None:
        """The first of the optimizer's state tensors that is there, `[R, ROW]`; None if none is."""
        found = self._state.first_of(keys)
        if all(one is None for one in found):
            return None
        return self._take(moment, keys[0], found, keep_views=True)

    def num_updates(self) -> Any:
        """Updates that the optimizer has counted for its first parameter: a tensor or a number."""
        return self._state.num_updates()

    def count_moments(
        self, first: Sequence[str], second: Sequence[str], least: Callable[[], float]
    ) -> None:
        """Let `visit` look at moments too: by what names the optimizer keeps them, as in `state`.

        `least` gives the smallest second moment that counts as itself.
        """
        self._moments = _Moments(first, second, least)

    def visit(self, moment: Moment) -> passes.Updates | None:
        """What the update did to every parameter, `[P]` each, from one visit of each sample.

        Sums over the sample, estimated for the whole. Ask after the update, for which the weights
        before it and the gradients must have been taken. None where it is not fused: then take
        `weights_after` and `state`.
        """
        self._begin(moment)
        if self._visit is not None:
            return self._visit
        before = self._buffers.get("weights before")
        if before is None or "weights before" not in self._taken:
            return None
        wanted = [self._addresses.of("weights", self._parameters)]
        grads, least = before, 1.0
        if self._moments is None:
            wanted += [np.zeros(len(self._places), dtype=np.int64)] * 2
        elif "gradients" not in self._taken:
            return None
        else:
            grads, least = self._buffers["gradients"], self._moments.least()
            for keys in self._moments[:2]:
                wanted.append(self._addresses.of(keys[0], self._state.first_of(keys)))
        known = [one for one in wanted if one is not None]
        if len(known) < len(wanted):
            return None
        after = self._buffer("weights after")
        found = passes.updates(
            np.concatenate(known),
            self._addresses.table,
            before=before.values,
            grads=grads.values,
            weights=after.values,
            least=least,
        )
        if found is None:
            return None
        self._taken.add("weights after")
        self._versions = self._addresses.versions()
        self._visit = passes.Updates(*(one * self._scales for one in found))
        return self._visit

    def scratch(self, which: int = 0) -> torch.Tensor:
        """Room for an intermediate result, `[R, ROW]`: new memory costs more than arithmetic.

        What stands in it lasts until the next call of a method of this class.
        """
        while len(self._scratch) <= which:
            shape = (len(self._owner), ROW)
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
            self._visit = None

    def _take(
        self,
        moment: Moment,
        name: str,
        tensors: Sequence[torch.Tensor | None],
        *,
        keep_views: bool,
    ) -> torch.Tensor:
        self._begin(moment)
        buffer = self._buffer(name)
        if name not in self._taken:
            self._taken.add(name)
            where = self._addresses.of(name, tensors)
            if where is None or not passes.gather(where, self._addresses.table, buffer.values):
                views = self._kept(name, tensors) if keep_views else self._fresh(tensors)
                buffer.fill(views)
        return buffer.values

    def _buffer(self, name: str) -> Buffer:
        if name not in self._buffers:
            self._buffers[name] = Buffer(self._places, self.device, self._dtype)
        return self._buffers[name]

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
            part = one if self._addresses.plain[at] else local(one)
            if not _has_memory(part):
                found.append(place.view(one))
                continue
            kept = known[at]
            where = part.data_ptr()
            if kept is None or kept[0] != where or kept[1].dtype != part.dtype:
                known[at] = kept = (where, place.view(one))
            found.append(kept[1])
        return found


def _has_memory(part: torch.Tensor) -> bool:
    """Whether its elements lie in order in memory of its own, so that a view of it stays good."""
    return type(part) in (torch.Tensor, torch.nn.Parameter) and part.is_contiguous()


def _dense(one: torch.Tensor) -> torch.Tensor:
    """A sparse gradient as a dense one: its sample must lie where that of the weights does."""
    return one.to_dense() if one.is_sparse else one
