"""What is done to a run in each trial: fault, strength, place, and what a restart changed."""

import dataclasses
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

import numpy as np

from benchmarks.diagnosis.runs import ANCHOR_STEP, VARIANTS
from benchmarks.recovery.matrix_program import BATCH_SIZE, EXTRA_SAMPLES
from foreshock.catalog import make, members
from foreshock.core.case import Change
from foreshock.core.fault import DataFault, Fault, OrderFault

LEVELS: Final[Mapping[str, float]] = {"mild": 0.35, "medium": 0.65, "strong": 1.0}
"""Of a fault that has an intensity."""

BY_HAND: Final[Mapping[str, Mapping[str, Mapping[str, Any]]]] = {
    "lr_jump": {
        "mild": {"factor": 6.0, "num_updates": 8},
        "medium": {"factor": 12.0, "num_updates": None},
        "strong": {"factor": 30.0, "num_updates": None},
    },
    "nan_burst": {
        "mild": {"num_passes": 4},
        "medium": {"num_passes": 8},
        "strong": {"num_passes": 12},
    },
    "weight_bit_flip": {
        "mild": {"bits_below_top": 2},
        "medium": {"bits_below_top": 0},
        "strong": {"bits_below_top": 0},
    },
}
"""Settings of the faults that have no intensity; others come once, as they are by default."""

DRAWN: Final[Mapping[str, Mapping[str, tuple[float, float]]]] = {
    "crawl_shard": {"repetition": (0.0, 0.5)}
}
"""Further settings, drawn evenly from a range by the seed."""

HEALTHY: Final = ("healthy", "healthy_fp16", "unpredictable_batch", "restart")
"""Runs with which nothing is wrong: as they are; under a loss scale; one batch of which half is
clean samples that cannot be predicted; a restart with a change that does nothing. Faults whose
cause is `BENIGN` count with them."""
NEEDS_RANKS: Final = frozenset({"desynced_replica"})
"""Faults that one process cannot show."""
BENIGN: Final = "benign"

CALIBRATION_SEEDS: Final = range(5)
"""Tables may be calibrated on these, of the small size; all others only evaluate."""

_AT_START: Final = frozenset({"optimizer_state_lost", "schedule_lost"})
_FAULTS_AT_START: Final = frozenset({"sampler_lost"})
_OFTEN_AT_START: Final = frozenset(
    {"data_mix_change", "data_order", "loss_normalisation", "masking_or_labels", "logging_artefact"}
)
"""What comes with a start of the process by its nature, or as often as not. A fault that tells
of changes (`changes`) does too."""
_TELLING: Final[Mapping[str, tuple[str, str, str, str]]] = {
    "data_mix_change": ("data", "manifest", "9c1f", "77ab"),
    "data_order": ("data", "manifest", "9c1f", "77ab"),
    "loss_normalisation": ("code", "revision", "3f2a91c", "8be0d77"),
    "masking_or_labels": ("code", "revision", "3f2a91c", "8be0d77"),
    "logging_artefact": ("code", "revision", "3f2a91c", "8be0d77"),
}
"""What a start shows where a fault of this cause came with it, and does not say itself."""
_HARMLESS: Final = (
    ("code", "revision", "3f2a91c", "51d0e2b"),
    ("package", "tqdm", "4.66.1", "4.67.0"),
    ("environment", "LOG_LEVEL", "info", "debug"),
    ("configuration", "log_every", "10", "50"),
)
_UNCHANGED = 0.3  # share of starts that show no change, unless the fault tells of one

