"""A run at the edge of stability, in which only the seed decides what becomes of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np

from foreshock.core.errors import ConfigError
from foreshock.core.fault import ProgramFault
from foreshock.core.forced_settings import ForcedSettings
from foreshock.core.program import Program


@final
@dataclass(frozen=True, kw_only=True)
class EdgeRate(ProgramFault):
    """Train a run at `1 + intensity * (edge - 1)` times its rate, from the beginning on.

    Meant for a fresh run. The rate never jumps: the run was built so. Near the edge some seeds
    spike, and some of those come back; with a third of the rate none does.

    Args:
        intensity: 0 to 1; how near to the edge.
        edge: the factor at the edge, above 1; a property of the model, to be measured.

    Raises:
        ConfigError: an argument is out of its range.

    Measured on a GPT 64 wide on bytes (lr 6e-3, clip 1), fresh runs of 120 steps: up to 10
    times the rate no seed of three spikes, at 16 times two do, by 3 to 5 nats, and come back;
    the loss ends 0.4 above that of the usual rate. Put into a run that is under way, this is a
    jump of the rate and nothing else.

    Reference: runs of one configuration of which one diverged: Molybog et al. (2023), "A Theory
    on Adam Instability in Large-Scale Machine Learning", https://arxiv.org/abs/2304.09871.
    """

    name: ClassVar[str] = "edge_rate"
    cause: ClassVar[str] = "edge_of_stability"

    intensity: float = 1.0
    edge: float = 16.0

    def __post_init__(self) -> None:
        self.require_share("intensity")
        if not self.edge > 1:
            raise ConfigError(f"EdgeRate.edge is {self.edge}; it must be above 1.")

    def change(self, program: Program, rng: np.random.Generator) -> tuple[Program, str]:
        factor = 1.0 + self.intensity * (self.edge - 1.0)

        def raised(place: int, group: Mapping[str, Any]) -> dict[str, Any]:
            return {"lr": group["lr"] * factor}

        ForcedSettings(program.model, program.optimizer, raised)
        return program, f"the run is built with {factor:.3g} times the learning rate"
