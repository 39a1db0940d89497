"""Remedies that did not help, by rung and by action."""

import pytest

from foreshock.core.case import Intervention
from foreshock.core.ladder import RUNGS
from foreshock.symptoms.tried import Tried
from tests.symptoms.cases import MadeRun, degrees, found

LOOK = Tried()
SKIPPING, ROLLBACK, DATA = (
    "skipping_did_not_help",
    "rollback_did_not_help",
    "setting_data_aside_did_not_help",
)
MOMENTS, RATE = "fresh_moments_did_not_help", "lower_rate_did_not_help"


def case(*done: tuple[str, bool | None], tried: tuple[str, ...] = (), ago: int = 100):
    told = [
        Intervention(step=1090 - ago + place, action=name, helped=helped)
        for place, (name, helped) in enumerate(done)
    ]
    return MadeRun().case(110, [("loss", 90)], interventions=told, tried=tried)


@pytest.mark.parametrize(
    ("name", "symptoms"),
    [
        ("skip", {SKIPPING}),
        ("skip_update", {SKIPPING}),
        ("rollback", {ROLLBACK, DATA}),
        ("quarantine", {DATA}),
        ("rollback_further", {ROLLBACK, DATA, RATE}),
        ("reset_moments", {ROLLBACK, DATA, MOMENTS, RATE}),
        ("lower_lr", {ROLLBACK, DATA, RATE}),
        ("cap_lr", {ROLLBACK, DATA, RATE}),
        ("scale_lr", {RATE}),
        ("watch", set()),
        ("something_else", set()),
    ],
)
def test_a_rung_that_failed_speaks_against_each_of_its_actions(name, symptoms):
    assert degrees(LOOK, case(tried=(name,))) == dict.fromkeys(symptoms, 1)
    assert degrees(LOOK, case((name, False))) == dict.fromkeys(symptoms, 1)


def test_every_rung_is_understood():
    for name in RUNGS:
        degrees(LOOK, case(tried=(name,)))


def test_what_helped_is_no_and_what_is_not_known_is_not_told():
    assert degrees(LOOK, case(("skip", True))) == {SKIPPING: 0}
    assert degrees(LOOK, case(("skip", None))) == {}
    assert degrees(LOOK, case()) == {}


def test_the_last_word_counts():
    assert degrees(LOOK, case(("skip", False), ("skip", True))) == {SKIPPING: 0}
    assert degrees(LOOK, case(("skip", True), tried=("skip",))) == {SKIPPING: 1}


def test_what_helped_is_what_had_not_failed_before():
    """Going back had failed; with fresh moments besides it helped: so these did."""
    told = degrees(LOOK, case(("rollback", False), ("reset_moments", True)))
    assert told == {ROLLBACK: 1, DATA: 1, MOMENTS: 0, RATE: 0}
    told = degrees(LOOK, case(("rollback", False), ("rollback", True)))
    assert told == {ROLLBACK: 0, DATA: 0}


def test_what_was_done_long_ago_belongs_to_another_episode():
    assert degrees(LOOK, case(("skip", False), ago=2000)) == {}
    said = found(LOOK, case(("skip", False), ago=50))[SKIPPING]
    assert said.statement == "skipping updates did not help: skip after step 1040"