_EARLIEST, _LATEST = 12, 26  # steps after the anchor
_REGION_STEPS = (4, 30)
_ORDER_STEPS = (30, 80)
_OWN_SOURCE = 0.5  # share of faults of the data that come as a source of their own
_DISTRACTED = 0.2  # share of runs with a restart that has nothing to do with the trouble
_BEFORE = (2, 12)  # steps by which it comes before the strike


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One trial.

    Attributes:
        kind: name of a fault, or one of `HEALTHY`.
        level: one of `LEVELS`, or "as is".
        size: of the model.
        seed: what everything is drawn from.
        step: the first step that is touched.
        cause: what a diagnosis must name first.
        fault: the fault; None for a run with which nothing is wrong.
        settings: of the fault.
        num_steps: steps whose data it touches.
        own_source: whether these come from a source that was not there before.
        restart_after: the step after which the process was started anew, or None.
        changes: what that start shows as changed, if the fault does not tell it itself.
    """

    kind: str
    level: str
    size: str
    seed: int
    step: int
    cause: str
    fault: Fault | None
    settings: Mapping[str, Any]
    num_steps: int
    own_source: bool
    restart_after: int | None
    changes: tuple[Change, ...]

    @property
    def key(self) -> str:
        """Unique among trials."""
        return key_of(self.kind, self.level, self.size, self.seed)

    @property
    def variants(self) -> tuple[str, ...]:
        """Of the program, in the order in which they are tried."""
        first = "plain"
        if self.kind == "healthy_fp16" or "fp16" in self.cause:
            first = "fp16"
        elif self.cause == "warmup_too_short":
            first = "warming"
        return (first, *(one for one in VARIANTS if one != first))

    @property
    def is_healthy(self) -> bool:
        """Whether nothing is wrong."""
        return self.cause == BENIGN

    def rng(self, what: str) -> np.random.Generator:
        """A generator for one purpose."""
        return _rng(self.kind, self.seed, what)


def key_of(kind: str, level: str, size: str, seed: int) -> str:
    """The key under which a trial is kept."""
    return f"trial/{size}/{kind}/{level}/{seed:02d}"


def levels_of(kind: str) -> tuple[str, ...]:
    """The strengths at which a kind of trial is made."""
    if kind in HEALTHY:
        return ("as is",)
    if kind in BY_HAND:
        return tuple(BY_HAND[kind])
    names = {item.name for item in dataclasses.fields(members("faults")[kind])}
    return tuple(LEVELS) if "intensity" in names else ("as is",)


def plan_of(kind: str, level: str, size: str, seed: int) -> Plan:
    """Draw a trial; what is drawn is the same at every level and size.

    Raises:
        ConfigError: the fault does not allow these settings.
    """
    rng = _rng(kind, seed, "plan")
    step = ANCHOR_STEP + int(rng.integers(_EARLIEST, _LATEST))
    fault, settings, cause = None, {}, BENIGN
    if kind not in HEALTHY:
        settings = _settings(kind, level, seed, rng)
        fault = make("faults", kind, **settings)
        cause = fault.cause
    num_steps = 1 if cause == BENIGN else 0
    if isinstance(fault, DataFault) and cause != BENIGN:
        drawn = int(rng.integers(*_REGION_STEPS))
        num_steps = EXTRA_SAMPLES // BATCH_SIZE if cause == "data_mix_change" else drawn
    elif isinstance(fault, OrderFault):
        num_steps = int(rng.integers(*_ORDER_STEPS))
    own_source = isinstance(fault, DataFault) and cause != BENIGN
    own_source = own_source and (cause == "data_mix_change" or rng.random() < _OWN_SOURCE)
    restart_after, changes = _restart(kind, cause, fault, step, rng)
    return Plan(
        kind=kind,
        level=level,
        size=size,
        seed=seed,
        step=step,
        cause=cause,
        fault=fault,
        settings=settings,
        num_steps=num_steps,
        own_source=own_source,
        restart_after=restart_after,
        changes=changes,
    )


def _settings(kind: str, level: str, seed: int, rng: np.random.Generator) -> dict[str, Any]:
    """Strength by level; every choice among a few values by seed, so that all of them come."""
    found: dict[str, Any] = dict(BY_HAND.get(kind, {}).get(level, {}))
    fields = members("faults")[kind]
    hints = get_type_hints(fields)
    stride = 1
    for item in dataclasses.fields(fields):
        if item.name in found:
            continue
        if item.name == "intensity" and level in LEVELS:
            found[item.name] = LEVELS[level]
        elif get_origin(hints[item.name]) is Literal:
            choices = get_args(hints[item.name])
            found[item.name] = choices[seed // stride % len(choices)]
            stride *= len(choices)
    for name, (low, high) in DRAWN.get(kind, {}).items():
        found[name] = round(float(rng.uniform(low, high)), 4)
    return found


def _restart(
    kind: str, cause: str, fault: Fault | None, step: int, rng: np.random.Generator
) -> tuple[int | None, tuple[Change, ...]]:
    """Whether and where the process was started anew, and what that start shows.

    What has nothing to do with a start comes after one in a fifth of its trials, so that a
    start alone tells nothing.
    """
    own, shown = rng.random(), rng.random()
    before = int(rng.integers(*_BEFORE))
    harmless = _HARMLESS[rng.integers(len(_HARMLESS))]
    if kind == "restart":
        return step - 1, _changes(step - 1, harmless)
    if fault is None or cause == BENIGN:
        return None, ()
    if hasattr(fault, "changes"):
        return step - 1, ()
    at_start = cause in _AT_START or kind in _FAULTS_AT_START
    if at_start or (cause in _OFTEN_AT_START and own < 0.5):
        told = _TELLING.get(cause, harmless)
        return step - 1, () if shown < _UNCHANGED else _changes(step - 1, told)
    if own > 1 - _DISTRACTED:
        return step - before, _changes(step - before, harmless)
    return None, ()


def _changes(step: int, row: tuple[str, str, str, str]) -> tuple[Change, ...]:
    kind, name, before, after = row
    return (Change(step=step, kind=kind, name=name, before=before, after=after),)


def _rng(kind: str, seed: int, what: str) -> np.random.Generator:
    return np.random.default_rng([seed, zlib.crc32(kind.encode()), zlib.crc32(what.encode())])
