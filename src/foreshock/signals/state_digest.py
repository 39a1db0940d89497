"""Digests of weights and optimizer state: whether two runs are the same, bit for bit."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from foreshock.core.names import OPTIMIZER_DIGEST, WEIGHTS_DIGEST, series_name
from foreshock.core.signal import (
    Attached,
    Exactness,
    Level,
    Moment,
    Phase,
    Reduction,
    Signal,
    Site,
    Values,
)
from foreshock.ranks.digest import digests
from foreshock.ranks.placement import local_part

_PIECES, _PIECE_BITS = 4, 16
_SHOWN_BITS = 24
"""What float32 holds exactly."""


class _AttachedDigest(Attached):
    series = (series_name(WEIGHTS_DIGEST.name), series_name(OPTIMIZER_DIGEST.name))

    def __init__(self, site: Site) -> None:
        self._optimizer = site.optimizer
        self._parameters = [parameter for _, parameter in site.parameters]
        self._device = self._parameters[0].device
        self._sharded = site.sharded or (False,) * len(self._parameters)
        self._counts = [_is_first_holder(parameter) for parameter in self._parameters]
        kinds = [Reduction.SAME, Reduction.SUM]
        self.reductions = [kind for _ in self.series for kind in kinds for _ in range(_PIECES)]

    def measure(self, moment: Moment) -> torch.Tensor:
        weights = [[parameter] for parameter in self._parameters]
        states = [self._state_of(parameter) for parameter in self._parameters]
        return torch.cat([self._pieces(weights), self._pieces(states)])

    def _state_of(self, parameter: torch.Tensor) -> list[torch.Tensor]:
        state = self._optimizer.state.get(parameter, {})
        return [
            held
            for _, held in sorted(state.items())
            if isinstance(held, torch.Tensor) and held.shape == parameter.shape
        ]

    def _pieces(self, tensors: list[list[torch.Tensor]]) -> torch.Tensor:
        """Of what every rank has, and of this rank's shards, 16 bits at a time, `[8]`."""
        both = torch.zeros(2, _PIECES, dtype=torch.float64, device=self._device)
        shifts = torch.arange(_PIECES, device=self._device) * _PIECE_BITS
        number = 1
        for place, held in enumerate(tensors):
            for one in held if self._counts[place] else ():
                (found,) = digests([local_part(one)], self._device)
                # An odd factor of its own for each: tensors that swap places do not cancel.
                mixed = found[0] * number + found[1] * (number + 2)
                number += 4
                pieces = ((mixed >> shifts) & 0xFFFF).to(torch.float64)
                both[int(self._sharded[place])] += pieces
        # Sums of pieces are carried back into 16 bits, so that float32 holds them.
        return torch.cat([_carried(row) for row in both])

    def finish(self, partials: Values, committed: bool) -> Values:
        found: list[float] = []
        for pieces in partials.reshape(len(self.series), 2 * _PIECES):
            total = sum(
                int(piece) << (_PIECE_BITS * (at % _PIECES)) for at, piece in enumerate(pieces)
            )
            total %= 1 << (_PIECES * _PIECE_BITS)
            found.append(float((total >> 40) ^ (total & ((1 << _SHOWN_BITS) - 1))))
        return np.array(found)


def _is_first_holder(parameter: torch.Tensor) -> bool:
    """Whether this rank's shard is to be counted: of several that hold the same, the first is."""
    mesh = getattr(parameter, "device_mesh", None)
    if mesh is None:
        return True
    placements = parameter.placements  # pyright: ignore[reportAttributeAccessIssue] - a DTensor
    where = zip(mesh.get_coordinate(), placements, strict=True)
    return all(place == 0 for place, placement in where if placement.is_replicate())


def _carried(pieces: torch.Tensor) -> torch.Tensor:
    """The same number modulo 2^64 with every piece below 2^16, `[4]`."""
    rows = pieces.to(torch.int64)
    out: list[torch.Tensor] = []
    carry = torch.zeros((), dtype=torch.int64, device=pieces.device)
    for piece in rows:
        value = piece + carry
        out.append(value & 0xFFFF)
        carry = value >> _PIECE_BITS
    return torch.stack(out).to(torch.float64)


@dataclass(frozen=True, kw_only=True)
class StateDigestSignal(Signal):
    """A digest of the weights and one of the optimizer's tensors, as numbers of 24 bits.

    Independent of order and of how tensors are sharded: two runs that are the same bit for
    bit give the same numbers, and others differ but for one chance in 16 million. Compare a
    resumed run with the one it came from, or a replay with the run.
    """

    name: ClassVar[str] = "state_digest"
    unit: ClassVar[str] = "1"
    phase: ClassVar[Phase] = Phase.UPDATE
    exactness: ClassVar[Exactness] = Exactness.EXACT
    passes: ClassVar[str] = "five to ten over parameters and moments when due"
    level: ClassVar[Level] = Level.FULL
    interval_steps: int = 1000

    def attach(self, site: Site) -> Attached:
        return _AttachedDigest(site)
