"""A run's signals made ready for judgement: what only looks like a reading is put right first."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from foreshock.core.log import EventKind, Floats, Ints, LogEvent, LoggedRun, LogSeries

_REWARD_WORDS = (
    "reward", "advantage", "ppo", "returns", "clip_ratio", "completions", "cri_loss", "critic",
    "value_loss", "policy_loss", "grpo", "pg_loss",
)  # fmt: skip
_REWARDS = re.compile(r"(?:\A|_)(?:rew|rewards?|returns?|advantages?)(?:_|\Z)")
_REWARD_SPREAD = re.compile(r"(?:std|stdev|max|min|var|err)(?:_|\Z)")
_MEAN_EPOCHS, _MEAN_READINGS = 4, 6
_MEAN_RATIO, _MEAN_JUMP = 0.5, 3.0
"""What tells a mean of the epoch so far: late in an epoch it moves less than half as much as
early, and when the next one begins, three times as much."""

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

    def taken(self, places: Ints) -> "Trace":
        """The readings at some places, in order."""
        return replace(
            self,
            steps=self.steps[places],
            clock=self.clock[places],
            values=self.values[places],
            attempts=self.attempts[places],
        )

    def at(self, place: int) -> tuple[int, int]:
        """Step and time of a reading."""
        return int(self.steps[place]), int(self.clock[place])

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
        raw: the same as they are logged.
        warnings: what was put right or left out, one sentence each.
        is_rl: rewards are logged, so that the loss hovers near zero by design.
        reward_rose: over the run, so that a loss that grew (of values, say) is no harm.
    """

    traces: Mapping[str, Trace]
    raw: Mapping[str, Trace]
    warnings: tuple[str, ...]
    is_rl: bool
    reward_rose: bool = False

    @property
    def loss(self) -> Trace | None:
        """The training loss, if it is logged."""
        return self.traces.get("loss")

    @property
    def grad_norm(self) -> Trace | None:
        """The gradient norm, if it is logged and means something."""
        return self.traces.get("grad_norm")


def counted(number: int, thing: str) -> str:
    """A number of things.

    >>> counted(1, "reading"), counted(3, "reading")
    ('1 reading', '3 readings')
    """
    return f"{number} {thing}{'s' * (number != 1)}"


def time_of(event: LogEvent, run: LoggedRun) -> tuple[int, int]:
    """The step at which a log says something, and that on the log's clock; 0 where it has no
    readings at all."""
    lead = run.series.get("loss") or max(run.series.values(), key=len, default=None)
    if not lead:
        return event.step or 0, event.step or 0
    if event.line and lead.lines.any():
        place = int(np.searchsorted(lead.lines, event.line, side="right")) - 1
    else:
        reached = lead.steps <= (event.step if event.step is not None else lead.steps.max())
        place = len(lead) - 1 - int(np.argmax(reached[::-1])) if reached.any() else 0
    place = min(max(place, 0), len(lead) - 1)
    step = int(lead.steps[place]) if event.step is None else event.step
    return step, int(lead.clock[place])


def make_ready(run: LoggedRun) -> Ready:
    """Prepare a run: NaN that was printed as 0.0, stale, dead and loss-scaled norms."""
    traces = {name: Trace.of(series) for name, series in run.series.items() if len(series)}
    raw = dict(traces)
    warnings: list[str] = []
    names = [*traces, *(run.series[name].label.lower() for name in traces if name == "loss")]
    is_rl = any(
        _REWARDS.search(name) or any(word in name for word in _REWARD_WORDS) for name in names
    )
    _drop_dead_norm(traces, warnings)
    _mend_zero_loss(traces, warnings, is_rl=is_rl)
    _drop_stale_norms(traces, run, warnings)
    _unscale_norms(traces, warnings)
    _take_apart_means(traces, warnings)
    return Ready(
        traces=traces,
        raw=raw,
        warnings=tuple(warnings),
        is_rl=is_rl,
        reward_rose=is_rl and _reward_rose(traces),
    )


def tail_of(mask: NDArray[np.bool_]) -> int:
    """The place from which a mask is true to its end; its length if it does not end so.

    >>> [tail_of(np.array(mask)) for mask in ([True, False, True, True], [True, False], [True])]
    [2, 2, 0]
    """
    return 0 if mask.all() else len(mask) - int(np.argmin(mask[::-1]))


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


