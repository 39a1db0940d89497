"""Starts before the onset and what they had changed."""

import pytest

from foreshock.core.case import Change
from foreshock.core.starts import KINDS
from foreshock.symptoms.restart import Restart
from tests.symptoms.cases import MadeRun, degrees, found

LOOK = Restart()
OF_KIND = {
    "configuration": "configuration_changed",
    "package": "packages_changed",
    "environment": "environment_changed",
    "hardware": "environment_changed",
    "code": "code_changed",
    "data": "data_changed",
    "world": "world_changed",
}


def change(step: int, kind: str, name: str = "lr") -> Change:
    return Change(step=step, kind=kind, name=name, before="1e-3", after="3e-3")


def case(*starts: int, changes: tuple[Change, ...] = ()):
    """The onset is at step 1090."""
    return MadeRun().case(110, [("loss", 90)], starts=starts, changes=changes)


def test_all_kinds_of_changes_are_asked_for():
    assert set(OF_KIND) == set(KINDS)


@pytest.mark.parametrize(
    ("starts", "degree"),
    [
        ((0,), 0.0),
        ((0, 1089), 1.0),
        ((0, 500, 1084), 1.0),
        ((0, 1037), 0.5),
        ((0, 900), 0.0),
        ((0, 1090), 0.0),
        ((0, 1100), 0.0),
    ],
)
def test_how_long_after_a_start(starts, degree):
    assert degrees(LOOK, case(*starts))["after_start"] == degree


def test_a_first_start_is_none_however_early_the_onset():
    run = MadeRun()
    run.first = 0
    told = degrees(LOOK, run.case(40, [("loss", 20)], starts=(0,)))
    assert told == dict.fromkeys(LOOK.usual, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_change_is_told_by_its_kind(kind):
    said = found(LOOK, case(0, 1080, changes=(change(1080, kind),)))
    assert said.pop("after_start").degree == pytest.approx(0.957, abs=1e-3)
    assert {name: one.degree for name, one in said.items() if one.degree} == {OF_KIND[kind]: 1}
    assert said[OF_KIND[kind]].statement.endswith(
        "changed 10 steps before the onset: lr from 1e-3 to 3e-3"
    )


def test_a_change_counts_the_less_the_longer_ago():
    steps = (1080, 1000, 800, 600, 100)
    told = [
        degrees(LOOK, case(0, step, changes=(change(step, "code"),)))["code_changed"]
        for step in steps
    ]
    assert told == sorted(told, reverse=True)
    assert (told[0], told[-1]) == (1, 0)
    assert 0 < told[2] < told[1] < 1


def test_a_change_after_the_onset_is_none():
    told = degrees(LOOK, case(0, 1095, changes=(change(1095, "data"),)))
    assert told == dict.fromkeys(LOOK.usual, 0)


def test_many_changes_are_counted_and_long_ones_cut():
    many = tuple(change(1080, "package", f"p{place}") for place in range(9))
    said = found(LOOK, case(0, 1080, changes=many))["packages_changed"].statement
    assert "p2 from 1e-3 to 3e-3 and 6 more" in said
    long = Change(step=1080, kind="data", name="n", before="x" * 5000, after="y")
    assert len(found(LOOK, case(0, 1080, changes=(long,)))["data_changed"].statement) < 250


def test_without_known_starts_nothing_is_told():
    assert degrees(LOOK, case()) == {}
