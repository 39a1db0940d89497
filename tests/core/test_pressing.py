"""Which single alarm is enough to act on."""

import math

import pytest

from foreshock.core.detector import Alarm, AlarmKind
from foreshock.core.pressing import is_pressing


def alarm(kind: AlarmKind, series: str, value: float, baseline: float = 30.0) -> Alarm:
    return Alarm(
        kind=kind, detector="d", series=series, step=9, onset_step=8, value=value, baseline=baseline
    )


@pytest.mark.parametrize(
    ("kind", "series", "value", "expected"),
    [
        (AlarmKind.NONFINITE, "loss/global", math.nan, True),
        (AlarmKind.NONFINITE, "param_norm/blocks.3.ffn", math.inf, True),
        (AlarmKind.NONFINITE, "grad_norm/global", math.nan, False),
        (AlarmKind.NONFINITE, "activation_norm/final", math.nan, False),
        (AlarmKind.DISCONTINUITY, "param_norm/embed", 1e36, True),
        (AlarmKind.DISCONTINUITY, "param_norm/global", 300.0, True),
        (AlarmKind.DISCONTINUITY, "param_norm/embed", 299.0, False),
        (AlarmKind.DISCONTINUITY, "param_norm/embed", 0.0, False),
        (AlarmKind.DISCONTINUITY, "loss/global", 1e36, False),
        (AlarmKind.SHIFT, "param_norm/embed", 1e36, False),
        (AlarmKind.SPIKE, "loss/global", 1e36, False),
    ],
)
def test_it_is(kind: AlarmKind, series: str, value: float, expected: bool) -> None:
    assert is_pressing(alarm(kind, series, value), committed=True) is expected
    skipped = expected and series != "loss/global"
    assert is_pressing(alarm(kind, series, value), committed=False) is skipped


def test_a_jump_from_no_known_level_is_not() -> None:
    jump = alarm(AlarmKind.DISCONTINUITY, "param_norm/embed", 1e36, math.nan)
    assert not is_pressing(jump, committed=True)
