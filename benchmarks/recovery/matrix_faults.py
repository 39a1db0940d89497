"""What goes wrong in a trial of the fault matrix: kind, place and intensity, drawn from a seed.

The ranges are those in which the fault, left alone, does harm that can be seen, and no more: no
loss beyond what such a fault makes of it in a real run. `python -m benchmarks.recovery` reports
how much, in `unguarded`.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

import numpy as np

from benchmarks.recovery.matrix_program import BATCH_SIZE, Replaced, replace_steps
from foreshock.core.fault import DataFault, StateFault
from foreshock.core.program import Program
from foreshock.faults.crawl_shard import CrawlShard
from foreshock.faults.lr_jump import LrJump
from foreshock.faults.nan_burst import NanBurst
from foreshock.faults.optimizer_moments import OptimizerMoments
from foreshock.faults.weight_bit_flip import WeightBitFlip

FAULTS: Final = (
    "bad_region",
    "corrupted_moments",
    "lr_glitch",
    "nan_burst",
    "bit_flip",
    "high_lr",
)
_EARLIEST, _LATEST = 25, 50  # steps after the anchor: three snapshots of a live run lie between
_REGION_BATCHES = (8, 30)


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """One fault of the matrix.

    Attributes:
        kind: one of `FAULTS`.
        seed: what everything was drawn from.
        step: the first step that it touches.
        fault: the fault.
        num_steps: steps whose data it touches; 0 for faults of the state.
    """

    kind: str
    seed: int
    step: int
    fault: DataFault | StateFault
    num_steps: int = 0

    def replaced(self, program: Program) -> Replaced:
        """What the data has instead of what this clean program has."""
        if not isinstance(self.fault, DataFault):
            return {}
        fault, rng = self.fault, self._rng("data")
        steps = {self.step + n: BATCH_SIZE for n in range(self.num_steps)}
        return replace_steps(program, steps, lambda clean: fault.poison(clean, rng))

    def strike(self, program: Program) -> str:
        """Damage the state of a program that stands before `step`; what was done, in words."""
        if not isinstance(self.fault, StateFault):
            return ""
        return self.fault.inject(program.model, program.optimizer, self._rng("state"))

    def to_json(self) -> dict[str, Any]:
        """What was done to the run."""
        settings: Mapping[str, Any] = asdict(self.fault)
        told = {key: round(v, 4) if isinstance(v, float) else v for key, v in settings.items()}
        return {"fault": self.fault.name, "step": self.step, "steps": self.num_steps, **told}

    def _rng(self, what: str) -> np.random.Generator:
        return np.random.default_rng([self.seed, FAULTS.index(self.kind), len(what)])


def draw(kind: str, seed: int, anchor_step: int) -> Drawn:
    """The fault of this kind that a seed draws.

    Raises:
        ValueError: there is no such kind.
    """
    rng = np.random.default_rng([seed, FAULTS.index(kind)])
    step = anchor_step + int(rng.integers(_EARLIEST, _LATEST))
    num_steps = 0
    fault: DataFault | StateFault
    if kind == "bad_region":
        num_steps = int(rng.integers(*_REGION_BATCHES))
        intensity, repetition = rng.uniform(0.6, 1.0), rng.uniform(0.0, 1.0)
        fault = CrawlShard(intensity=float(intensity), repetition=float(repetition))
    elif kind == "corrupted_moments":
        mode: Literal["scaled", "zeroed"] = "scaled" if rng.random() < 0.5 else "zeroed"
        fault = OptimizerMoments(mode=mode, intensity=float(rng.uniform(0.5, 1.0)))
    elif kind == "lr_glitch":
        num_updates = int(rng.integers(3, 13))
        fault = LrJump(factor=float(np.exp(rng.uniform(*np.log((8, 40))))), num_updates=num_updates)
    elif kind == "nan_burst":
        place: Literal["backward", "forward"] = "backward" if rng.random() < 0.5 else "forward"
        fault = NanBurst(num_passes=int(rng.integers(2, 13)), place=place)
    elif kind == "bit_flip":
        # Three of four in the bit that does harm; the others must be left to heal.
        bits = 0 if rng.random() < 0.75 else int(rng.integers(1, 5))
        fault = WeightBitFlip(bits_below_top=bits)
    else:
        fault = LrJump(factor=float(np.exp(rng.uniform(*np.log((12, 40))))), num_updates=None)
    return Drawn(kind=kind, seed=seed, step=step, fault=fault, num_steps=num_steps)
