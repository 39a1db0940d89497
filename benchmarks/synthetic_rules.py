"""What takes part in the synthetic matrix: our detectors as one rule, and every peer's."""

import dataclasses
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from benchmarks.peers import all_peers
from benchmarks.peers.kill_loss_spike import KillLossSpike
from benchmarks.peers.peer import Flags, Peer, Trace
from foreshock import catalog
from foreshock.core.detector import Detector, ScalarDetector
from foreshock.core.errors import ConfigError

SCALES: dict[str, dict[str, float]] = {
    "spike": {"z": 0.0, "onset_z": 0.0},
    "spike_frequency": {"z": 0.0},
    "median_ratio": {"ratio": 1.0, "onset_ratio": 1.0},
    "elevation": {"ratio": 1.0},
    "drift": {"limit": 0.0, "limit_log": 0.0},
    "shift": {"z": 0.0, "share": 0.0},
    "divergence": {"share": 0.0, "gain_share": 0.0, "rise": 0.0, "z": 0.0},
}
"""Which fields of which detector are its alarm thresholds, and the value of each that means
no deviation at all: 0 for a number of deviations, 1 for a ratio. Tuning multiplies the
distance from there by one factor, the same for all. A detector that is not here keeps its
defaults (`nonfinite` has no threshold)."""

STRUCTURAL = frozenset({"plateau"})
"""Rules that watch these signals for something that none of the faults is."""

PLANNED_STEPS = 10_000
"""Length of the run, for a rule that asks for it; the same for all traces."""


class Rule(ABC):
    """Something that flags steps, and has one factor that says how readily."""

    name: str
    is_ours: bool = False

    @abstractmethod
    def scaled(self, factor: float) -> Self | None:
        """The same with its threshold `factor` times as far out; None if it cannot be."""

    @abstractmethod
    def prepare(self, loss: Trace, grad_norm: Trace) -> Any:
        """What does not depend on the factor, for many runs at once `[T, B]`."""

    @abstractmethod
    def decide(self, prepared: Any) -> Flags:
        """The flagged steps `[T, B]`."""

    def split(self) -> "list[Rule]":
        """The parts that alarm by themselves: each signal of a rule, each rule of a family."""
        return [self]


@dataclass(frozen=True)
class Union(Rule):
    """Parts of one rule, each with its own factor; alarms where any of them does."""

    parts: "tuple[Rule, ...]"
    name: str  # pyright: ignore[reportIncompatibleVariableOverride]
    is_ours: bool

    def scaled(self, factor: float) -> Self | None:
        parts = [part.scaled(factor) for part in self.parts]
        kept = tuple(part for part in parts if part is not None)
        return dataclasses.replace(self, parts=kept) if len(kept) == len(parts) else None

    def prepare(self, loss: Trace, grad_norm: Trace) -> Any:
        return self.parts[0].prepare(loss, grad_norm)

    def decide(self, prepared: Any) -> Flags:
        return np.asarray(np.logical_or.reduce(list(self.flags_by_part(prepared).values())))

    def flags_by_part(self, prepared: Any) -> dict[str, Flags]:
        """The flagged steps `[T, B]` of each part."""
        return {part.name: part.decide(prepared) for part in self.parts}


