"""Traces of loss and gradient norm with noise of three kinds, and the faults put into them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Trace = NDArray[np.float64]

NAMES = ("loss", "grad_norm")

LEVEL, NOISE = 2.5, 0.02
"""Loss and its noise, as robust standard deviation."""

NORM_NOISE = 0.1
"""Noise of the logarithm of the gradient norm, whose level is 1."""

NUM_STEPS, FAULT_STEP = 3000, 1500
TOLERANCE_STEPS = 20
"""A flag this much after a short fault still counts, and what follows later is a false one."""

_BLOCK_STEPS = 50


@dataclass(frozen=True, kw_only=True)
class Residuals:
    """What real series did around their rolling medians, each series with unit deviation.

    Attributes:
        loss: `[N]`.
        grad_norm: `[M]`, of its logarithm; those of the loss stand in where there are none.
        norm_deviation: what the logarithm of those norms deviated by.
    """

    loss: Trace
    grad_norm: Trace | None = None
    norm_deviation: float = NORM_NOISE


class Noise:
    """Unit noise of one kind: its robust standard deviation is 1.

    Args:
        kind: `gauss`, `t3` (Student with 3 degrees of freedom) or `real`.
        residuals: for `real`, drawn in blocks of 50. Without them it is an AR(1) process
            with t4 innovations, and called so.
    """

    def __init__(self, kind: str, residuals: Residuals | None = None) -> None:
        self.kind = kind
        self.residuals = residuals
        self.norm_deviation = residuals.norm_deviation if residuals else NORM_NOISE
        self.label = kind
        if kind == "real":
            self.label = "AR(1)+t4"
            if residuals is not None:
                self.label = f"real ({len(residuals.loss)} residuals of losses"
                if residuals.grad_norm is not None:
                    self.label += f", {len(residuals.grad_norm)} of norms"
                self.label += ")"
        random = np.random.default_rng(0)
        self._units = {
            signal: robust_deviation(self._raw(signal, (200_000, 1), random)) for signal in NAMES
        }

    def draw(self, signal: str, shape: tuple[int, int], random: np.random.Generator) -> Trace:
        """Noise `[T, B]` for `loss`, or for the logarithm of `grad_norm`."""
        return self._raw(signal, shape, random) / self._units[signal]

    def _raw(self, signal: str, shape: tuple[int, int], random: np.random.Generator) -> Trace:
        if self.kind == "gauss":
            return random.standard_normal(shape)
        if self.kind == "t3":
            return random.standard_t(3, shape)
        if self.residuals is not None:
            norms = self.residuals.grad_norm
            source = self.residuals.loss if signal == "loss" or norms is None else norms
            num_blocks = -(-shape[0] // _BLOCK_STEPS)
            last = max(len(source) - _BLOCK_STEPS, 0) + 1
            starts = random.integers(0, last, (num_blocks, 1, shape[1]))
            places = (starts + np.arange(_BLOCK_STEPS)[:, None]).reshape(-1, shape[1])
            return source[places[: shape[0]] % len(source)]
        values = random.standard_t(4, shape)
        for step in range(1, len(values)):
            values[step] += 0.3 * values[step - 1]
        return values


def robust_deviation(values: Trace) -> float:
    """The median absolute deviation, as the standard deviation of a Gaussian."""
    return 1.4826 * float(np.median(np.abs(values - np.median(values))))


def around_median(series: Sequence[float] | Trace, window: int = 51) -> Trace:
    """The residuals of a real series around its centred rolling median, non-finite left out."""
    values = np.asarray(series, dtype=np.float64)
    values = values[np.isfinite(values)]
    windows = np.lib.stride_tricks.sliding_window_view(values, window)
    half = window // 2
    return values[half : half + len(windows)] - np.median(windows, axis=-1)


def load_residuals(where: Path) -> Residuals:
    """Residuals from an `.npy` file, a text file of one number a line, or a folder of those.

    A file whose name begins with `grad_norm` holds those of the logarithm of a norm. Each
    file is brought to unit robust deviation, so that none drowns the others.
    """
    found: dict[str, list[Trace]] = {"loss": [], "grad_norm": []}
    spreads: dict[str, list[float]] = {"loss": [], "grad_norm": []}
    for file in sorted(where.iterdir()) if where.is_dir() else [where]:
        if file.suffix not in {".npy", ".txt"}:
            continue
        values = np.load(file) if file.suffix == ".npy" else np.loadtxt(file, ndmin=1)
        values = values[np.isfinite(values)]
        spread = robust_deviation(values) if len(values) else 0.0
        if spread > 0:
            signal = "grad_norm" if file.name.startswith("grad_norm") else "loss"
            found[signal].append((values - np.median(values)) / spread)
            spreads[signal].append(spread)
    if not found["loss"]:
        raise SystemExit(f"{where} holds no .npy or .txt file of residuals of a loss")
    if not found["grad_norm"]:
        return Residuals(loss=np.concatenate(found["loss"]))
    return Residuals(
        loss=np.concatenate(found["loss"]),
        grad_norm=np.concatenate(found["grad_norm"]),
        norm_deviation=float(np.median(spreads["grad_norm"])),
    )


def clean(noise: Noise, num_steps: int, seeds: Sequence[int]) -> tuple[Trace, Trace]:
    """Loss and gradient norm `[T, B]`, nothing wrong; every other run falls slowly."""
    loss, norm = np.empty((num_steps, len(seeds))), np.empty((num_steps, len(seeds)))
    fall = 1 / np.sqrt(1 + np.arange(num_steps) / 200)
    for place, seed in enumerate(seeds):
        random = np.random.default_rng([seed, num_steps])
        around = {name: noise.draw(name, (num_steps, 1), random)[:, 0] for name in NAMES}
        loss[:, place] = LEVEL + NOISE * around["loss"] + (seed % 2) * fall
        norm[:, place] = np.exp(noise.norm_deviation * around["grad_norm"])
    return loss, norm


Change = Callable[[Trace, Trace], None]
"""Puts a fault into the loss and the gradient norm, `[T, B]`, from `FAULT_STEP` on."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One column of the matrix.

    Attributes:
        name: what is done to which signal.
        change: does it, in place.
        lasts: steps that it lasts; 0 if for good.
        begins: steps after `FAULT_STEP` from which on it is to be found.
        within: steps in which a flag counts as finding it.
    """

    name: str
    change: Change
    lasts: int = 1
    begins: int = 0
    within: int = TOLERANCE_STEPS


def cases() -> dict[str, Case]:
    """Every column by name; `nothing` says how often chance alone finds something."""
    found = [Case(name="nothing", change=lambda *_: None, lasts=0, within=300)]
    for size in (6, 10, 20, 25):
        name = f"loss +{size} sd, 1 step" if size < 25 else "loss x1.2, 1 step"
        found.append(Case(name=name, change=_bump(1, size)))
    found.append(Case(name="+10 sd & norm x2, 1 step", change=_bump(1, 10, norm=2)))
    for width, sizes in ((3, (6, 15)), (10, (4, 10)), (30, (3, 8))):
        for size in sizes:
            found.append(_hump(f"loss +{size} sd, {width} steps", width, size))
        name = f"+{sizes[1]} sd & norm x2, {width} steps"
        found.append(_hump(name, width, sizes[1], norm=2))
    for size in (3, 5, 15):
        name = f"loss +{size} sd for good" if size < 15 else "loss +0.3 for good"
        found.append(Case(name=name, change=_ramp(1, size * NOISE), lasts=0, within=300))
    for rise, length in ((2.0, 100), (2.0, 500), (2.0, 1000), (0.5, 1000), (0.2, 1000)):
        name = f"loss +{rise} over {length}"
        found.append(
            Case(name=name, change=_ramp(length, rise), lasts=0, within=length + length // 5)
        )
    found += [
        Case(name="norm x5, 1 step", change=_bump(1, 0, norm=5)),
        Case(name="norm x2, 1 step", change=_bump(1, 0, norm=2)),
        Case(name="norm x3, 10 steps", change=_bump(10, 0, norm=3), lasts=10, within=30),
        Case(name="norm x2 for good", change=_ramp(1, 0, norm=2), lasts=0, within=300),
        Case(name="norm x3 over 500", change=_ramp(500, 0, norm=3), lasts=0, within=600),
        Case(name="NaN loss, 1 step", change=_nan(1, norm=False)),
        Case(name="NaN norm, 1 step", change=_nan(1, loss=False)),
        Case(name="NaN both, 1 step", change=_nan(1)),
        Case(name="NaN loss for good", change=_nan(None, norm=False), lasts=0),
        Case(name="NaN, later loss x1.2", change=_nan_then_bump, lasts=51, begins=50),
    ]
    return {case.name: case for case in found}


def _hump(name: str, width: int, size: float, norm: float = 1.0) -> Case:
    change = _bump(width, size, norm=norm)
    return Case(name=name, change=change, lasts=width, within=width + TOLERANCE_STEPS)


def _bump(width: int, size: float, norm: float = 1.0) -> Change:
    """A half sine of `size` deviations on the loss, and of a factor `norm` on the norm."""
    shape = np.sin(np.pi * (np.arange(width) + 0.5) / width)[:, None]
    where = slice(FAULT_STEP, FAULT_STEP + width)

    def change(loss: Trace, grad_norm: Trace) -> None:
        if size == 25:
            loss[where] *= 1.2
        else:
            loss[where] += size * NOISE * shape
        grad_norm[where] *= norm if not size else norm**shape

    return change


def _ramp(length: int, rise: float, norm: float = 1.0) -> Change:
    """A climb by `rise` within `length` steps that stays; the norm climbs by a factor."""

    def change(loss: Trace, grad_norm: Trace) -> None:
        share = np.minimum(np.arange(1, len(loss) - FAULT_STEP + 1) / length, 1)[:, None]
        loss[FAULT_STEP:] += rise * share
        grad_norm[FAULT_STEP:] *= norm**share

    return change


def _nan(width: int | None, *, loss: bool = True, norm: bool = True) -> Change:
    where = slice(FAULT_STEP, None if width is None else FAULT_STEP + width)

    def change(loss_values: Trace, grad_norm: Trace) -> None:
        if loss:
            loss_values[where] = np.nan
        if norm:
            grad_norm[where] = np.nan

    return change


def _nan_then_bump(loss: Trace, grad_norm: Trace) -> None:
    """One NaN in both; does the rule still see an outlier fifty steps later?"""
    loss[FAULT_STEP] = grad_norm[FAULT_STEP] = np.nan
    loss[FAULT_STEP + 50] *= 1.2
