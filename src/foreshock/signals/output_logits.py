"""What the model predicts with: largest logit, log Z, entropy."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from foreshock.anatomy import anatomy_at
from foreshock.core.names import (
    LOG_Z,
    LOG_Z_ABSMAX,
    MAX_OUTPUT_LOGIT,
    OUTPUT_ENTROPY,
    series_name,
)
from foreshock.core.signal import (
    MISSING,
    Attached,
    Exactness,
    Moment,
    Phase,
    Reduction,
    Signal,
    Site,
    Values,
)
from foreshock.fused import passes
from foreshock.norms import local
from foreshock.taps import Tap

_LARGEST = (True, False, True, False, False)
"""Which of what is gathered over forwards are maxima; the others are sums."""
_CPU_TOGETHER, _TOGETHER = 1 << 17, 1 << 24
"""Logits looked at together: 0.5 MB in fp32 on a CPU, 64 MB elsewhere."""


class _AttachedOutput(Attached):
    series = tuple(
        series_name(kind.name) for kind in (MAX_OUTPUT_LOGIT, LOG_Z, LOG_Z_ABSMAX, OUTPUT_ENTROPY)
    )
    reductions = (Reduction.MAX, Reduction.SUM, Reduction.MAX, Reduction.SUM, Reduction.SUM)

    def __init__(
        self, head: torch.nn.Module, device: torch.device, site: Site, signal: "OutputLogitsSignal"
    ) -> None:
        self._clock, self._signal = site.clock, signal
        self._empty = torch.tensor(
            [-torch.inf, 0.0, 0.0, 0.0, 0.0], dtype=torch.float64, device=device
        )
        self._found = self._empty.clone()  # max, sum log Z, max |log Z|, sum entropy, rows
        self._glanced: list[Values] = []  # the same, of each forward that fused passes saw
        self._has_seen = False
        self._tap = Tap(
            head,
            site.timed("output_logits", self._see),
            device=device,
            glance=site.timed("output_logits", self._glance),
        )

    def _glance(self, found: torch.Tensor) -> bool:
        if not self._clock.is_due(self._signal.interval_steps) or not found.numel():
            return True
        if found.is_nested or not found.ndim:
            return False
        num = found.numel() // found.shape[-1]
        every = min(1 if self._signal.exact else self._signal.every_rows, num)
        rows = passes.logits(found, self._clock.step % every, every)
        if rows is None:
            return False
        largest, total, moment = rows.T
        with np.errstate(all="ignore"):
            spread = np.log(total)
            log_z = np.where(np.isfinite(largest), largest + spread, largest)
            entropy = spread - moment / total
            sums = (largest.max(), log_z.sum(), np.abs(log_z).max(), entropy.sum(), len(rows))
        self._glanced.append(np.array(sums))
        return True

    def _see(self, found: torch.Tensor) -> None:
        logits = torch.atleast_1d(local(found))
        self._has_seen = True
        if not self._clock.is_due(self._signal.interval_steps) or not logits.numel():
            return
        if (
            found.ndim and logits.shape[-1] != found.shape[-1]
        ):  # a rank that has a part of the vocabulary
            self._found[0] = torch.maximum(self._found[0], logits.amax().to(self._found))
            return
        rows = logits.reshape(-1, logits.shape[-1])
        every = min(1 if self._signal.exact else self._signal.every_rows, len(rows))
        rows = rows[self._clock.step % every :: every]
        largest, log_z, entropy = _of_rows(rows)
        sums = (largest.amax(), log_z.sum(), log_z.abs().amax(), entropy.sum())
        now = torch.stack([one.to(self._found) for one in sums])
        before = self._found
        self._found[0] = torch.maximum(before[0], now[0])
        self._found[1] += now[1]
        self._found[2] = torch.maximum(before[2], now[2])
        self._found[3] += now[3]
        self._found[4] += len(rows)

    def measure(self, moment: Moment) -> "torch.Tensor | Values":
        all_glanced, found = self._glanced, self._found.clone()
        has_seen = self._has_seen
        self.forget()
        if not all_glanced:
            return found
        each = np.array(all_glanced)
        with np.errstate(all="ignore"):
            glanced = np.where(_LARGEST, each.max(axis=0), each.sum(axis=0))
        if not has_seen:
            return glanced
        both = torch.from_numpy(glanced).to(found)
        largest = torch.tensor(_LARGEST, device=found.device)
        return torch.where(largest, torch.maximum(both, found), both + found)

    def finish(self, partials: Values, committed: bool) -> Values:
        largest, log_z, log_z_absmax, entropy, rows = partials
        if rows == 0:
            seen = MISSING if largest == -np.inf else largest
            return np.array([seen, MISSING, MISSING, MISSING])
        return np.array([largest, log_z / rows, log_z_absmax, entropy / rows])

    def forget(self) -> None:
        self._glanced = []
        if self._has_seen:
            self._found.copy_(self._empty)
            self._has_seen = False

    def load_state_dict(self, state: dict[str, object]) -> None:
        self.forget()

    def detach(self) -> None:
        self._tap.close()


def _num_together(rows: torch.Tensor) -> int:
    """Rows to look at together: their intermediate results stay in the cache, or small."""
    return max(1, (_CPU_TOGETHER if rows.is_cpu else _TOGETHER) // rows.shape[-1])


def _of_rows(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Largest logit, log Z and entropy of each row of logits `[R, V]`, `[R]` each.

    All relative to the largest logit: the difference of two large numbers keeps few digits.
    """
    parts = [_of_few(part) for part in rows.split(_num_together(rows))]
    largest, total, moment = map(torch.cat, zip(*parts, strict=True))
    entropy = torch.log(total) - moment / total
    log_z = torch.where(torch.isfinite(largest), largest + torch.log(total), largest)
    return largest, log_z, entropy