@dataclass(frozen=True)
class PeerRule(Rule):
    """A peer's rule, on the signals that it is meant for.

    Attributes:
        only: the one signal that it looks at, the others standing still; None for all.
    """

    peer: Peer
    only: str | None = None

    @property
    def name(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.peer.name if self.only is None else f"{self.peer.name}, {self.only}"

    def split(self) -> list[Rule]:
        return [dataclasses.replace(self, only=signal) for signal in self.peer.signals]

    def scaled(self, factor: float) -> Self:
        return dataclasses.replace(self, peer=self.peer.scaled(factor))

    def prepare(self, loss: Trace, grad_norm: Trace) -> Any:
        traces = {"loss": loss, "grad_norm": grad_norm}
        with np.errstate(all="ignore"):
            seen = {name: self.peer.prepare(name, traces[name]) for name in self.peer.signals}
            still = {
                name: self.peer.prepare(name, np.ones_like(traces[name]))
                for name in (self.peer.signals if len(self.peer.signals) > 1 else ())
            }
        return {"seen": seen, "still": still}

    def decide(self, prepared: Any) -> Flags:
        seen = prepared["seen"]
        if self.only is not None and prepared["still"]:
            seen = {**prepared["still"], self.only: seen[self.only]}
        with np.errstate(all="ignore"):
            return self.peer.decide(seen)


@dataclass(frozen=True)
class Family(Rule):
    """The union of our detectors on loss and gradient norm.

    Attributes:
        advisory: whether those take part that only report.
        factor: what every threshold in `SCALES` is multiplied by.
        only: the one detector and signal that it consists of; None for all.
    """

    advisory: bool = True
    factor: float = 1.0
    only: tuple[str, str] | None = None
    is_ours: bool = field(default=True, init=False)

    @property
    def name(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        if self.only is not None:
            return "/".join(self.only)
        return "foreshock" if self.advisory else "foreshock acting"

    def split(self) -> list[Rule]:
        return [
            dataclasses.replace(self, only=(name, signal))
            for name, detector in self.detectors().items()
            for signal in ("loss", "grad_norm")
            if signal in detector.watches
        ]

    def scaled(self, factor: float) -> Self | None:
        rule = dataclasses.replace(self, factor=self.factor * factor)
        try:
            rule.detectors()
        except ConfigError:
            return None
        return rule

    def detectors(self) -> dict[str, Detector]:
        """Our detectors on these signals, each with its thresholds scaled."""
        found: dict[str, Detector] = {}
        for name, kind in catalog.members("detectors").items():
            rule = kind()
            if name in STRUCTURAL or not {"loss", "grad_norm"} & set(rule.watches):
                continue
            if self.only is not None and name != self.only[0]:
                continue
            if self.advisory or not kind.advisory:
                moved = {
                    key: neutral + self.factor * (getattr(rule, key) - neutral)
                    for key, neutral in SCALES.get(name, {}).items()
                    if hasattr(rule, key)
                }
                found[name] = dataclasses.replace(rule, **moved)
        return found

    def prepare(self, loss: Trace, grad_norm: Trace) -> Any:
        """Each run only once, with the place where its flags go."""
        return {"loss": _distinct(loss), "grad_norm": _distinct(grad_norm)}

    def decide(self, prepared: Any) -> Flags:
        return np.asarray(np.logical_or.reduce(list(self.flags_by_detector(prepared).values())))

    def flags_by_detector(self, prepared: Any) -> dict[str, Flags]:
        """The flagged steps `[T, B]` of each detector, over both signals."""
        found: dict[str, Flags] = {}
        for name, detector in self.detectors().items():
            parts = [
                _flags(detector, signal, *runs)
                for signal, runs in prepared.items()
                if signal in detector.watches and self.only in (None, (name, signal))
            ]
            found[name] = np.asarray(np.logical_or.reduce(parts))
        return found


def _distinct(values: Trace) -> tuple[Trace, list[int]]:
    known: dict[bytes, int] = {}
    places = [
        known.setdefault(np.ascontiguousarray(values[:, run]).tobytes(), len(known))
        for run in range(values.shape[1])
    ]
    first = {place: run for run, place in reversed(list(enumerate(places)))}
    return values[:, [first[place] for place in range(len(known))]], places


def _flags(detector: Detector, signal: str, values: Trace, places: list[int]) -> Flags:
    """The flagged steps of each run; one at a time for a rule that may compare series."""
    flags = np.zeros(values.shape, dtype=bool)
    steps, runs = np.arange(len(values)), range(values.shape[1])
    together = isinstance(detector, ScalarDetector)
    for chosen in [list(runs)] if together else [[run] for run in runs]:
        names = [f"{signal}/run{run}" if together else f"{signal}/global" for run in chosen]
        column = dict(zip(names, chosen, strict=True))
        _, alarms = detector.update(detector.init(names), steps, values[:, chosen])
        for alarm in alarms:
            flags[alarm.step, column[alarm.series]] = True
    return flags[:, places]


def all_rules() -> dict[str, Rule]:
    """Ours first, then every peer's, by name."""
    rules: list[Rule] = [Family(), Family(advisory=False)]
    for peer in all_peers().values():
        is_planned = isinstance(peer, KillLossSpike)
        rules.append(
            PeerRule(dataclasses.replace(peer, total_steps=PLANNED_STEPS) if is_planned else peer)
        )
    return {rule.name: rule for rule in rules}
