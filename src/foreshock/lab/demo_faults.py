"""The faults of the demo: real ones, whose place, kind and intensity a seed draws."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from foreshock.faults.crawl_shard import CrawlShard
from foreshock.faults.optimizer_moments import OptimizerMoments

STEPS = 320
"""Optimizer steps of a demo run."""

_POISON_STEPS = (110, 150)
_POISON_BATCHES = (15, 30)
_MOMENTS_STEPS = (225, 265)


@dataclass(frozen=True, kw_only=True)
class DemoFaults:
    """What goes wrong in one demo. Nothing of it is known to the Guard.

    Attributes:
        seed: what everything was drawn from.
        poison_step: batches before the poisoned stage of the stream.
        poison_batches: its length.
        shard: how its text is spoiled.
        moments_step: the step just before which the optimizer's state is damaged.
        moments: how.
    """

    seed: int
    poison_step: int
    poison_batches: int
    shard: CrawlShard
    moments_step: int
    moments: OptimizerMoments

    @classmethod
    def draw(cls, seed: int) -> "DemoFaults":
        """Draw the faults of a seed: only such as really hurt the run that is not guarded."""
        rng = np.random.default_rng([seed, 0xF0])
        mode = ("scaled", "zeroed", "embedding")[int(rng.integers(3))]
        low, high = {"scaled": (0.5, 1.0), "zeroed": (0.4, 1.0), "embedding": (0.85, 1.0)}[mode]
        return cls(
            seed=seed,
            poison_step=int(rng.integers(*_POISON_STEPS)),
            poison_batches=int(rng.integers(*_POISON_BATCHES)),
            shard=CrawlShard(
                intensity=float(rng.uniform(0.7, 1.0)), repetition=float(rng.uniform(0.2, 0.6))
            ),
            moments_step=int(rng.integers(*_MOMENTS_STEPS)),
            moments=OptimizerMoments(mode=mode, intensity=float(rng.uniform(low, high))),
        )

    def poison(self) -> dict[str, Any]:
        """The override that puts the poisoned stage into the program's stream."""
        return {
            "step": self.poison_step,
            "batches": self.poison_batches,
            "fault": self.shard,
            "seed": [self.seed, 0xDA],
        }

    def to_json(self) -> dict[str, Any]:
        """What was done to the run, for the end of the demo."""
        return {
            "seed": self.seed,
            "crawl_shard": {
                "first_step": self.poison_step + 1,
                "batches": self.poison_batches,
                "intensity": round(self.shard.intensity, 3),
                "repetition": round(self.shard.repetition, 3),
            },
            "optimizer_moments": {
                "step": self.moments_step,
                "mode": self.moments.mode,
                "intensity": round(self.moments.intensity, 3),
            },
        }
