"""The scores of the injection matrix, on hand-made rankings."""

import math
from typing import Any

import pytest

from benchmarks.diagnosis.baselines import ANY_AT, FIRST_AT, baselines
from benchmarks.diagnosis.figures import figures, judged_of
from benchmarks.diagnosis.plans import BENIGN
from benchmarks.diagnosis.rates import beside_tables, rates
from benchmarks.diagnosis.scoring import (
    UNSEEN,
    Judged,
    by,
    confusion,
    macro,
    reliability,
    shares,
)
from benchmarks.diagnosis.watched import excess
from tests.benchmarks.trials import trial


def judged(right: str, *ranking: tuple[str, float]) -> Judged:
    return Judged(right=frozenset(right.split("|")), ranking=ranking or None)


RIGHT = judged("a", ("a", 0.7), ("b", 0.2), ("unknown", 0.1))
THIRD = judged("c", ("a", 0.4), ("unknown", 0.35), ("c", 0.25))
FALSE = judged("b", ("a", 0.9), ("c", 0.05), ("unknown", 0.03), ("b", 0.02))
NOBODY_KNOWS = judged("a", ("unknown", 0.9), ("b", 0.06), ("c", 0.03), ("a", 0.01))
NOTHING = judged("a")


# ---- scores -----------------------------------------------------------------------------


def test_shares_are_of_the_cases_that_were_seen() -> None:
    found = shares([RIGHT, THIRD, FALSE, NOBODY_KNOWS, NOTHING])
    assert found["cases"] == 5
    assert found["unseen"] == 1
    assert found["top1"] == 0.25
    assert found["top3"] == 0.5
    assert found["unknown_rate"] == 0.25
    assert found["false_confident_rate"] == 0.25, "unknown at 90 % claims nothing"


def test_without_a_case_that_was_seen_there_is_no_share() -> None:
    assert shares([NOTHING, NOTHING]) == {"cases": 2, "unseen": 2}


def test_one_is_confident_above_eighty_percent_only() -> None:
    at = judged("b", ("a", 0.8), ("b", 0.2))
    above = judged("b", ("a", 0.8001), ("b", 0.1999))
    assert (at.is_wrongly_confident, above.is_wrongly_confident) == (False, True)
    assert not judged("a", ("a", 0.99), ("b", 0.01)).is_wrongly_confident


def test_several_causes_may_be_right() -> None:
    one = judged("b|c", ("a", 0.5), ("c", 0.3), ("b", 0.2))
    assert (one.is_right, one.among(1), one.among(2)) == (False, False, True)
    assert one.brier == pytest.approx(0.5**2 + 0.5**2), "their probabilities add up"


@pytest.mark.parametrize(
    ("one", "score"),
    [
        (judged("a", ("a", 1.0), ("b", 0.0)), 0.0),
        (judged("a", ("b", 1.0), ("a", 0.0)), 2.0),
        (judged("a", ("a", 0.5), ("b", 0.5)), 0.5),
        (RIGHT, 0.3**2 + 0.2**2 + 0.1**2),
        (NOTHING, None),
    ],
)
def test_brier(one: Judged, score: float | None) -> None:
    assert one.brier == (None if score is None else pytest.approx(score))


def test_the_headline_brier_is_the_mean() -> None:
    pair = [judged("a", ("a", 1.0)), judged("a", ("b", 1.0), ("a", 0.0)), NOTHING]
    assert shares(pair)["brier"] == 1.0


def test_reliability_counts_each_case_once_by_what_was_named_first() -> None:
    certain = judged("a", ("a", 1.0))
    edge = judged("a", ("b", 0.8), ("a", 0.2))
    rows = reliability([RIGHT, THIRD, FALSE, NOBODY_KNOWS, NOTHING, certain, edge])
    found = {(row["from"], row["to"]): row for row in rows}
    assert sum(row["cases"] for row in rows) == 6
    assert found[0.9, 1.0]["cases"] == 3, "0.9 twice, and 1.0"
    assert found[0.9, 1.0]["share_right"] == pytest.approx(1 / 3, abs=1e-4)
    assert found[0.8, 0.9]["mean_probability"] == 0.8
    assert (0.0, 0.2) not in found


