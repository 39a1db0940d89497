"""Rows given one by one and in blocks are the same; roles are guessed from names and values."""

import math
import random

import numpy as np
import pytest

from foreshock.core.log import Log
from foreshock.core.log_builder import LogBuilder, LogFull
from foreshock.core.log_columns import as_step, guess_roles, is_noise
from foreshock.core.log_delimited import find_dialect
from foreshock.core.log_table import RowTaker

LABELS = ["step", "loss", "lr", "grad_norm", "val_loss"]
ODD = ["", None, "nan", math.nan, "n/a", True, "1,048.5", 10**400, -3, "inf", [], 2.5, 7, "0x1"]


def taken(rows: list[list[object]], *, by_block: bool) -> Log:
    log = LogBuilder()
    objects = [dict(zip(LABELS, row, strict=True)) for row in rows]
    taker = RowTaker(log, guess_roles(objects))
    layout = taker.layout([(label, place) for place, label in enumerate(LABELS)])
    for start in range(0, len(rows), 16):
        block = rows[start : start + 16]
        numbers = range(start + 1, start + 1 + len(block))
        if not (by_block and taker.take_block(block, layout, numbers)):
            for number, row in zip(numbers, block, strict=True):
                taker.take(row, layout, number)
    taker.finish()
    return log.finish(path="", format="", title="")


@pytest.mark.parametrize("seed", range(30))
def test_blocks_give_what_rows_give(seed: int) -> None:
    chance = random.Random(seed)
    share = chance.choice([0.0, 0.02, 0.3])

    def value(place: int, row: int) -> object:
        if place and chance.random() < share:
            return chance.choice(ODD)
        plain = row if place == 0 else chance.random()
        return chance.choice([str(plain), plain]) if seed % 3 else plain

    rows = [[value(place, row) for place in range(len(LABELS))] for row in range(90)]
    one, two = (taken(rows, by_block=by_block) for by_block in (False, True))
    assert [set(run.series) for run in one.runs] == [set(run.series) for run in two.runs]
    for mine, other in zip(one.runs, two.runs, strict=True):
        for signal, series in mine.series.items():
            np.testing.assert_array_equal(series.steps, other.series[signal].steps)
            np.testing.assert_array_equal(series.values, other.series[signal].values)
            np.testing.assert_array_equal(series.lines, other.series[signal].lines)
    assert one.notes == two.notes


def test_blocks_are_used_for_plain_tables() -> None:
    taker = RowTaker(LogBuilder(), guess_roles([{"step": "1", "loss": "2.5"}]))
    layout = taker.layout([("step", 0), ("loss", 1)])
    assert taker.take_block([["1", "2.5"], ["2", "2.0"]], layout, [2, 3])


def test_a_full_builder_stops_a_block() -> None:
    log = LogBuilder(max_rows=3)
    taker = RowTaker(log, guess_roles([{"step": 1, "loss": 2.5}]))
    layout = taker.layout([("step", 0), ("loss", 1)])
    with pytest.raises(LogFull):
        taker.take_block([[step, 1.0] for step in range(9)], layout, range(9))
    (run,) = log.finish(path="", format="", title="").runs
    assert run.series["loss"].steps.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("rows", "step"),
    [
        ([{"epoch": 1, "global_step": 5, "step": 3}], "step"),
        ([{"epoch": 0.5, "loss": 1.0}, {"epoch": 0.75, "loss": 1.0}], None),
        ([{"epoch": 1, "loss": 1.0}, {"epoch": 2, "loss": 1.0}], "epoch"),
        ([{"epoch": 1, "loss": 1.0 * i} for i in range(9)], None),
        ([{"step": 0.5, "iteration": 7, "loss": 1.0}], "iteration"),
        ([{"step": "a", "loss": 1.0}], None),
        ([{"_step": i, "train/global_step": i * 9} for i in range(3)], "train/global_step"),
        ([{"time": i, "loss": 1.0} for i in range(9)], None),
        ([{"Unnamed: 0": i, "loss": 1.0} for i in range(9)], "Unnamed: 0"),
        ([{"acc": 1, "loss": 1.0} for i in range(9)], None),
    ],
)  # fmt: skip
def test_which_column_counts_steps(rows: list[dict[str, object]], step: str | None) -> None:
    assert guess_roles(rows).step == step


def test_other_roles() -> None:
    rows = [
        {"split": "train", "run": "a", "rank": 0, "max_steps": 90, "step": 1, "loss": 2.0},
        {"split": "val", "run": "a", "rank": 1, "max_steps": 90, "step": 1, "loss": 2.0},
    ]
    roles = guess_roles(rows)
    assert (roles.split, roles.run, roles.rank, roles.total_steps) == ("split", "run", "rank", 90)
    assert roles.loss == "loss"
    assert guess_roles([{"split": 0.5, "type": "adam", "loss": 1.0}]).split is None


def test_what_is_no_signal() -> None:
    noise = ("step_time", "tokens_per_sec", "memory(GiB)", "train_runtime", "mfu", "Wall time")
    assert all(map(is_noise, noise))
    assert not any(map(is_noise, ("loss", "eval_loss", "timesteps", "acc", "kl", "reward")))


@pytest.mark.parametrize("value", ["", "x", -1, 0.5, math.nan, math.inf, None, True, 1 << 70, []])
def test_what_is_no_step(value: object) -> None:
    assert as_step(value) is None


@pytest.mark.parametrize(
    ("lines", "header"),
    [
        (["step,loss", "1,2.5"], ("step", "loss")),
        (["", "# made by x", "step\tloss", "1\t2.5"], ("step", "loss")),
        (["step;loss;", "1;2,5;"], ("step", "loss", "")),
        (["a,b", "c,d"], None),
        (["1,2", "3,4"], None),
        (["step,step", "1,2"], None),
        (["loss: 1, lr: 2", "loss: 3, lr: 4"], None),
        (["step,loss"], None),
        ([], None),
    ],
)
def test_what_is_a_header(lines: list[str], header: tuple[str, ...] | None) -> None:
    found = find_dialect(lines)
    assert (found.header if found else None) == header