def _of_few(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What `foreshock.fused.passes.logits` gives of each row, one pass for each step."""
    rows = rows if rows.dtype == torch.float64 else rows.float()
    largest = rows.amax(dim=-1)
    below = (rows - largest[:, None]).clamp_(min=-1e30)  # of -Inf, so that 0 * -Inf is 0
    shares = torch.exp(below)
    return largest, shares.sum(dim=-1), torch.linalg.vecdot(shares, below)


@dataclass(frozen=True, kw_only=True)
class OutputLogitsSignal(Signal):
    """Largest output logit, log Z (mean and largest magnitude) and entropy of the prediction.

    Of the head's output in training forwards, over every sixteenth row, another set each step;
    `exact` takes all. Means are then a sample: over n rows, 95 % err by less than 2 / sqrt(n) of
    the rows' standard deviation (measured). The largest values are lower bounds. An entropy is
    right to 1e-5 of itself or 2e-6 nats, whichever is more. A head that is fused with the loss
    gives no logits, and the series have no values; where each rank has a part of the vocabulary
    only, the largest logit has one.

    Args:
        exact: look at every row.
        every_rows: else, at one row in this many.

    Reference: Wortsman et al. 2023, section 3.1.2 (output logits diverge slowly: watch log Z).
    """

    name: ClassVar[str] = "output_logits"
    unit: ClassVar[str] = "nats"
    phase: ClassVar[Phase] = Phase.GRADIENT
    passes: ClassVar[str] = "four over a sixteenth of the logits"
    exact: bool = False
    every_rows: int = 16

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_at_least(1, "every_rows")

    @property
    def exactness(self) -> Exactness:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Exact if asked for, else a sample of rows."""
        return Exactness.EXACT if self.exact else Exactness.SAMPLED

    def attach(self, site: Site) -> Attached | None:
        anatomy = anatomy_at(site)
        if anatomy.head is None:
            return None
        head = site.model.get_submodule(anatomy.head)
        return _AttachedOutput(head, site.parameters[0][1].device, site, self)
