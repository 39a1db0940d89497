"""The faults of the demo: real ones, whose place, kind and intensity a seed draws."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from foreshock.faults.crawl_shard import CrawlShard
from foreshock.faults.optimizer_moments import Mode, OptimizerMoments

STEPS = 320
"""Optimizer steps of a demo run."""

_POISON_STEPS = (110, 150)
_POISON_BATCHES = (15, 30)
_HARM_STEPS = 25
_MOMENTS_STEPS = (215, 250)


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
        """Draw the faults of a seed.

        Within ranges in which each fault, left alone, keeps the held-out loss more than 0.1
        nats above the untouched twin's for at least ten steps (measured on this program).
        """
        rng = np.random.default_rng([seed, 0xF0])
        mode: Mode = ("scaled", "zeroed")[int(rng.integers(2))]
        return cls(
            seed=seed,
            poison_step=int(rng.integers(*_POISON_STEPS)),
            poison_batches=int(rng.integers(*_POISON_BATCHES)),
            shard=CrawlShard(
                intensity=float(rng.uniform(0.6, 1.0)), repetition=float(rng.uniform(0.0, 1.0))
            ),
            moments_step=int(rng.integers(*_MOMENTS_STEPS)),
            moments=OptimizerMoments(mode=mode, intensity=float(rng.uniform(0.6, 1.0))),
        )

    def is_after_one(self, step: int) -> bool:
        """Whether a step lies within the time in which a fault does its harm."""
        data = self.poison_step < step <= self.poison_step + self.poison_batches + _HARM_STEPS
        return data or self.moments_step <= step < self.moments_step + _HARM_STEPS

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
