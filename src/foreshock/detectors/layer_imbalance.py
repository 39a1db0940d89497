"""Alarm on one module group that takes over the gradient."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from foreshock.core.detector import (
    ONSET_REACH_STEPS,
    Alarm,
    AlarmKind,
    Detector,
    Steps,
    Threshold,
    Values,
)
from foreshock.core.errors import ConfigError
from foreshock.core.names import GLOBAL, split_series

_ROWS, _STRIDE, _EVERY = 32, 4, 32
"""Rows of shares remembered, readings between two of them, and between two medians."""

Shares = NDArray[np.float64]


@dataclass(slots=True)
class ImbalanceState:
    """Memory of the imbalance rule: all scopes together.

    Attributes:
        series: names of all columns.
        watched: those that are a share of the whole.
        rows: `[32, W]` shares at every fourth accepted reading, a ring.
        num_accepted: readings accepted since the rule began to learn.
        usual: `[W]` median share of each watched scope.
        flagged: `[32, W]` the same of the readings flagged in a row.
        num_flagged: how many there are.
        since: step of the first of them.
    """

    series: list[str]
    watched: NDArray[np.int64]
    rows: Shares
    usual: Shares
    flagged: Shares
    num_accepted: int = 0
    num_flagged: int = 0
    since: int = 0


@dataclass(frozen=True, kw_only=True)
class LayerImbalance(Detector):
    """Alarm on a scope whose share of the squared gradient norm is not its usual one.

        share = norm² / sum of norm² over all scopes
        share > most   while its usual share was below most / 2, or
        share > jump² * usual   and share > least

    `usual` is the median of its share over the last 128 accepted readings. A share ignores
    what all scopes do together, so a spike of the whole gradient is no imbalance; that is
    left to the rules on the global norm.

    Args:
        most: 0.9: one group decides the direction of the whole update.
        jump: tenfold norm against the rest of the model. Lower sees more, and the small
            groups of a healthy run vary by three.
        least: a tenth of the whole: below it a group, however odd, moves little.
        rebaseline_after_steps: consecutive flagged readings after which the shares are the
            new normal, reported once as a shift.

    A reading with a NaN, an Inf or a negative norm in any scope has no shares: it is passed
    over, and NaN and Inf are left to `nonfinite`. Shapes: values `[T, S]`, of which the scope
    `global` is left out. With fewer than two scopes nothing is judged. Under 100 µs a step for
    1,000 scopes.

    >>> import numpy as np
    >>> rule = LayerImbalance()
    >>> values = np.tile([1.0, 2.0, 2.0], (40, 1))
    >>> values[38, 0] = 30.0
    >>> names = ["grad_norm/embed", "grad_norm/blocks.0.mlp", "grad_norm/blocks.1.mlp"]
    >>> _, alarms = rule.update(rule.init(names), np.arange(40), values)
    >>> [(alarm.step, alarm.series, round(alarm.baseline, 2)) for alarm in alarms]
    [(38, 'grad_norm/embed', 10.04)]

    Raises:
        ConfigError: a setting is out of its range.

    No source: our choice. GLM-130B (Zeng et al. 2022, section 3.3) saw the embedding's gradient
    norm far above the rest before its collapses, which no rule on the global norm can tell.
    """

    name: ClassVar[str] = "layer_imbalance"
    advisory: ClassVar[bool] = True
    looks_across: ClassVar[bool] = True
    watches: tuple[str, ...] = ("grad_norm",)
    every_scope: bool = True
    most: float = 0.9
    jump: float = 10.0
    least: float = 0.1
    rebaseline_after_steps: int = 100

    def __post_init__(self) -> None:
        for name in ("most", "least"):
            if not 0 < getattr(self, name) < 1:
                raise ConfigError(
                    f"layer_imbalance.{name} is {getattr(self, name)}; it must be in (0, 1)"
                )
        self.require_above_one("jump")
        self.require_at_least(1, "rebaseline_after_steps")

    def init(self, series: Sequence[str]) -> ImbalanceState:
        places = [at for at, name in enumerate(series) if split_series(name)[1] != GLOBAL]
        shape = (_ROWS, len(places))
        return ImbalanceState(
            series=list(series),
            watched=np.array(places, dtype=np.int64),
            rows=np.zeros(shape),
            usual=np.zeros(len(places)),
            flagged=np.zeros(shape),
        )

    def update_step(
        self, state: ImbalanceState, step: int, row: list[float]
    ) -> tuple[ImbalanceState, list[Alarm]]:
        if len(state.watched) < 2:  # nothing to compare: the usual case of a live run
            return state, []
        return super().update_step(state, step, row)

    def update(
        self, state: ImbalanceState, steps: Steps, values: Values
    ) -> tuple[ImbalanceState, list[Alarm]]:
        if values.shape != (len(steps), len(state.series)):
            raise ValueError(
                f"{self.name}: values have shape {values.shape}, expected "
                f"({len(steps)} steps, {len(state.series)} series)"
            )
        if len(state.watched) < 2:
            return state, []
        norms = np.ascontiguousarray(values[:, state.watched])
        fit = (np.isfinite(norms) & (norms >= 0)).all(axis=1) & (norms.max(axis=1) > 0)
        if not fit.all():
            norms, steps = norms[fit], steps[fit]
        alarms: list[Alarm] = []
        row = 0
        while row < len(steps):
            # Up to the next median nothing changes, so these rows can be judged together.
            end = row + _EVERY - state.num_accepted % _EVERY
            shares, over = self._judge(state, norms[row:end])
            bad = over.any(axis=1)
            calm = int(np.argmax(bad)) if bad.any() else len(shares)
            if calm:
                self._accept(state, shares[:calm])
                row += calm
            else:
                alarms += self._flag(state, int(steps[row]), norms[row], shares[0], over[0])
                row += 1
        return state, alarms

    def thresholds(self, state: ImbalanceState) -> list[Threshold]:
        missing = 0 if len(state.watched) < 2 else max(_EVERY - state.num_accepted, 0)
        told = math.nan if missing else math.inf
        known = {
            int(at): share for at, share in zip(state.watched, state.usual.tolist(), strict=True)
        }
        return [
            Threshold(math.nan if missing else known[at], told, missing)
            if at in known
            else Threshold(math.nan, math.inf, 0)
            for at in range(len(state.series))
        ]

    def _judge(self, state: ImbalanceState, norms: Values) -> tuple[Shares, NDArray[np.bool_]]:
        squares = np.square(norms / norms.max(axis=1, keepdims=True))
        shares = squares / squares.sum(axis=1, keepdims=True)
        if state.num_accepted < _EVERY:
            return shares, np.zeros(shares.shape, dtype=np.bool_)
        usual = state.usual
        most = np.where(usual < self.most / 2, self.most, math.inf)
        jump = np.maximum(self.jump * self.jump * usual, self.least)
        return shares, shares > np.minimum(most, jump)

    def _accept(self, state: ImbalanceState, shares: Shares) -> None:
        """Take in rows, of which none but the last may complete a refresh."""
        first = -state.num_accepted % _STRIDE
        kept = shares[first::_STRIDE]
        place = (state.num_accepted + first) // _STRIDE
        state.rows[(place + np.arange(len(kept))) % _ROWS] = kept
        state.num_accepted += len(shares)
        state.num_flagged = 0
        if state.num_accepted % _EVERY == 0:
            state.usual = np.median(state.rows[: state.num_accepted // _STRIDE], axis=0)

    def _flag(
        self,
        state: ImbalanceState,
        step: int,
        norms: Shares,
        shares: Shares,
        over: NDArray[np.bool_],
    ) -> list[Alarm]:
        if state.num_flagged == 0:
            state.since = step
        state.flagged[state.num_flagged // _STRIDE % _ROWS] = shares
        state.num_flagged += 1
        kind, usual = AlarmKind.IMBALANCE, state.usual
        if state.num_flagged >= self.rebaseline_after_steps:
            kind = AlarmKind.SHIFT
            count = min(-(-state.num_flagged // _STRIDE), _ROWS)
            state.rows[:] = np.median(state.flagged[:count], axis=0)
            state.usual = state.rows[0].copy()
            state.num_flagged = 0
        with np.errstate(over="ignore"):
            expected = norms.max() * np.sqrt(usual / shares.max())
        return [
            Alarm(
                kind=kind,
                detector=self.name,
                series=state.series[int(state.watched[at])],
                step=step,
                onset_step=max(state.since, step - ONSET_REACH_STEPS),
                value=float(norms[at]),
                baseline=float(expected[at]),
            )
            for at in np.flatnonzero(over)
        ]
