"""Hand-made cases: a healthy run as its signals show it, with things that go wrong in it."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from foreshock.catalog import make, members
from foreshock.core.case import BatchFinding, Case, Change, Intervention
from foreshock.core.detector import Alarm, AlarmKind
from foreshock.core.names import STANDARD
from foreshock.core.reading import ABSENT
from foreshock.core.symptom import Look, Symptom
from foreshock.core.timeline import Timeline
from foreshock.monitor import Monitor

PARTS = ("embed", "blocks.0.attn", "blocks.0.mlp", "blocks.1.attn", "blocks.1.mlp", "head")
BLOCKS = ("blocks.0", "blocks.1")

WHOLE: Mapping[str, tuple[float, float]] = {
    "loss": (2.5, 0.04),
    "grad_norm": (0.4, 0.03),
    "update_ratio": (2e-3, 1e-4),
    "lr": (1e-3, 0.0),
    "update_norm": (0.06, 0.003),
    "param_norm": (30.0, 0.005),
    "activation_norm": (4.0, 0.05),
    "rms_t": (1.0, 0.04),
    "first_moment_norm": (0.15, 0.008),
    "second_moment_rms": (2e-4, 4e-6),
    "num_nonfinite_moments": (0.0, 0.0),
    "num_nonfinite_grads": (0.0, 0.0),
    "max_attention_logit": (8.0, 0.3),
    "attention_entropy": (3.0, 0.03),
    "log_z": (6.0, 0.1),
    "log_z_absmax": (9.0, 0.3),
    "max_output_logit": (12.0, 0.4),
    "output_entropy": (2.4, 0.03),
    "loss_largest_sample": (3.4, 0.15),
    "loss_sample_std": (0.4, 0.03),
    "loss_spread": (0.1, 0.02),
}
OF_PARTS: Mapping[str, tuple[float, float]] = {
    "grad_norm": (0.16, 0.012),
    "grad_share": (1 / 6, 0.01),
    "grad_rms_to_eps": (2e3, 150.0),
    "grad_absmax": (0.02, 0.002),
    "param_norm": (12.0, 0.002),
    "param_growth": (1.2, 0.001),
    "update_ratio": (2e-3, 1.2e-4),
    "update_norm": (0.024, 0.0014),
    "rms_t": (1.0, 0.07),
    "first_moment_norm": (0.06, 0.005),
    "second_moment_rms": (2e-4, 6e-6),
}
OF_BLOCKS: Mapping[str, tuple[float, float]] = {
    "activation_rms": (1.0, 0.02),
    "activation_absmax": (9.0, 0.4),
    "max_attention_logit": (7.0, 0.3),
    "attention_entropy": (3.0, 0.03),
}
LEVELS: dict[str, tuple[float, float]] = {
    **{f"{signal}/global": one for signal, one in WHOLE.items()},
    **{f"{signal}/{part}": one for signal, one in OF_PARTS.items() for part in PARTS},
    **{f"{signal}/{block}": one for signal, one in OF_BLOCKS.items() for block in BLOCKS},
}
PRINTED = ("loss", "grad_norm", "lr")
"""What a log prints."""
_OF_UPDATES = ("update_ratio", "update_norm", "param_norm", "rms_t")

Told = Sequence[Alarm | tuple[str, int]]


def whole(name: str) -> str:
    """`loss` is `loss/global`."""
    return name if "/" in name else f"{name}/global"


def alarm(series: str, step: int, **fields: Any) -> Alarm:
    """A spike of 9.0 that begins at its step, unless told otherwise."""
    value = fields.setdefault("value", 9.0)
    kind = AlarmKind.SPIKE if math.isfinite(value) else AlarmKind.NONFINITE
    told = {"kind": kind, "detector": "made", "onset_step": step, **fields}
    return Alarm(series=whole(series), step=step, **told)


class MadeRun:
    """`steps` healthy steps of every series above; what goes wrong is written into `rows`.

    Series are named `signal/scope`, or by their signal alone for that of the whole run.
    Every method gives the run itself.
    """

    def __init__(self, steps: int = 120, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.rows = {
            name: level + spread * rng.standard_normal(steps)
            for name, (level, spread) in LEVELS.items()
        }
        self.rows["num_updates/global"] = np.arange(1.0, steps + 1)
        self.first = 1000
        """The step of the first row: a run that has long begun."""
        self.committed = np.ones(steps, bool)
        self.kept = np.ones(steps, bool)
        self.due: dict[str, int] = {}

    def __getitem__(self, series: str) -> np.ndarray:
        return self.rows[whole(series)]

    def at(self, row: int, **values: float) -> "MadeRun":
        """Overwrite single values of the whole run at a row."""
        for signal, value in values.items():
            self[signal][row] = value
        return self

    def put(self, series: str, values: Any, first: int = 0, stop: int | None = None) -> "MadeRun":
        """Overwrite a series, or begin one, from one row to another."""
        rows = self.rows.setdefault(whole(series), np.zeros(len(self.kept)))
        rows[first:stop] = values
        return self

    def times(
        self, factor: Any, *series: str, first: int = 0, stop: int | None = None
    ) -> "MadeRun":
        """Multiply series, from one row to another."""
        for name in series:
            self[name][first:stop] *= factor
        return self

    def without(self, *signals: str) -> "MadeRun":
        """Take away all series of these signals, or single series."""
        gone = {name for name in self.rows if name in signals or name.split("/")[0] in signals}
        self.rows = {name: one for name, one in self.rows.items() if name not in gone}
        return self

    def only(self, *series: str) -> "MadeRun":
        """Keep these series alone."""
        self.rows = {whole(name): self[name] for name in series}
        return self

    def printed(self, every: int = 10) -> "MadeRun":
        """As a log has it: few series, every so many steps."""
        self.only(*PRINTED)
        self.kept[:] = np.arange(len(self.kept)) % every == 0
        return self

    def every(self, steps: int, *signals: str) -> "MadeRun":
        """Have all series of these signals at every so many steps only."""
        self.due |= dict.fromkeys(signals, steps)
        return self

    def skipped(self, *rows: int) -> "MadeRun":
        """These rows' updates were not made."""
        self.committed[list(rows)] = False
        for name in self.rows:
            if name.split("/")[0] in ("update_ratio", "update_norm"):
                self.rows[name][list(rows)] = 0.0
        return self

    def step(self, row: int) -> int:
        """The step of a row."""
        return self.first + row

    def timeline(self, last: int, dtype: "type[np.float32 | np.float64]" = np.float32) -> Timeline:
        """What has been recorded up to a row, that row included."""
        names = list(self.rows)
        line = Timeline(names, capacity=2048, dtype=dtype)
        table = np.array([self.rows[name][: last + 1] for name in names]).astype(dtype).T
        absent = ABSENT if dtype is np.float32 else np.nan
        for place, name in enumerate(names):
            every = self.due.get(name.split("/")[0], 1)
            table[np.arange(last + 1) % every != 0, place] = absent
        for row in np.flatnonzero(self.kept[: last + 1]).tolist():
            line.append(1, self.step(row), bool(self.committed[row]), table[row])
        return line

    def case(self, last: int, alarms: Told, **fields: Any) -> Case:
        """The case at a row; an alarm is `(series, row)`, which begins there, or a whole one."""
        told = [
            one if isinstance(one, Alarm) else alarm(one[0], self.step(one[1])) for one in alarms
        ]
        return Case(timeline=self.timeline(last), alarms=told, **fields)

    def seen(self, last: int, **fields: Any) -> Case:
        """The case at a row as the standard rules see it.

        Raises:
            ValueError: they raise no alarm.
        """
        names = list(self.rows)
        monitor = Monitor(
            names,
            update_series={name for name in names if name.split("/")[0] in _OF_UPDATES},
            detectors=[make("detectors", name) for name in members("detectors")],
            causes=[],
            quiet_steps=20,
        )
        for row in np.flatnonzero(self.kept[: last + 1]).tolist():
            values = [self.rows[name][row] for name in names]
            monitor.observe(1, self.step(row), bool(self.committed[row]), values)
        if not monitor.episode:
            raise ValueError("the rules see nothing")
        return Case(timeline=self.timeline(last), alarms=list(monitor.episode), **fields)


