"""What the comparison of ranks says, in the very words of what compares them."""

import numpy as np
import pytest

from foreshock.ranks.canary import CanaryReport, Odd
from foreshock.ranks.reduction_dtype import ReductionWatch, Traffic
from foreshock.ranks.replicas import Mismatch
from foreshock.ranks.shards import Changed
from foreshock.symptoms.ranks import Ranks
from tests.symptoms.cases import MadeRun, degrees, found, healthy_with_an_outlier

torch = pytest.importorskip("torch")

LOOK = Ranks()
SEEDS = pytest.mark.parametrize("seed", range(6))


def told(*findings: str, step: int = 1080, run: MadeRun | None = None, **fields: object):
    run = run if run is not None else MadeRun().without("loss_spread")
    case = run.case(110, [("loss", 90)], findings=[(step, one) for one in findings], **fields)
    return degrees(LOOK, case)


@pytest.mark.parametrize(
    "classes",
    [
        ((0, 1, 3), (2,)),
        ((0, 1, 4, 5), (2,), (3,)),
        ((0,), (1,)),
        ((0, 1), (2, 3)),
        ((0,), (1,), (2,)),
    ],
)
def test_replicas_that_differ(classes):
    said = str(Mismatch(name="blocks.0.attn.qkv.weight", classes=classes))
    assert told(said) == {"replicas_differ": 1}
    assert told(f"step 1080: {said}") == {"replicas_differ": 1}


@pytest.mark.parametrize(("written", "degree"), [(False, 1.0), (True, 0.5)])
def test_shards_that_changed(written, degree):
    said = str(Changed(name="head.weight", rank=3, written=written))
    assert told(said) == {"shards_changed": degree}


def report(**fields):
    told = {"odd": (), "undecided": (), "compared": "gradients", **fields}
    losses = (1.0, 1.0, 1.0)
    made = CanaryReport(
        ranks=(0, 1, 2), losses=losses, num_gradients=12, bitwise=(), sampled=False, **told
    )
    return str(made)


def test_the_canary():
    odd = Odd(rank=2, num_others=2, names=("head.weight",), differences=(0.1,))
    assert told(report(odd=(odd,))) == {"canary_differs": 1}
    assert told(report(odd=(odd,), compared="losses")) == {"canary_differs": 1}
    assert told(report(undecided=("head.weight",))) == {"canary_differs": 1}
    assert told(report(undecided=("loss",), compared="losses")) == {"canary_differs": 1}
    assert told(report()) == {}


@pytest.mark.parametrize(
    ("dtypes", "degree"),
    [
        ((torch.float32,), 0),
        ((torch.bfloat16,), 1),
        ((torch.float16, torch.float32), 1),
        ((torch.float8_e5m2,), 1),
        ((torch.float64,), 0),
    ],
)
def test_the_dtype_of_the_reduction(dtypes, degree):
    watch = ReductionWatch()
    watch.seen["all_reduce"] = {one: Traffic(num_calls=2, num_bytes=8) for one in dtypes}
    assert told(str(watch), step=5) == {"reduces_in_low_precision": degree}
    facts = {"reduction_dtype": str(dtypes[0])}
    assert told(facts=facts) == {"reduces_in_low_precision": degree}


def test_what_was_found_long_before_or_says_nothing_of_ranks():
    said = str(Mismatch(name="w", classes=((0, 1, 3), (2,))))
    assert told(said, step=700) == {}
    assert told("something else differs", str(ReductionWatch())) == {}


@pytest.mark.parametrize(
    ("signal", "symptom"),
    [("num_desynced", "replicas_differ"), ("num_changed_shards", "shards_changed")],
)
def test_a_number_says_it_too_and_a_check_since_the_onset_says_no(signal, symptom):
    run = MadeRun().without("loss_spread").put(signal, 0.0).every(50, signal)
    assert told(run=run) == {symptom: 0}
    case = run.case(98, [("loss", 90)])
    assert degrees(LOOK, case) == {}, "no check since the onset, which is no evidence"
    run.put(signal, 3.0, 100, 101)
    assert told(run=run) == {symptom: 1}


@SEEDS
def test_one_rank_that_is_off_spreads_the_losses(seed):
    run = MadeRun(seed=seed).at(92, loss=2.5 + 1.0 / 8, loss_spread=1.0)
    said = found(LOOK, run.case(110, [("loss", 90)]))["rank_spread_high"]
    assert said.degree == 1
    assert "at most 1 apart (step 1092)" in said.statement


@SEEDS
def test_a_loss_that_is_high_on_all_ranks_spreads_with_it(seed):
    run = MadeRun(seed=seed).at(92, loss=4.5, loss_spread=0.8)
    assert told(run=run) == {"rank_spread_high": 0}
    assert told(run=healthy_with_an_outlier(seed)) == {"rank_spread_high": 0}


def test_one_rank_or_a_broken_spread_tell_nothing():
    assert told() == {}
    assert told(run=MadeRun().put("loss_spread", np.nan)) == {}
    assert told(run=MadeRun().put("loss_spread", 0.0)) == {}
    assert told(run=MadeRun().printed()) == {}
