"""What was measured since the last reading, kept on the device."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, final

import torch
from torch import Tensor
from torch._compile import _disable_dynamo

from foreshock.attention.compiled import fold_heads, new_row
from foreshock.attention.logsumexp import bounds, log_keys
from foreshock.taps import apart

# Log-sum-exps wait for each other so that one pass serves many layers; this many are held.
_MAX_PENDING = 16


class ExactRows(NamedTuple):
    """What the exact rows gave, each `[L, H]` over layers and heads.

    Attributes:
        maximum: largest logit computed exactly, float32; -Inf where nothing was.
        rest: an upper bound of every other logit; +Inf where there is none.
        certified: whether `maximum` is the largest of all, to rounding: it is at least `rest`.
        entropy: mean entropy of the sampled rows in nats; NaN where there were none.
    """

    maximum: Tensor
    rest: Tensor
    certified: Tensor
    entropy: Tensor


@dataclass
class _Group:
    """Log-sum-exps of one shape that can be reduced together."""

    num_keys: int
    causal: bool
    zero_is_masked: bool
    places: list[int] = field(default_factory=list[int])
    rows: list[Tensor] = field(default_factory=list[Tensor])

    def reduced(self) -> Tensor:
        """Bounds of each layer, `[G, H, 2]`."""
        rows = torch.stack(self.rows)
        keys = log_keys(rows.shape[-1], self.num_keys, self.causal, rows.device)
        return bounds(rows, keys, zero_is_masked=self.zero_is_masked)


@final
class Record:
    """Buffers of all layers; every reading empties them.

    Args:
        widths: heads that each layer reports (1 where heads are reported together).
        device: where the buffers lie.
    """

    def __init__(self, widths: Sequence[int], device: torch.device) -> None:
        self._widths, self._device = tuple(widths), device
        self._num, self._width = len(self._widths), max(self._widths, default=1)
        # Where all have the same heads: what one pass over all of them gives is the reading.
        alike = len(set(self._widths)) == 1
        self._all = tuple(range(self._num)) if alike else None
        # One tensor a layer, none a view of another, so that compiled layers share a graph.
        self.rows = [new_row(width, device) for width in self._widths]
        self._empty_bounds()
        self._empty_rows()
        self._pending: dict[tuple[object, ...], _Group] = {}
        self._waiting: set[int] = set()

    def _empty_bounds(self) -> None:
        self._bounds: Tensor | None = None
        self._found: list[tuple[tuple[int, ...], Tensor]] = []
        self._eager: set[int] = set()

    def _merged(self) -> Tensor:
        """`[L, H, 2]` of what was found so far."""
        if self._bounds is None:
            shape = (self._num, self._width, 2)
            self._bounds = torch.full(shape, -math.inf, device=self._device)
        for places, found in self._found:
            self._raise(self._bounds, places, found)
        self._found.clear()
        return self._bounds

    def _empty_rows(self) -> None:
        shape = (self._num, self._width)
        self._exact = torch.full((*shape, 2), -math.inf, device=self._device)
        self._entropy = torch.zeros((*shape, 2), device=self._device)

    def add_logsumexp(
        self, place: int, lse: Tensor, num_keys: int, *, causal: bool, zero_is_masked: bool
    ) -> None:
        """Take in `[B, H, T]` of one layer; nothing is computed before others have come."""
        if place in self._waiting or len(self._waiting) >= _MAX_PENDING:
            self.flush()
        alike = (lse.shape, num_keys, causal, zero_is_masked, lse.dtype, lse.device)
        group = self._pending.get(alike)
        if group is None:
            group = self._pending[alike] = _Group(num_keys, causal, zero_is_masked)
        group.places.append(place)
        group.rows.append(lse)
        self._waiting.add(place)
        self._eager.add(place)
        if len(self._waiting) == self._num:
            self.flush()

    def add_sample(self, place: int, largest: Tensor) -> None:
        """Take in the largest logit of sampled rows, `[H]`: it stands for both bounds."""
        self._eager.add(place)
        self._raise(self._merged(), (place,), largest[None, :, None].expand(1, -1, 2))

    def add_exact(self, place: int, maximum: Tensor, rest: Tensor) -> None:
        """Take in `[H]` of exact rows and `[H]` above all others."""
        self._raise(self._exact, (place,), torch.stack((maximum, rest), -1)[None])

    def add_entropy(self, place: int, total: Tensor, num: Tensor) -> None:
        """Take in the sum of entropies `[H]` and their number `[H]`."""
        both = torch.stack((total, num), -1).to(self._device)
        if both.shape[0] > self._widths[place]:
            both = both.sum(0, keepdim=True)
        self._entropy[place, : both.shape[0]] += both

    @_disable_dynamo
    def flush(self) -> None:
        """Reduce the log-sum-exps that wait."""
        for group in self._pending.values():
            if torch._C._len_torch_dispatch_stack():
                with apart(group.rows[0].device.type):
                    found = group.reduced()
            else:
                found = group.reduced()
            self._found.append((tuple(group.places), found))
        if len(self._found) >= _MAX_PENDING:
            self._merged()
        self._pending.clear()
        self._waiting.clear()

    HOT = (add_logsumexp,)

    def _raise(self, buffer: Tensor, places: tuple[int, ...], found: Tensor) -> None:
        """Raise `buffer[places]` to `found` `[G, H, 2]` where that is larger, or NaN."""
        found = found.to(self._device, torch.float32, non_blocking=True)
        heads, first = found.shape[1], places[0]
        if places == tuple(range(first, first + len(places))) and all(
            heads <= self._widths[place] for place in places
        ):
            held = buffer[first : first + len(places), :heads]
            torch.maximum(held, found, out=held)
            return
        for place, one in zip(places, found, strict=True):
            folded = fold_heads(one, self._widths[place])
            held = buffer[place, : folded.shape[0]]
            torch.maximum(held, folded, out=held)

    def take_bounds(self) -> Tensor:
        """`[L, H, 2]` of lower and upper bounds, and begin anew."""
        self.flush()
        if self._bounds is None and len(self._found) == 1:
            (places, found) = self._found[0]
            if (
                places == self._all
                and found.shape[1] == self._width
                and found.device == self._device
            ):
                self._empty_bounds()
                return found
        taken, eager = self._merged(), len(self._eager)
        self._empty_bounds()
        if eager < self._num:
            for place, row in enumerate(self.rows):
                self._raise(taken, (place,), row[None, :-1])
                row[:-1] = -math.inf
        return taken

    def take_rows(self) -> ExactRows:
        """Exact rows and entropies, and begin anew."""
        (maximum, rest), (total, num) = self._exact.unbind(-1), self._entropy.unbind(-1)
        self._empty_rows()
        certified = (maximum >= rest) & (maximum > -math.inf)
        return ExactRows(maximum, rest, certified, total / num)

    def forget(self) -> None:
        """Drop what was measured since the last reading."""
        self.take_bounds()
        self.take_rows()

    def num_compiled(self, place: int) -> tuple[int, int]:
        """Calls inside compiled graphs: measured, and not. Waits for the device."""
        measured, missed = self.rows[place][-1].tolist()
        return int(measured), int(missed)
