"""Numbers and readings through strict JSON."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreshock.core.reading import ABSENT, Reading, from_json_number, is_absent, json_number
from foreshock.core.records import decode_readings, encode_reading, encode_readings_header


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


@given(st.lists(st.integers(0, (1 << 32) - 1) | st.just(0x7FC5EED0), max_size=30))
def test_only_the_bits_of_absent_are_absent(raw: list[int]) -> None:
    values = np.array(raw, np.uint32).view(np.float32)
    assert is_absent(values).tolist() == [one == 0x7FC5EED0 for one in raw]


def test_absent_is_a_nan_that_no_arithmetic_makes() -> None:
    assert np.isnan(ABSENT)
    with np.errstate(all="ignore"):
        made = np.float32([np.inf - np.inf, np.float32(0) / np.float32(0), np.sqrt(-1.0), np.nan])
    assert not is_absent(np.concatenate([made, -made])).any()


def test_absent_survives_whatever_keeps_float32() -> None:
    torch = pytest.importorskip("torch")
    values = np.full((4, 3), 1.5, np.float32)
    values[1, 2] = values[3, 0] = ABSENT
    values[2, 2] = np.nan
    expected = is_absent(values)
    assert expected.sum() == 2
    copies = [
        values.copy(),
        np.asfortranarray(values),
        np.array(values.tobytes(), dtype="V48").reshape(1).view(np.float32).reshape(4, 3),
        np.concatenate([values[:2], values[2:]]),
        np.stack([values, values])[1],
        torch.from_numpy(values).clone().numpy(),
        torch.stack([torch.from_numpy(row) for row in values]).numpy(),
        torch.cat([torch.from_numpy(values)]).to("cpu", copy=True).numpy(),
    ]
    for one in copies:
        np.testing.assert_array_equal(is_absent(one), expected)
    np.testing.assert_array_equal(is_absent(values[:, ::2]), expected[:, ::2])
    assert is_absent(np.array(ABSENT)).tolist() is True
    assert is_absent(np.zeros((0, 3), np.float32)).shape == (0, 3)


@pytest.mark.parametrize("kind", [np.float64, np.float16, np.uint32])
def test_absent_is_asked_of_float32_only(kind: type) -> None:
    with pytest.raises(TypeError, match="float32 only"):
        is_absent(np.zeros(3, kind))


def test_absent_survives_a_segment() -> None:
    values = np.array([ABSENT, np.nan, 1.0, np.inf], np.float32)
    data = encode_readings_header(1, list("abcd"), 3) + encode_reading(7, 1, values)
    block = decode_readings(data, "f", 3)
    assert block.values.view(np.uint32).tolist() == [values.view(np.uint32).tolist()]
    assert is_absent(block.values).tolist() == [[True, False, False, False]]
