"""Steps of rows at even distances, from their epochs."""

import pytest

from foreshock.core.even_steps import even_steps


@pytest.mark.parametrize(
    ("every", "total", "end"),
    [(5, 240, 20), (10, 1290, 3), (500, 13605, 5), (1, 37, 1), (25, 1000, 1), (7, 100, 2)],
)
def test_steps_follow_from_rounded_epochs(every: int, total: int, end: int) -> None:
    steps = list(range(every, total + 1, every))
    epochs = [round(end * step / total, 2) for step in steps]
    assert even_steps(epochs, total, float(end)) == steps
    if every > 1:
        first = [round(end / total, 2), *epochs]
        assert even_steps(first, total, float(end)) == [1, *steps]


def test_the_last_step_of_an_epoch_may_be_smaller() -> None:
    # 12 steps an epoch, the last of them a quarter of the others
    epochs = [round(s // 12 + s % 12 / 11.25, 2) for s in range(5, 241, 5)]
    assert even_steps(epochs, 240, 20.0) == list(range(5, 241, 5))


def test_what_is_not_even_is_not_guessed() -> None:
    resumed = [round(2 * step / 100, 2) for step in range(60, 101, 10)]
    assert even_steps(resumed, 100, 2.0) is None
    assert even_steps([0.5], 100, 1.0) is None
    assert even_steps([0.5, 1.0], 1, 1.0) is None
    assert even_steps([0.5, 1.0], 100, 0.0) is None
    assert even_steps([float("nan"), 1.0], 100, 1.0) is None
    assert even_steps([0.1, 0.7, 1.0], 100, 1.0) is None