def _mend_zero_loss(traces: dict[str, Trace], warnings: list[str], *, is_rl: bool) -> None:
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
    elif not zero.all() and not is_rl:
        start = tail_of(zero)
        before = loss.values[:start]
        if len(zero) - start >= 2 and np.fmin.reduce(np.abs(before[-3:])) > _FAR:
            hidden[start:] = True
    if hidden.any():
        values = np.where(hidden, np.nan, loss.values)
        traces["loss"] = replace(loss, values=values)
        warnings.append(
            f"a loss of exactly 0.0 in {counted(int(hidden.sum()), 'reading')} is taken for the "
            "NaN that some trainers print so"
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
        warnings.append(
            f"{counted(int(stale.sum()), 'gradient norm')} the same as the one before: left out"
        )


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
        values[~norm.finite] = norm.values[~norm.finite]
        kept = np.isfinite(values) | ~norm.finite
        traces["grad_norm"] = replace(norm, values=values).kept(kept)
        warnings.append("the gradient norm is printed times the loss scale: it was divided by it")


def _reward_rose(traces: Mapping[str, Trace]) -> bool:
    """Whether the reward that is logged most often ended above where it began."""
    named = [
        trace
        for name, trace in traces.items()
        if _REWARDS.search(name) and not _REWARD_SPREAD.search(name)
    ]
    reward = max(named, key=len, default=None)
    if reward is None or int(reward.finite.sum()) < 9:
        return False
    values = reward.values[reward.finite]
    third = len(values) // 3
    return float(np.median(values[-third:])) > float(np.median(values[:third]))


def _take_apart_means(traces: dict[str, Trace], warnings: list[str]) -> None:
    """A loss that is printed as the mean of its epoch so far, as the means between readings.

    Such a mean begins anew with every epoch, from a few noisy batches, and hardly moves at
    the end of one: judged as it stands, the beginnings of epochs would look like spikes.
    """
    loss, epochs = traces.get("loss"), traces.get("epoch")
    if loss is None or epochs is None or len(loss) < _MEAN_EPOCHS * _MEAN_READINGS:
        return
    places = np.searchsorted(epochs.clock, loss.clock, side="right") - 1
    numbers = np.floor(epochs.values[np.maximum(places, 0)])
    anew = (np.diff(numbers) != 0) | (np.diff(loss.attempts) != 0)
    firsts = np.concatenate(([0], np.flatnonzero(anew) + 1))
    if len(firsts) < _MEAN_EPOCHS or len(loss) < _MEAN_READINGS * len(firsts):
        return
    sizes = np.diff(np.concatenate((firsts, [len(loss)])))
    start = np.repeat(firsts, sizes)
    share = (np.arange(len(loss)) - start) / np.repeat(sizes, sizes)
    offset = 1 if loss.steps[0] == 0 else loss.interval_steps
    num_batches = (loss.steps - loss.steps[start] + offset).astype(np.float64)
    sums = num_batches * loss.values
    apart = loss.values.copy()
    inner = np.flatnonzero(start != np.arange(len(loss)))
    with np.errstate(invalid="ignore", divide="ignore"):
        apart[inner] = (sums[inner] - sums[inner - 1]) / (
            num_batches[inner] - num_batches[inner - 1]
        )
    if not (np.isfinite(apart) | ~loss.finite | ~np.roll(loss.finite, 1)).all():
        return  # steps that stand still cannot be taken apart
    jumps = np.abs(np.diff(loss.values))[firsts[1:] - 1]
    printed = _late_to_early(loss.values, inner, share)
    if printed is None or not printed[0] < _MEAN_RATIO * printed[1]:
        return
    if not np.nanmedian(jumps) > _MEAN_JUMP * printed[0]:
        return
    steady = _late_to_early(apart, inner, share)
    if steady is None or not 1 / 3 < steady[0] / max(steady[1], 1e-300) < 3:
        return  # not a mean over the epoch after all, or printed with too few digits
    traces["loss"] = replace(loss, values=apart)
    warnings.append(
        "the loss is printed as the mean of its epoch so far: it was taken apart into the means "
        "between two readings"
    )


def _late_to_early(
    values: Floats, inner: NDArray[np.intp], share: Floats
) -> tuple[float, float] | None:
    """How much readings move late in an epoch, and early in it; None if nothing does."""
    moves = np.abs(values[inner] - values[inner - 1])
    where = share[inner]
    late, early = moves[where >= 2 / 3], moves[where <= 1 / 3]
    late, early = late[np.isfinite(late)], early[np.isfinite(early)]
    if not len(late) or not len(early) or not early.any():
        return None
    return float(np.median(late)), float(np.median(early))


def _spread(values: Floats) -> float:
    low, high = np.quantile(values, (0.1, 0.9))
    return float(high - low)