def test_confusion_names_what_was_not_seen() -> None:
    rows = [("a", RIGHT), ("a", NOTHING), ("a", NOBODY_KNOWS), ("a", RIGHT), ("b", FALSE)]
    found = confusion(rows)
    assert found == {"a": {"a": 2, UNSEEN: 1, "unknown": 1}, "b": {"a": 1}}
    assert next(iter(found["a"])) == "a"


def test_a_mean_over_causes_counts_each_cause_once() -> None:
    groups = by([("a", RIGHT), ("a", RIGHT), ("a", RIGHT), ("b", FALSE), ("c", NOTHING)])
    assert macro(groups, "top1") == 0.5
    assert macro({"c": groups["c"]}, "top1") is None


# ---- baselines --------------------------------------------------------------------------


def test_baselines_by_hand() -> None:
    found = baselines(
        [
            ("data_batch", "lasting"),
            ("data_batch", "falls_back"),
            ("repeated_text", "falls_back"),
            ("lr_too_high", "lasting"),
            ("weight_corruption", "nonfinite"),
        ]
    )
    assert found["always_data"] == {"strict": 0.4, "generous": 0.6}
    assert found["flow_chart"] == {"strict": 0.4, "generous": 0.8}
    assert baselines([]) == {}


def test_what_the_flow_chart_may_mean_holds_what_people_act_on() -> None:
    assert set(FIRST_AT) == set(ANY_AT)
    assert all(FIRST_AT[leaf] in ANY_AT[leaf] for leaf in ANY_AT)


# ---- rates ------------------------------------------------------------------------------


def seen(cause: str, **symptoms: float) -> dict[str, Any]:
    return {"cause": cause, "symptoms": symptoms}


def test_rates_are_drawn_towards_what_is_usual() -> None:
    trials = [seen("a", x=1.0), seen("a", x=0.5), seen("b", x=0.0), seen("b", x=0.0)]
    found = rates(trials, prior=2.0)
    assert found["usual"] == {"x": 0.375}, "each cause counts the same"
    assert found["causes"]["a"]["x"] == {
        "share": round((1.5 + 2 * 0.375) / 4, 3),
        "mean": 0.75,
        "cases": 2,
    }
    assert found["causes"]["b"]["x"]["share"] == round(2 * 0.375 / 4, 3)


def test_causes_with_many_trials_do_not_say_what_is_usual() -> None:
    trials = [seen("a", x=1.0)] * 9 + [seen("b", x=0.0)]
    assert rates(trials)["usual"] == {"x": 0.5}


def test_what_could_not_be_looked_at_is_no_absence() -> None:
    found = rates([seen("a", x=1.0), seen("a"), {"cause": "a"}], prior=0.0)
    assert found["causes"]["a"]["x"] == {"share": 0.99, "mean": 1.0, "cases": 1}


def test_tables_that_are_furthest_off_come_first() -> None:
    trials = [seen("a", x=1.0, y=0.0)] * 50 + [seen("b", x=0.0, y=0.0)] * 50
    measured = rates(trials, prior=1.0)
    rows = beside_tables(measured, {"a": {"x": 0.99}, "b": {"x": 0.9}}, {"x": 0.5, "y": 0.01})
    assert (rows[0]["cause"], rows[0]["symptom"]) == ("b", "x")
    right = next(row for row in rows if (row["cause"], row["symptom"]) == ("a", "x"))
    assert right["off"] < 0.01
    unnamed = next(row for row in rows if (row["cause"], row["symptom"]) == ("b", "y"))
    assert unnamed["table"] is None
    assert unnamed["usual_table"] == 0.01
    assert unnamed["off"] == 0.0


# ---- figures ----------------------------------------------------------------------------


