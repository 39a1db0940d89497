"""Numbers and readings through strict JSON."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreshock.core.reading import Reading, from_json_number, json_number


@given(st.floats())
def test_every_float_survives_strict_json(value: float) -> None:
    text = json.dumps(json_number(value), allow_nan=False)
    back = from_json_number(json.loads(text))
    assert math.isnan(back) if math.isnan(value) else back == value
    assert math.copysign(1, back) == math.copysign(1, value) or math.isnan(value)


@pytest.mark.parametrize("wrong", [None, True, "nan", "inf", "1.5", [], {}, 10**400, -(10**400)])
def test_what_is_not_a_number_is_refused_in_one_way(wrong: object) -> None:
    with pytest.raises(ValueError, match="expected a number"):
        from_json_number(wrong)


def test_a_whole_number_becomes_a_float() -> None:
    assert isinstance(from_json_number(3), float)


@given(st.integers(0, 99), st.integers(0, 2**60), st.floats())
def test_a_reading_survives_json(attempt: int, step: int, value: float) -> None:
    reading = Reading(attempt, step, "grad_norm", "blocks.3.attn", value)
    text = json.dumps(reading.to_json(), allow_nan=False)
    assert repr(Reading.from_json(json.loads(text))) == repr(reading)


def test_a_series_without_a_scope_belongs_to_the_whole_run() -> None:
    fields = {"attempt": 1, "step": 2, "series": "loss", "value": "NaN"}
    assert Reading.from_json(fields).series == "loss/global"
