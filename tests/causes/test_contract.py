"""What every cause keeps, present and future: found by looking into the folder."""

import dataclasses
import inspect
import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from foreshock.catalog import make, members
from foreshock.core.case import BatchFinding, Case, Change, Intervention
from foreshock.core.cause import Born
from foreshock.core.detector import Alarm, AlarmKind
from foreshock.core.experiment import Result
from foreshock.core.symptom import MOST, observe
from foreshock.core.timeline import Timeline

CAUSES = members("causes")
NAMED = (
    "attention_logit_growth", "output_logit_drift", "stale_second_moment", "update_norm_growth",
    "tiny_gradients_vs_epsilon", "embedding_gradient", "data_batch", "repeated_text",
    "data_mix_change", "data_order", "fp16_forward_overflow", "fp16_gradient_overflow",
    "numeric_overflow", "low_precision_numerics", "loss_precision", "optimizer_state_lost",
    "optimizer_state_corrupt", "schedule_lost", "lr_too_high", "warmup_too_short",
    "weight_corruption", "masking_or_labels", "loss_normalisation", "rank_desync",
    "reduction_precision", "resume_mismatch", "changed_environment", "logging_artefact",
    "edge_of_stability", "benign", "unknown",
)  # fmt: skip
TELLING = [name for name in CAUSES if name != "unknown"]
every = pytest.mark.parametrize("name", CAUSES)
telling = pytest.mark.parametrize("name", TELLING)

OUTCOMES: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(
        ["replay", "earlier_state", "other_batch", "left_out", "reseeded", "clean_control"],
        frozenset({"comes_back", "stays_away"}),
    ),
    **dict.fromkeys(
        ["fp32_forward", "fp64_attention", "fp64_loss", "lower_rate", "fresh_moments"],
        frozenset({"cured", "not_cured"}),
    ),
    "repaired_moments": frozenset({"cured", "not_cured"}),
    "bisection": frozenset({"few_samples", "many_samples", "none_needed"}),
    "other_split": frozenset({"same", "differs"}),
    "twice": frozenset({"same_bits", "differs"}),
    "eager": frozenset({"same", "differs"}),
    "inspection": frozenset({"sound", "moments_damaged", "weights_damaged"}),
}

SERIES = [
    "loss/global", "grad_norm/global", "grad_norm/blocks.0.mlp", "grad_share/embedding",
    "update_ratio/global", "param_norm/global", "activation_norm/final", "lr/global",
    "loss_scale/global", "rms_t/global", "first_moment_norm/global", "second_moment_rms/global",
    "max_attention_logit/global", "log_z/global", "num_updates/global",
]  # fmt: skip
ODD = [0.0, -1.0, 1.0, 5e-324, 1e30, -1e30, 1.7e308, math.nan, math.inf, -math.inf]
NUM_CASES = 150


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
    chosen = [name for name in OUTCOMES if rng.random() < 0.3]
    return Case(
        timeline=line,
        alarms=alarms,
        facts={"has_scaler": bool(rng.integers(2)), "precision": str(rng.choice(["fp16", "x"]))},
        batch_findings=[None, [], findings][int(rng.integers(3))],
        tried=["rollback"] * int(rng.integers(3)),
        starts=[(), (0,), (0, steps // 2)][int(rng.integers(3))],
        changes=[Change(step=steps // 2, kind="package", name="torch", before="2.0", after="2.1")][
            : int(rng.integers(2))
        ],
        interventions=[Intervention(step=1, action="skip", helped=bool(rng.integers(2)))],
        results=[result(name, sorted(OUTCOMES[name])[0]) for name in chosen],
    )


def result(experiment: str, outcome: str) -> Result:
    outcomes = tuple(sorted(OUTCOMES[experiment]))
    assert outcome in outcomes
    return Result(
        experiment=experiment, outcome=outcome, outcomes=outcomes, statement=f"{outcome} was seen"
    )


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    looks = [make("symptoms", name) for name in members("symptoms")]
    made = [random_case(seed) for seed in range(NUM_CASES)]
    with np.errstate(all="ignore"):
        return [replace(case, symptoms=observe(case, looks)) for case in made]


@every
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_any_case_can_be_weighed_and_evidence_can_be_looked_up(
    name: str, cases: list[Case]
) -> None:
    cause = CAUSES[name]()
    said = 0
    for case in cases:
        evidence = cause.weigh(case)
        assert repr(cause.weigh(case)) == repr(evidence), "the same case, the same evidence"
        for fact in evidence:
            said += 1
            assert fact.statement
            assert math.isfinite(fact.weight), fact
            assert abs(fact.weight) <= MOST
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
    for text in (kind.lead, kind.recurs, *kind.remedies, *kind.no_help):
        assert text == text.strip()
        assert not text.endswith(".")
    assert isinstance(kind.data_may_be_at_fault, bool)
    assert -2.5 <= kind.prior <= 0
    assert len((inspect.getdoc(kind) or "").split()) > 5


@telling
def test_it_says_where_it_is_born_what_helps_and_where_that_is_known_from(name: str) -> None:
    kind = CAUSES[name]
    assert kind.born
    assert all(isinstance(one, Born) for one in kind.born)
    assert kind.lead
    assert kind.recurs
    assert kind.remedies
    assert kind.no_help
    assert len(set(kind.remedies)) == len(kind.remedies)
    assert not set(kind.remedies) & set(kind.no_help)
    assert "Reference:" in (inspect.getdoc(kind) or "")
    assert "weigh" not in vars(kind), "a cause reads no series itself"


@telling
def test_its_tables_are_well_formed(name: str) -> None:
    kind = CAUSES[name]
    assert 6 <= len(kind.expects) <= 26
    assert any(share > 0.5 for share in kind.expects.values())
    assert any(share < 0.2 for share in kind.expects.values())
    for share in kind.expects.values():
        assert 0.01 <= share <= 0.99
    assert len(kind.outcomes) >= 6
    for experiment, likely in kind.outcomes.items():
        assert set(likely) == OUTCOMES[experiment], experiment
        assert sum(likely.values()) == pytest.approx(1.0, abs=1e-9)
        assert all(0.01 <= one <= 0.99 for one in likely.values())


@telling
def test_every_symptom_it_expects_is_told_of_by_a_look(name: str) -> None:
    told = {symptom for look in members("symptoms").values() for symptom in look.usual}
    assert set(CAUSES[name].expects) <= told


def test_every_symptom_that_a_look_tells_of_says_something_of_a_cause() -> None:
    told = {symptom for look in members("symptoms").values() for symptom in look.usual}
    used = {symptom for name in TELLING for symptom in CAUSES[name].expects}
    assert told <= used


@telling
def test_every_experiment_it_speaks_of_can_be_run(name: str) -> None:
    known = members("experiments")
    if set(known) < set(OUTCOMES):
        pytest.skip("the family of experiments is not complete")
    for experiment, likely in CAUSES[name].outcomes.items():
        assert set(known[experiment].outcomes) == set(likely)


def test_the_causes_of_the_documents_are_there() -> None:
    assert set(NAMED) <= set(CAUSES)


def test_the_two_that_must_always_be_candidates_are() -> None:
    assert CAUSES["unknown"].prior == 0.0
    assert not CAUSES["unknown"].expects
    assert -0.5 < CAUSES["benign"].prior < 0, "of nothing known, unknown is the better name"
