"""A run's signals made ready for judgement: what only looks like a reading is put right first."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from foreshock.core.log import EventKind, Floats, Ints, LoggedRun, LogSeries

_REWARD_WORDS = (
    "reward", "advantage", "ppo", "returns", "clip_ratio", "completions", "cri_loss", "critic",
    "value_loss", "policy_loss",
)  # fmt: skip
_FAR = 0.01
"""A loss above this does not reach exactly 0.0 in one reading."""


@dataclass(frozen=True, kw_only=True)
class Trace:
    """One signal in the order of time. `clock[T]` rises strictly, `steps[T]` is what to show."""

    signal: str
    steps: Ints
    clock: Ints
    values: Floats
    attempts: Ints

    @classmethod
    def of(cls, series: LogSeries) -> "Trace":
        """The trace of a logged series."""
        return cls(
            signal=series.signal,
            steps=series.steps,
            clock=series.clock,
            values=series.values,
            attempts=series.attempts,
        )

    def __len__(self) -> int:
        return len(self.values)

    def __bool__(self) -> bool:
        return True

    @cached_property
    def finite(self) -> NDArray[np.bool_]:
        """`[T]` whether each value is finite."""
        return np.isfinite(self.values)

    @cached_property
    def interval_steps(self) -> int:
        """Steps from one reading to the next, in the median; 1 for fewer than two."""
        gaps = np.diff(self.steps)
        gaps = gaps[gaps > 0]
        return max(1, int(np.median(gaps))) if len(gaps) else 1

    def place(self, clock: int) -> int:
        """Index of the first reading at or after a time."""
        return int(np.searchsorted(self.clock, clock))

    def kept(self, mask: NDArray[np.bool_]) -> "Trace":
        """The readings that a mask keeps."""
        return replace(
            self,
            steps=self.steps[mask],
            clock=self.clock[mask],
            values=self.values[mask],
            attempts=self.attempts[mask],
        )


@dataclass(frozen=True, kw_only=True)
class Ready:
    """A run made ready.

    Attributes:
        traces: by signal.
        warnings: what was put right or left out, one sentence each.
        is_rl: rewards are logged, so that the loss hovers near zero by design.
    """

    traces: Mapping[str, Trace]
    warnings: tuple[str, ...]
    is_rl: bool

    @property
    def loss(self) -> Trace | None:
        """The training loss, if it is logged."""
        return self.traces.get("loss")

    @property
    def grad_norm(self) -> Trace | None:
        """The gradient norm, if it is logged and means something."""
        return self.traces.get("grad_norm")


def make_ready(run: LoggedRun) -> Ready:
    """Prepare a run: NaN that was printed as 0.0, stale, dead and loss-scaled norms."""
    traces = {name: Trace.of(series) for name, series in run.series.items() if len(series)}
    warnings: list[str] = []
    is_rl = any(word in name for name in traces for word in _REWARD_WORDS)
    _drop_dead_norm(traces, warnings)
    _mend_zero_loss(traces, warnings)
    _drop_stale_norms(traces, run, warnings)
    _unscale_norms(traces, warnings)
    return Ready(traces=traces, warnings=tuple(warnings), is_rl=is_rl)


def aligned(trace: Trace, other: Trace) -> tuple[Ints, Ints]:
    """Indices of the readings that two traces have at the same time."""
    _, mine, others = np.intersect1d(
        trace.clock, other.clock, assume_unique=True, return_indices=True
    )
    return mine, others


def _drop_dead_norm(traces: dict[str, Trace], warnings: list[str]) -> None:
    norm = traces.get("grad_norm")
    if norm is None or len(norm) < 5 or not norm.finite.all():
        return
    if (norm.values == norm.values[0]).all():
        level = norm.values[0]
        if level != 0:
            del traces["grad_norm"]
            warnings.append(f"the gradient norm is {level:g} in every reading: it is not measured")


def _mend_zero_loss(traces: dict[str, Trace], warnings: list[str]) -> None:
    """A loss of exactly 0.0 beside a gradient norm of NaN is a NaN that was filtered; one
    that falls to exactly 0.0 at once, for good, where no norm is logged, is taken for one."""
    loss, norm = traces.get("loss"), traces.get("grad_norm")
    if loss is None:
        return
    zero = loss.values == 0
    if not zero.any():
        return
    hidden = np.zeros(len(loss), np.bool_)
    if norm is not None:
        mine, others = aligned(loss, norm)
        hidden[mine] = zero[mine] & ~norm.finite[others]
    elif not zero.all():
        start = len(zero) - int(np.argmin(zero[::-1])) if zero[-1] else len(zero)
        before = loss.values[:start]
        if len(zero) - start >= 2 and np.nanmin(np.abs(before[-3:])) > _FAR:
            hidden[start:] = True
    if hidden.any():
        values = np.where(hidden, np.nan, loss.values)
        traces["loss"] = replace(loss, values=values)
        warnings.append(
            f"a loss of exactly 0.0 in {int(hidden.sum())} readings is taken for the NaN that "
            "some trainers print so"
        )


def _drop_stale_norms(traces: dict[str, Trace], run: LoggedRun, warnings: list[str]) -> None:
    """A norm that repeats to the last digit while steps are skipped was not measured anew."""
    norm = traces.get("grad_norm")
    skips = any(event.kind in (EventKind.OVERFLOW, EventKind.SKIPPED) for event in run.events)
    loss = traces.get("loss")
    if norm is None or len(norm) < 3:
        return
    if not skips and (loss is None or loss.finite.all()):
        return
    stale = np.concatenate(([False], norm.values[1:] == norm.values[:-1]))
    if stale.any() and norm.values[stale].max() != 0 and stale.mean() > 0.05:
        traces["grad_norm"] = norm.kept(~stale)
        warnings.append(f"{int(stale.sum())} gradient norms repeat the one before: left out")


def _unscale_norms(traces: dict[str, Trace], warnings: list[str]) -> None:
    """Divide norms by the loss scale where that makes them much steadier."""
    norm, scale = traces.get("grad_norm"), traces.get("loss_scale")
    if norm is None or scale is None:
        return
    mine, others = aligned(norm, scale)
    if len(mine) < 20:
        return
    scales, norms = scale.values[others], norm.values[mine]
    usable = (scales > 0) & (norms > 0) & np.isfinite(scales) & np.isfinite(norms)
    if usable.sum() < 20 or len(np.unique(scales[usable])) < 3:
        return
    logs, log_scales = np.log(norms[usable]), np.log(scales[usable])
    if _spread(logs - log_scales) < 0.5 * _spread(logs):
        values = np.full(len(norm), np.nan)
        values[mine[usable]] = norms[usable] / scales[usable]
        kept = np.isfinite(values)
        traces["grad_norm"] = replace(norm, values=values).kept(kept)
        warnings.append("the gradient norm is printed times the loss scale: it was divided by it")


def _spread(values: Floats) -> float:
    low, high = np.quantile(values, (0.1, 0.9))
    return float(high - low)
