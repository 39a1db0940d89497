"""What batch findings become, and of how many samples the loss is."""

import numpy as np
import pytest

from foreshock.core.case import BatchFinding
from foreshock.core.symptom import weight_of
from foreshock.symptoms.samples import Samples
from tests.symptoms.cases import MadeRun, degrees, found, healthy_with_an_outlier

LOOK = Samples()
SEEDS = pytest.mark.parametrize("seed", range(6))
FACTS = {
    "repetition": "samples_repeat",
    "alike": "samples_alike",
    "source": "new_source",
    "seen_before": "samples_seen_before",
    "labels_masked": "labels_masked",
}
OF_FINDINGS = {"samples_differ", *FACTS.values()}


def finding(fact: str = "", strength: float = 2.0) -> BatchFinding:
    return BatchFinding(statement=f"{fact or 'something'} moved", strength=strength, fact=fact)


def told(*findings: BatchFinding) -> dict[str, float]:
    run = MadeRun().without("loss_largest_sample", "loss_sample_std")
    return degrees(LOOK, run.case(110, [("loss", 90)], batch_findings=findings))


@pytest.mark.parametrize("fact", FACTS)
def test_each_fact_has_its_symptom(fact):
    assert told(finding(fact)) == {
        **dict.fromkeys(OF_FINDINGS, 0),
        "samples_differ": 1,
        FACTS[fact]: 1,
    }


@pytest.mark.parametrize("fact", ["non_text", "length", "diversity", "replacement"])
def test_other_facts_make_them_differ(fact):
    assert told(finding(fact)) == {**dict.fromkeys(OF_FINDINGS, 0), "samples_differ": 1}


def test_the_degree_goes_by_strength():
    assert told(finding("source", 1.5))["samples_differ"] == 0.75
    assert told(finding("source", 1.5), finding("length", 0.25))["samples_differ"] == 0.875
    assert told(finding("length", 9.0), finding("source", 0.5))["new_source"] == 0.25


def test_a_finding_without_a_fact_leaves_the_facts_open():
    assert told(finding()) == {"samples_differ": 1}


def test_nothing_found_is_a_no_and_of_few_samples_half_a_one():
    assert told() == dict.fromkeys(OF_FINDINGS, 0)
    strengths = (-2.0, -1.5, -1.0, -0.5)
    weighed = [
        weight_of(told(finding("", one))["samples_differ"], 0.8, LOOK.usual["samples_differ"])
        for one in strengths
    ]
    assert weighed == sorted(weighed)
    assert weighed[0] < -0.7
    assert abs(weighed[-1]) < abs(weighed[0]) / 2
    assert told(finding("", -0.4)) == told(finding("", 0.0)) == {}


def test_samples_that_could_not_be_looked_at_tell_nothing():
    run = MadeRun().without("loss_largest_sample", "loss_sample_std")
    assert degrees(LOOK, run.case(110, [("loss", 90)])) == {}


def with_odd_ones(share: float, excess: float, seed: int) -> MadeRun:
    """In one step a share of 64 samples has a loss that is higher by `excess`."""
    rng = np.random.default_rng(seed)
    run = MadeRun(seed=seed)
    losses = run["loss"][92] + 0.4 * rng.standard_normal(64)
    losses[: round(share * 64)] += excess
    return run.at(
        92, loss=losses.mean(), loss_largest_sample=losses.max(), loss_sample_std=losses.std()
    )


@SEEDS
@pytest.mark.parametrize(("share", "low", "high"), [(0.06, 0.9, 1), (0.3, 0.2, 0.8), (1, 0, 0)])
@pytest.mark.parametrize("left_out", ["", "loss_largest_sample", "loss_sample_std"])
def test_how_many_samples_carry_the_loss(seed, share, low, high, left_out):
    run = with_odd_ones(share, 10.0, seed).without(left_out or "none")
    degree = degrees(LOOK, run.case(110, [("loss", 92)]))["few_samples_carry_the_loss"]
    assert low <= degree <= high


@SEEDS
def test_without_a_risen_loss_it_is_not_asked(seed):
    assert degrees(LOOK, MadeRun(seed=seed).case(110, [("grad_norm", 92)])) == {}
    case = healthy_with_an_outlier(seed).case(110, [("loss", 90)])
    said = found(LOOK, case)["few_samples_carry_the_loss"]
    assert "takes about" in said.statement
    assert said.degree < 0.5, "half of the samples at most are needed for so small a rise"