def test_calibration_and_evaluation_are_told_apart() -> None:
    some = [
        trial("lr_jump", "lr_too_high", ("lr_too_high", 0.9), ("unknown", 0.1)),
        trial("lr_jump", "lr_too_high", ("unknown", 0.9), ("lr_too_high", 0.1), seed=4),
        trial(
            "lr_jump", "lr_too_high", ("benign", 0.9), ("lr_too_high", 0.1), size="large", seed=4
        ),
    ]
    found = figures(some)
    assert found["calibration"]["signals"]["cases"] == 1
    assert found["evaluation"]["signals"]["cases"] == 2
    assert found["evaluation"]["signals"]["top1"] == 0.5
    assert found["evaluation_large"]["signals"]["false_confident_rate"] == 1.0
    assert found["evaluation_small"]["signals"]["by_fault"]["lr_jump/strong"]["top1"] == 1.0


def test_healthy_runs_are_right_if_nothing_is_seen_or_it_is_called_benign() -> None:
    some = [
        trial("healthy", BENIGN),
        trial("healthy", BENIGN, ("benign", 0.5), ("unknown", 0.4), seen_by="episode"),
        trial("healthy", BENIGN, ("data_batch", 0.9), ("benign", 0.1)),
        trial("healthy", BENIGN, ("unknown", 0.6), ("benign", 0.1)),
    ]
    found = figures(some)["evaluation"]
    assert found["signals"]["cases"] == 0, "they are no faults"
    assert found["healthy"]["healthy"] == {
        "runs": 4,
        "unseen": 1,
        "benign": 1,
        "share_left_alone": 0.5,
        "would_act": 2,
        "wrongly_confident": 1,
        "others": ["data_batch", "unknown"],
    }


def test_what_a_fault_costs_is_against_the_healthy_fork_of_the_same_data() -> None:
    some = [
        trial("healthy", BENIGN, losses=[2.0 + n / 10 for n in range(20)]),
        trial("lr_jump", "lr_too_high", losses=[2.5 + n / 10 for n in range(12)]),
        trial("lr_jump", "lr_too_high", losses=[9.0] * 12, seed=8, anchor="small-plain-8"),
    ]
    assert figures(some)["evaluation"]["excess_loss"] == {"lr_jump/strong": 0.5}


def test_excess_is_from_the_strike_on_and_finite() -> None:
    healthy = dict.fromkeys(range(1, 9), 2.0)
    assert excess({1: 9.0, 5: 3.0, 6: 4.0, 30: 9.0}, healthy, first=5) == 1.5
    assert excess({5: math.inf}, healthy, first=5) is None
    assert excess({1: 2.0}, healthy, first=5) is None


def test_refused_and_unjudged_trials_are_said_and_not_scored() -> None:
    some = [
        {"kind": "x", "cause": "y", "size": "small", "seed": 7, "level": "mild", "refused": "no"},
        trial("lr_jump", "lr_too_high", unjudged="ValueError: a look", seen_by="action"),
        trial("lr_jump", "lr_too_high", ("lr_too_high", 1.0)),
    ]
    found = figures(some)
    assert (found["refused"], found["unjudged"], found["trials"]) == (["x"], 1, 2)
    assert found["evaluation"]["signals"]["cases"] == 1


def test_experiments_are_compared_on_the_same_trials() -> None:
    settled = {"ranking": [["lr_too_high", 0.99], ["unknown", 0.01]], "results": [], "num_steps": 9}
    some = [
        trial("lr_jump", "lr_too_high", ("unknown", 0.6), ("lr_too_high", 0.4), settled=settled),
        trial("lr_jump", "lr_too_high", ("unknown", 0.6), ("lr_too_high", 0.4), settled=None),
    ]
    found = figures(some)["evaluation"]
    assert (found["experiments"]["cases"], found["experiments"]["top1"]) == (1, 1.0)
    assert found["signals_of_the_same"]["top1"] == 0.0
    assert found["experiments"]["mean_steps"] == 9.0
    assert judged_of(some[1], "settled").first == UNSEEN
