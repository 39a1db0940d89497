"""What every look keeps, present and future: found by looking into the folder."""

import dataclasses
import inspect
import math
from functools import cache

import pytest

from foreshock.catalog import members
from foreshock.core.case import Case
from foreshock.core.symptom import observe
from tests.symptoms.cases import MadeRun, random_case

LOOKS = members("symptoms")
every = pytest.mark.parametrize("name", LOOKS)
NUM_CASES = 120


@cache
def any_cases() -> tuple[Case, ...]:
    return tuple(random_case(seed) for seed in range(NUM_CASES))


@every
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_any_case_can_be_looked_at_and_what_is_found_can_be_looked_up(name: str) -> None:
    look = LOOKS[name]()
    for seed, case in enumerate(any_cases()):
        symptoms = list(look.look(case))
        assert repr(list(look.look(case))) == repr(symptoms), "the same case, the same answer"
        names = [one.name for one in symptoms]
        assert len(set(names)) == len(names), (seed, names)
        assert set(names) <= set(look.usual), (seed, names)
        for one in symptoms:
            assert isinstance(one.degree, float), (seed, one)
            assert 0 <= one.degree <= 1, (seed, one)
            assert len(one.statement.split()) >= 2, (seed, one)
            assert not one.statement.endswith("."), (seed, one)
            for reading in one.readings:
                held = case.timeline.readings(reading.series, reading.step, reading.step)
                assert repr(held) == repr([reading]), (seed, one.name)


@every
def test_it_looks_at_nothing_that_comes_later(name: str) -> None:
    """A case is the timeline up to now: rows beyond it, once cut off, have left no trace."""
    look, run = LOOKS[name](), MadeRun(steps=130, seed=3)
    run.at(90, loss=4.0, grad_norm=3.0, update_ratio=9e-3)
    for series in run.rows.values():
        series[100:] = 1e9
    case = run.case(99, [("loss", 90)])
    longer = run.timeline(129)
    longer.rewind(case.last_step)
    rewound = dataclasses.replace(case, timeline=longer)
    assert repr(list(look.look(rewound))) == repr(list(look.look(case)))


@every
def test_it_explains_itself(name: str) -> None:
    kind = LOOKS[name]
    assert dataclasses.is_dataclass(kind)
    assert all(field.kw_only for field in dataclasses.fields(kind))
    with pytest.raises(dataclasses.FrozenInstanceError):
        kind().name = "other"
    assert len((inspect.getdoc(kind) or "").split()) > 20
    assert kind.usual
    for symptom, share in kind.usual.items():
        assert symptom.replace("_", "a").isalnum()
        assert symptom.islower()
        assert 0.01 <= share <= 0.99, symptom
        assert symptom in (inspect.getsource(kind)), symptom


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_no_two_tell_of_the_same() -> None:
    names = [symptom for kind in LOOKS.values() for symptom in kind.usual]
    assert len(names) == len(set(names)), sorted({one for one in names if names.count(one) > 1})
    for case in any_cases()[:50]:
        found = observe(case, [kind() for kind in LOOKS.values()])
        assert all(math.isfinite(one.symptom.degree) for one in found.values())


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_any_symptom_can_be_told_of_in_some_case() -> None:
    """The random cases are no idle test: most questions are answered in some of them."""
    told = {
        one.name for case in any_cases() for kind in LOOKS.values() for one in kind().look(case)
    }
    every_one = {symptom for kind in LOOKS.values() for symptom in kind.usual}
    assert len(told) >= 0.7 * len(every_one), sorted(every_one - told)
