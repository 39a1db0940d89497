"""The canary: all ranks compute the same micro-batch, and who gets another gradient is named.

After the reduction all ranks agree on a wrong value; before it the rank that computes
differently (another precision, a faulty core, a kernel of another version) stands out.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from foreshock.core.errors import ProgramError
from foreshock.norms import l2_norms
from foreshock.ranks.batch import share_batch
from foreshock.ranks.deviation import deviations
from foreshock.ranks.digest import digests
from foreshock.ranks.exchange import Group, exchange, gather, global_ranks
from foreshock.ranks.isolation import leave_no_trace, seed_all
from foreshock.ranks.local_gradients import LocalGradients, LossFn, local_gradients, placed
from foreshock.ranks.placement import local_part
from foreshock.ranks.replicas import Mismatch, Replicas, compare, find_replicas

_NO_GRADIENT = -1  # as a digest: no data gives 128 set bits but by chance
_FLOOR = 1e-3  # of the root mean square of the gradients' norms; noise is 1e-6 of it in fp32


@dataclass(frozen=True, kw_only=True)
class Odd:
    """A rank that computes differently.

    Attributes:
        rank: global rank.
        num_others: how many ranks it is compared with.
        names: paths of the gradients that differ, in backward order.
        differences: `||g - median|| / ||median||` of each, Inf where one is not finite, or is
            missing, and the median is not. Norms below a thousandth of the typical one count
            as that: such a gradient may be rounding noise and nothing else.
    """

    rank: int
    num_others: int
    names: tuple[str, ...]
    differences: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class CanaryReport:
    """What a canary found; the same on every rank.

    Attributes:
        ranks: global ranks that took part.
        losses: loss of each.
        num_gradients: gradients that had a twin to be compared with.
        odd: ranks whose gradients differ beyond the tolerance, the most different first.
        undecided: differing gradients without a majority: two replicas, or all different.
        bitwise: what differs in bits, within the tolerance or not. With deterministic kernels
            this is empty on a healthy machine.
        compared: "gradients", or "losses" where the model gives no gradient before reduction.
        sampled: whether some of the differences come from a sample of the elements.
    """

    ranks: tuple[int, ...]
    losses: tuple[float, ...]
    num_gradients: int
    odd: tuple[Odd, ...]
    undecided: tuple[str, ...]
    bitwise: tuple[Mismatch, ...]
    compared: str
    sampled: bool

    @property
    def agreed(self) -> bool:
        """Whether all ranks compute the same, within the tolerance."""
        return not self.odd and not self.undecided

    def __str__(self) -> str:
        lines = [self._say(one) for one in self.odd]
        if self.undecided:
            lines.append(
                f"{len(self.undecided)} of {self.num_gradients} {self.compared} differ over ranks "
                f"without a majority, first (in backward order) {self.undecided[0]}"
                + ("; two ranks cannot tell which is right" if len(self.ranks) == 2 else "")
            )
        if not lines and self.bitwise:
            lines.append(
                f"all {len(self.ranks)} ranks agree within the tolerance; "
                f"{len(self.bitwise)} of {self.num_gradients} {self.compared} differ in bits"
            )
        return "\n".join(lines) or f"all {len(self.ranks)} ranks compute the same, bit for bit"

    def _say(self, one: Odd) -> str:
        if self.compared == "losses":
            return (
                f"rank {one.rank} differs from the other {one.num_others} in its loss, relative "
                f"difference {one.differences[0]:.1e} (this model gives no gradient before the "
                "reduction)"
            )
        return (
            f"rank {one.rank} differs from the other {one.num_others} in {len(one.names)} of "
            f"{self.num_gradients} gradients, first (in backward order) {one.names[0]}, relative "
            f"difference {one.differences[0]:.1e}, largest {max(one.differences):.1e}"
        )


class Canary:
    """Runs the same micro-batch on all ranks now and then, and compares.

    One extra forward and backward, the all-gather of two numbers a parameter, and only for
    gradients that differ in bits an all-gather of their elements. Leaves the model, the
    gradients, the random states and the scaler bit for bit as they were (`leave_no_trace`).
    In tensor parallelism only ranks with the same shard are compared; what mixes ranks inside
    the forward (SyncBatchNorm, expert exchange) spreads a fault before it can be pinned down.

    Args:
        model: as it is trained, wrappers included.
        loss_fn: `(model, batch) -> loss []`.
        device: where the group's backend wants its tensors, and the model its input.
        group: the ranks to compare; None is all of them.
        tolerance: largest relative difference that is no finding. 1e-4 lies below the rounding
            of TF32 (2^-11) and bf16 (2^-8), and two orders above the noise of sums in another
            order in fp32; gradients of 16 bits are allowed twice their own rounding. No source:
            our choice. Lower finds subtler faults and, with nondeterministic kernels, noise;
            where those compute in bf16 (autocast), noise is 2^-8 and 2e-2 the right tolerance.
        scale: fixed loss scale, for fp16.
        sample_elements: of a gradient with more elements an evenly strided sample of about so
            many is compared (the bits always of all): bounds traffic to W * 4 MB a gradient.
        generators: random generators of the user's own.
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFn,
        device: torch.device,
        group: Group = None,
        *,
        tolerance: float = 1e-4,
        scale: float = 1.0,
        sample_elements: int = 1 << 20,
        generators: Sequence[torch.Generator] = (),
    ) -> None:
        self._model = model
        self._loss_fn = loss_fn
        self._device = device
        self._group = group
        self._tolerance = tolerance
        self._scale = scale
        self._sample_elements = sample_elements
        self._generators = tuple(generators)

    def run(self, batch: Any, seed: int) -> CanaryReport:
        """Run it; collective, waits for the host. Between a backward and the next forward.

        Args:
            batch: the first rank's is taken.
            seed: the same on every rank (the step number, say).

        Raises:
            ConfigError: the batch cannot be shared.
            ProgramError: the loss function raised on some rank; raised on all.
        """
        with leave_no_trace(self._model, self._generators):
            if not self._model.training:
                self._model.train()
            shared = share_batch(batch, self._device, self._group)
            computed = self._compute(shared, seed)
            return self._compare(computed)

    def _compute(self, batch: Any, seed: int) -> LocalGradients:
        def start() -> None:
            seed_all(seed, self._generators)

        failure: Exception | None = None
        computed: LocalGradients | None = None
        start()
        try:
            computed = local_gradients(
                self._model, self._loss_fn, batch, scale=self._scale, again=start
            )
        except Exception as error:  # any rank's failure is every rank's
            failure = error
        told = exchange(None if failure is None else repr(failure)[:500], self._device, self._group)
        failed = {
            rank: said
            for rank, said in zip(global_ranks(self._group), told, strict=True)
            if said is not None
        }
        if failed or computed is None:
            raise ProgramError(f"the canary failed on ranks {failed}") from failure
        return computed

    def _compare(self, computed: LocalGradients) -> CanaryReport:
        loss = computed.loss.to(self._device, torch.float64)
        losses = gather(loss, self._group)
        named = placed(self._model) if computed.gradients else [("loss", loss)]
        gradients = computed.gradients or {"loss": loss}
        replicas = find_replicas(named, self._device, self._group)
        own = [gradients[name] for name, _ in named]
        table = replicas.gather(self._digests(own), self._group)
        bitwise = compare(table, replicas)
        order = self._order(computed, replicas)
        bitwise.sort(key=lambda one: order.get(one.name, len(order)))
        found = deviations(
            bitwise,
            replicas,
            dict(zip((name for name, _ in named), own, strict=True)),
            device=self._device,
            group=self._group,
            sample_elements=self._sample_elements,
            floor=self._floor(computed),
        )
        odd: dict[int, list[tuple[str, float, int]]] = {}
        undecided: list[str] = []
        for one, deviation in zip(bitwise, found, strict=True):
            limit = max(self._tolerance, 2 * deviation.rounding)
            beyond = {r: d for r, d in deviation.differences.items() if not d <= limit}
            if 2 * len(beyond) >= len(deviation.differences) and beyond:
                undecided.append(one.name)
                continue
            for rank, difference in beyond.items():
                others = len(deviation.differences) - 1
                odd.setdefault(rank, []).append((one.name, difference, others))
        return CanaryReport(
            ranks=replicas.ranks,
            losses=tuple(losses.tolist()),
            num_gradients=sum(len(sets) for sets in replicas.sets),
            odd=tuple(
                Odd(
                    rank=rank,
                    num_others=rows[0][2],
                    names=tuple(name for name, _, _ in rows),
                    differences=tuple(difference for _, difference, _ in rows),
                )
                for rank, rows in sorted(odd.items(), key=lambda item: -len(item[1]))
            ),
            undecided=tuple(undecided),
            bitwise=tuple(bitwise),
            compared="gradients" if computed.gradients else "losses",
            sampled=any(one.sampled for one in found),
        )

    def _digests(self, own: list[torch.Tensor | None]) -> torch.Tensor:
        rows = torch.full((len(own), 2), _NO_GRADIENT, dtype=torch.int64, device=self._device)
        present = [place for place, gradient in enumerate(own) if gradient is not None]
        if present:
            parts = [local_part(one) for one in own if one is not None]
            rows[present] = digests(parts, self._device)
        return rows

    def _floor(self, computed: LocalGradients) -> float:
        """The least norm that a gradient is measured by, from the norms of all."""
        present = [local_part(one).tensor for one in computed.gradients.values() if one is not None]
        if not present:
            present = [torch.zeros(1)]
        norms = gather(l2_norms(present, self._device).square().mean().sqrt(), self._group)
        typical = float(norms.nan_to_num(nan=torch.inf).median())
        return _FLOOR * typical if torch.inf > typical else 0.0

    def _order(self, computed: LocalGradients, replicas: Replicas) -> dict[str, int]:
        """Place of each path in the backward, by the first rank that has it."""
        places = {name: place for place, name in enumerate(replicas.names)}
        told = exchange([places[name] for name in computed.order], self._device, self._group)
        order: dict[str, int] = {}
        for column in (column for row in told for column in row):
            order.setdefault(replicas.names[column], len(order))
        return order
