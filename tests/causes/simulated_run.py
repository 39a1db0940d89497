"""A healthy run as its signals show it, with things that go wrong in it."""

from collections.abc import Sequence

import numpy as np

from foreshock.catalog import make, members
from foreshock.core.case import BatchFinding, Case
from foreshock.core.cause import Diagnosis, diagnose
from foreshock.monitor import Monitor

SIGNALS = ("loss", "grad_norm", "param_norm", "activation_norm", "lr", "loss_scale", "update_ratio")
SERIES = [f"{signal}/global" for signal in SIGNALS]
UPDATE_SERIES = frozenset({"param_norm/global", "update_ratio/global"})


class SimulatedRun:
    """`steps` healthy steps; `at` overwrites single values, `rows` reads them.

    `facts` are what is known of the run: nothing, as a rule.
    """

    def __init__(self, steps: int = 80, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        noise = rng.standard_normal((steps, len(SIGNALS)))
        level = np.array([2.5, 0.4, 30.0, 4.0, 1e-3, 65536.0, 2e-3])
        spread = np.array([0.04, 0.04, 0.01, 0.05, 0.0, 0.0, 1e-4])
        self.rows = level + spread * noise
        self.committed = np.ones(steps, bool)
        self.facts: dict[str, object] = {}

    def at(self, step: int, **values: float) -> "SimulatedRun":
        for signal, value in values.items():
            self.rows[step, SIGNALS.index(signal)] = value
        return self

    def times(self, first: int, **factors: float) -> "SimulatedRun":
        for signal, factor in factors.items():
            self.rows[first:, SIGNALS.index(signal)] *= factor
        return self

    def skipped(self, step: int) -> "SimulatedRun":
        self.committed[step] = False
        return self.at(step, update_ratio=0.0)

    def monitor(self, up_to: int) -> Monitor:
        """Watch the run by the standard rules up to a step, that step included."""
        found = Monitor(
            SERIES,
            update_series=UPDATE_SERIES,
            detectors=[make("detectors", name) for name in members("detectors")],
            causes=[make("causes", name) for name in members("causes")],
            quiet_steps=20,
        )
        for step, (committed, row) in enumerate(
            zip(self.committed[: up_to + 1], self.rows[: up_to + 1], strict=True)
        ):
            found.observe(1, step, bool(committed), row)
        return found

    def case(self, up_to: int, findings: Sequence[BatchFinding] | None = None) -> Case:
        """Of a run that one process trains from its first step on."""
        found = self.monitor(up_to)
        return Case(
            timeline=found.timeline,
            alarms=tuple(found.episode),
            facts=self.facts,
            batch_findings=findings,
            starts=(0,),
        )

    def diagnosed(self, up_to: int, findings: Sequence[BatchFinding] | None = None) -> Diagnosis:
        causes = [make("causes", name) for name in members("causes")]
        looks = [make("symptoms", name) for name in members("symptoms")]
        return diagnose(self.case(up_to, findings), causes, looks)
