"""Charts made of characters."""

import math

import numpy as np

from foreshock.report.blocks import Sign, axis, bars, span_of, to_ascii

NAN = math.nan


def _draw(values: list[float], rows: int = 1, usual: float = 1.0, width: int = 60, **rest: float):
    clock = np.arange(len(values))
    span = span_of([clock], width)
    return span, bars(clock, np.array(values), span, rows, usual, rest.get("wide", 30.0))


def test_each_height_has_its_block() -> None:
    _, drawn = _draw([0, 1, 2, 3, 4, 5, 6, 7])
    assert drawn.rows == ("".join(block * 3 for block in "▁▂▃▄▅▆▇█"),)
    assert (drawn.low, drawn.high, drawn.log) == (0, 7, False)


def test_rows_stack_from_below() -> None:
    _, drawn = _draw([0.0, 7.0, 8.0, 15.0], rows=2)
    assert drawn.rows == ("      ▁▁▁███", "▁▁▁█████████")


def test_one_spike_among_a_million_values_is_drawn_and_so_is_one_nan() -> None:
    values = np.ones(1_000_000)
    values[123_456], values[900_000] = 9.0, NAN
    clock = np.arange(len(values))
    span = span_of([clock], 60)
    drawn = bars(clock, values, span, 1, 1.0, 30.0)
    assert len(drawn.rows[0]) == span.width == 60
    assert drawn.rows[0].index("█") == 123_456 * 60 // 1_000_000
    assert drawn.rows[0].index("×") == 900_000 * 60 // 1_000_000
    assert drawn.high == 9.0


def test_a_dip_is_drawn_as_well_as_a_spike() -> None:
    values = [64.0] * 300
    values[150] = 1.0
    _, drawn = _draw(values, usual=64.0)
    assert drawn.low == 1.0
    assert drawn.rows[0].count("▁") == 1


def test_a_wide_span_is_drawn_as_logarithms_if_all_is_positive() -> None:
    assert _draw([1, 10, 100], wide=10.0)[1].log
    assert not _draw([1, 5, 9.9], wide=10.0)[1].log
    assert not _draw([0, 10, 100], wide=10.0)[1].log
    middle = _draw([1, 10, 100], rows=1, wide=10.0)[1].rows[0][3]
    assert middle in "▄▅"


def test_values_without_any_number() -> None:
    _, drawn = _draw([NAN, math.inf, -math.inf], rows=2)
    assert drawn.rows == ("×" * 9, " " * 9)
    assert math.isnan(drawn.low)


def test_extremes_of_a_float_do_not_break_it() -> None:
    _, drawn = _draw([-1.7e308, 0.0, 1.7e308, 5e-324])
    assert len(drawn.rows[0]) == 12
    _, drawn = _draw([5e-324, 1.7e308])
    assert drawn.log


def test_a_constant_stands_in_the_middle() -> None:
    assert _draw([2.0] * 4)[1].rows[0][0] in "▄▅"


def test_signals_of_different_intervals_share_the_axis() -> None:
    fine, coarse = np.arange(0, 100), np.arange(0, 100, 10)
    span = span_of([fine, coarse], 50)
    assert (span.columns, span.fill) == (50, 1)
    drawn = bars(coarse, np.ones(10), span, 1, 1.0, 30.0)
    assert [at for at, sign in enumerate(drawn.rows[0]) if sign != " "] == list(range(0, 50, 5))


def test_the_axis_marks_steps_and_names_them() -> None:
    span = span_of([np.arange(1000, 1060)], 60)
    signs = [Sign("O", "onset", 1010, 1010), Sign("P", "peak", 1040, 1040)]
    line, beneath = axis(span, signs, 70)
    assert (line.index("O"), line.index("P"), len(line)) == (10, 40, 60)
    assert beneath.index("onset 1,010") == 10
    assert beneath.index("peak 1,040") == 40


def test_words_that_would_collide_move_and_none_is_lost() -> None:
    span = span_of([np.arange(60)], 60)
    signs = [Sign("O", "onset", 55, 55), Sign("P", "peak", 56, 56), Sign("E", "end", 59, 59)]
    _, beneath = axis(span, signs, 62)
    assert "onset 55  peak 56  end 59" in beneath
    assert len(beneath) <= 62
    narrow = axis(span, signs, 16)[1]
    assert narrow.split() == ["55", "56", "59"]
    assert axis(span, signs, 5)[1] == ""


def test_two_signs_in_one_column_share_their_words() -> None:
    span = span_of([np.arange(6000)], 60)
    signs = [Sign("O", "onset", 10, 10), Sign("P", "peak", 20, 20), Sign("E", "end", 20, 20)]
    assert axis(span, signs, 70)[1] == "onset 10, peak, end 20"


def test_ascii_keeps_the_width() -> None:
    text = "▁▂▃▄▅▆▇█× 3.0 → 7.0 · steps 1–2 … é"
    assert len(to_ascii(text)) == len(text)
    assert to_ascii(text).isascii()
    assert len(set(to_ascii("▁▃▅█×"))) == 5
