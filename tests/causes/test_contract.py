"""What every cause keeps, present and future: found by looking into the folder."""

import dataclasses
import inspect
import math

import numpy as np
import pytest

from foreshock.catalog import members
from foreshock.core.case import BatchFinding, Case
from foreshock.core.detector import Alarm, AlarmKind
from foreshock.core.timeline import Timeline

CAUSES = members("causes")
every = pytest.mark.parametrize("name", CAUSES)

SERIES = [
    "loss/global", "grad_norm/global", "grad_norm/blocks.0.mlp", "update_ratio/global",
    "param_norm/global", "activation_norm/final", "lr/global", "loss_scale/global",
]  # fmt: skip
ODD = [0.0, -1.0, 1.0, 5e-324, 1e30, -1e30, 1.7e308, math.nan, math.inf, -math.inf]


def random_case(seed: int) -> Case:
    """Any timeline, short or long, sane or not, with any alarms on it or beside it."""
    rng = np.random.default_rng(seed)
    names = list(rng.permutation(SERIES)[: rng.integers(1, len(SERIES) + 1)])
    line = Timeline(names, capacity=int(rng.integers(1, 80)))
    steps = int(rng.integers(0, 90))
    for step in range(steps):
        row = rng.lognormal(0, 0.2, len(names))
        strange = rng.random(len(names)) < rng.choice([0.0, 0.02, 0.5])
        row[strange] = rng.choice(ODD, strange.sum())
        line.append(1, step, bool(rng.random() < 0.9), row)
    alarms = []
    for step in sorted(rng.integers(0, steps + 3, rng.integers(1, 6)).tolist()):
        value = float(rng.choice([*ODD, 9.0, 9.0, 9.0]))
        kind = AlarmKind.SPIKE if math.isfinite(value) else AlarmKind.NONFINITE
        onset = int(rng.integers(max(0, step - 10), step + 1))
        alarms.append(
            Alarm(kind=kind, detector="d", series=str(rng.choice(SERIES)), step=step,
                  onset_step=onset, value=value)
        )  # fmt: skip
    findings = [BatchFinding(statement=f"f{i}", strength=s) for i, s in enumerate([1.0, 3.0, 9.0])]
    return Case(
        timeline=line,
        alarms=alarms,
        facts={"has_scaler": bool(rng.integers(2))},
        batch_findings=[None, [], findings][int(rng.integers(3))],
        tried=["rollback"] * int(rng.integers(3)),
    )


@every
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_any_case_can_be_weighed_and_evidence_can_be_looked_up(name: str) -> None:
    cause = CAUSES[name]()
    said = 0
    for seed in range(400):
        case = random_case(seed)
        evidence = cause.weigh(case)
        assert repr(cause.weigh(case)) == repr(evidence), "the same case, the same evidence"
        for fact in evidence:
            said += 1
            assert fact.statement
            assert math.isfinite(fact.weight), (seed, fact)
            assert abs(fact.weight) <= 5
            for reading in fact.readings:
                found = case.timeline.readings(reading.series, reading.step, reading.step)
                assert repr(found) == repr([reading])
    assert said or name == "unknown"


@every
def test_it_explains_itself(name: str) -> None:
    kind = CAUSES[name]
    assert dataclasses.is_dataclass(kind)
    assert all(field.kw_only for field in dataclasses.fields(kind))
    with pytest.raises(dataclasses.FrozenInstanceError):
        kind().name = "other"
    for text in (kind.predicts, kind.contradicts, kind.settled_by):
        assert len(text.split()) >= 2
        assert not text.endswith(".")
    assert isinstance(kind.data_may_be_at_fault, bool)
    assert -5 <= kind.prior <= 0
    assert len((inspect.getdoc(kind) or "").split()) > 5


def test_the_two_that_must_always_be_candidates_are() -> None:
    assert {"unknown", "benign"} <= set(CAUSES)
    assert CAUSES["unknown"].prior == 0.0


def test_the_findings_of_a_batch_weigh_at_most_their_cap_together() -> None:
    finding = BatchFinding(statement="odd", strength=3.0)
    line = Timeline(["loss/global"])
    alarm = Alarm(kind=AlarmKind.SPIKE, detector="d", series="loss/global", step=1, onset_step=1,
                  value=9.0)  # fmt: skip
    case = Case(timeline=line, alarms=[alarm], batch_findings=[finding] * 3)
    facts = CAUSES["data_batch"]().weigh(case)
    assert [fact.weight for fact in facts] == [3.0, 1.0, 0.0]