def healthy_with_an_outlier(seed: int = 0, row: int = 90) -> MadeRun:
    """One hard batch in a healthy run: a loss and a gradient norm too high, once."""
    run = MadeRun(seed=seed)
    return run.at(row, loss=2.5 + 0.04 * 12, grad_norm=0.4 * 1.6, loss_largest_sample=4.2)


def found(look: Look, case: Case) -> dict[str, Symptom]:
    """What a look finds, by name of the symptom."""
    symptoms = {one.name: one for one in look.look(case)}
    assert set(symptoms) <= set(look.usual)
    return symptoms


def degrees(look: Look, case: Case) -> dict[str, float]:
    """The degrees of what a look finds."""
    return {name: one.degree for name, one in found(look, case).items()}


ODD = [0.0, -1.0, 1.0, 5e-324, 1e30, -1e30, 1.7e308, math.nan, math.inf, -math.inf]
SCOPES = ["global", "global", "embed", "blocks.0.attn", "blocks.0.mlp", "blocks.0", "blocks.7.mlp"]


def random_case(seed: int) -> Case:
    """Any timeline, short or long, sane or not, with any alarms and any surroundings."""
    rng = np.random.default_rng(seed)
    signals = [name.name for name in STANDARD]
    names = {f"{s}/global" for s in ("loss", "grad_norm", "update_ratio", "lr", "param_norm")}
    names = {name for name in names if rng.random() < 0.8}
    count = int(rng.choice([1, 10, 80]))
    names |= {f"{rng.choice(signals)}/{rng.choice(SCOPES)}" for _ in range(count)}
    series = sorted(names)
    dtype = np.float32 if rng.random() < 0.7 else np.float64
    line = Timeline(series, capacity=int(rng.choice([3, 40, 300])), dtype=dtype)
    every, steps = int(rng.choice([1, 1, 10])), int(rng.choice([0, 1, 7, 60, 120]))
    start = int(rng.choice([0, 1, 5000]))
    strange = rng.choice([0.0, 0.02, 0.5])
    scale = rng.lognormal(0, 3, len(series))
    with np.errstate(all="ignore"):
        for row in range(steps):
            values = scale * rng.lognormal(0, 0.2 * (1 + 3 * (row > 50)), len(series))
            odd = rng.random(len(series)) < strange
            values[odd] = rng.choice(ODD, int(odd.sum()))
            values = values.astype(dtype)
            if dtype is np.float32:
                values[rng.random(len(series)) < 0.1] = ABSENT
            line.append(1, start + every * row, bool(rng.random() < 0.9), values)
    last = start + every * steps

    def near(reach: int = 20) -> int:
        return max(0, last - int(rng.integers(-3, reach)))

    def any_alarm() -> Alarm:
        step, value = near(), float(rng.choice([*ODD, 9.0, 9.0, 9.0]))
        kind = AlarmKind(str(rng.choice(list(AlarmKind)))) if math.isfinite(value) else "nonfinite"
        return Alarm(
            kind=AlarmKind(kind), detector="d", series=str(rng.choice([*series, "loss/global"])),
            step=step, onset_step=max(0, step - int(rng.integers(0, 100))), value=value,
            baseline=float(rng.choice(ODD)), threshold=float(rng.choice(ODD)),
        )  # fmt: skip

    def some(make: Any, most: int = 4) -> list[Any]:
        return [make() for _ in range(int(rng.integers(0, most)))]

    def by_step(alarms: list[Alarm]) -> list[Alarm]:
        return sorted(alarms, key=lambda one: one.step)

    kinds = ["configuration", "package", "environment", "code", "data", "world", "hardware"]
    findings = [BatchFinding(statement=f"f{i}", strength=s) for i, s in enumerate([1.0, 3.0, 9.0])]
    return Case(
        timeline=line,
        alarms=by_step([any_alarm(), *some(any_alarm, 6)]),
        advisories=by_step(some(any_alarm)),
        facts=[
            {},
            {"has_scaler": bool(rng.integers(2)), "precision": str(rng.choice(["fp16", "?"]))},
            {"precision": None, "harm": "retrieval fell", "num_parameters": 10},
        ][int(rng.integers(3))],
        batch_findings=[None, [], findings][int(rng.integers(3))],
        tried=some(lambda: str(rng.choice(["rollback", "lower_lr", "reset_moments"]))),
        starts=sorted([0, *some(near)]),
        changes=some(
            lambda: Change(step=near(), kind=str(rng.choice(kinds)), name="n", before="a", after="")
        ),
        interventions=some(
            lambda: Intervention(
                step=near(),
                action=str(rng.choice(["rollback", "skip_update", "scale_lr", "quarantine"])),
                helped=[None, True, False][int(rng.integers(3))],
            )
        ),
        findings=some(lambda: (near(), "the replicas of a weight differ")),
    )
