"""Lines read by their shape give what they give when they are read the long way."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import pytest

from foreshock.core.line_shape import MAX_SHAPES, Shapes
from foreshock.core.log import Log
from foreshock.core.log_builder import LogBuilder, LogFull
from foreshock.core.text_reader import NUMBER, TextReader
from foreshock.source import FileSource

_OVERFLOW = "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 4.0"


class _Plain(TextReader):
    """`step 3/90 | loss: 2.5 | took 0:00:03.5`, with whatever else stands on it."""

    name: ClassVar[str] = "plain"
    title: ClassVar[str] = "plain"
    hint = "step"
    record = r"\bstep\s+(?P<step>\d+)/(?P<total_steps>\d+)"
    pairs = rf"\| ([a-z]+): *({NUMBER})(?= |\Z)"
    drops = "took"


def _read(path: Path, *, by_shape: bool, monkeypatch) -> Log:
    with monkeypatch.context() as patch:
        if not by_shape:
            patch.setattr(Shapes, "learn", lambda *_, **__: None)
        log = LogBuilder()
        _Plain().read(FileSource(path), log)
        return log.finish(path="", format="", title="")


def _seen(log: Log) -> list:
    return [
        (
            run.total_steps,
            run.restarts,
            [(event.kind, event.step, event.line) for event in run.events],
            [
                (
                    name,
                    one.label,
                    one.steps.tolist(),
                    list(map(str, one.values)),
                    one.lines.tolist(),
                )
                for name, one in sorted(run.series.items())
            ],
        )
        for run in log.runs
    ]


def _line(chance: random.Random, step: int) -> str:
    value = chance.choice(["2.5", "nan", "-inf", "1e-05", "1,024.5", "1.2.3", "9" * 400, "", "7"])
    prefix = chance.choice(["", "[3] ", "[4] ", "2024-05-01 09:30:00 ", "x9 "])
    extra = chance.choice(
        ["", " | acc: 0.5", " | acc:  10", " step 7/9 | loss: 3", " | took: 4 ms"]
    )
    return f"{prefix}step {step:4}/90 | loss: {value} | took 0:00:{step % 60}.5{extra}"


def test_both_ways_give_the_same(tmp_path, monkeypatch) -> None:
    for seed in range(40):
        chance = random.Random(seed)
        lines = [
            chance.choice([_line(chance, step), "noise", "step", _OVERFLOW])
            if chance.random() < 0.3
            else f"step {step:4}/90 | loss: {chance.random():.3f} | took 0:00:{step % 60}.5"
            for step in range(60)
        ]  # fmt: skip
        path = tmp_path / "x.log"
        path.write_text("\n".join(lines))
        by_shape = _read(path, by_shape=True, monkeypatch=monkeypatch)
        the_long_way = _read(path, by_shape=False, monkeypatch=monkeypatch)
        assert _seen(by_shape) == _seen(the_long_way), seed


def _taught(
    line: str, step: tuple[int, int] | None, values: Sequence[tuple[str, int, int]]
) -> Shapes:
    shapes = Shapes(LogBuilder())
    shapes.learn(line, step, values, rank=None, fixed=0)
    return shapes


@pytest.mark.parametrize(
    "line",
    [
        "step 8 loss 2.5 (4 ms) ",
        "step   8 loss   2.5 (40  ms)",
        "step 8 loss  2.5e0 (4 ms)",
    ],
)
def test_numbers_may_be_wider(line) -> None:
    shapes = _taught("step 7 loss 2.25 (3 ms)", (5, 6), [("loss", 12, 16)])
    assert shapes.read(line) == (8, [("loss", 2.5)], None)


@pytest.mark.parametrize(
    "line",
    [
        "step 8 lossy 2.5 (4 ms)",
        "step 8 loss 2.5 (4 s)",
        "step 8 loss 2.5 (4.5 ms)",
        "a step 8 loss 2.5 (4 ms)",
        "step 8 loss 2.5 (4 ms) step 9",
        "step 8 loss 2,500 (4 ms)",
        "step 8 loss 1.2.3 (4 ms)",
        "step 8.5.5 loss 2.5 (4 ms)",
    ],
)
def test_another_text_is_another_shape(line) -> None:
    assert _taught("step 7 loss 2.25 (3 ms)", (5, 6), [("loss", 12, 16)]).read(line) is None


def test_a_number_inside_a_longer_one_is_no_slot() -> None:
    assert _taught("v1.25 loss 3", None, [("x", 3, 5)]).known == []


def test_no_number_is_taken_for_two() -> None:
    # A damaged number teaches a shape whose gap must not be found inside a whole one.
    shapes = _taught("iter 7: loss 9.2 64, time 2.5ms", (5, 6), [("loss", 13, 16)])
    assert shapes.read("iter 8: loss 9.2764, time 2.5ms") is None


def test_a_damaged_line_does_not_speak_for_whole_ones(tmp_path) -> None:
    lines = [f"step {n}/9 | loss: {n}.25 | norm: 0.5 | took 0.1" for n in range(1, 8)]
    lines[3] = lines[3].replace("0.5 |", "0.5-1 |")
    path = tmp_path / "x.log"
    path.write_text("\n".join(lines))
    log = LogBuilder()
    _Plain().read(FileSource(path), log)
    (run,) = log.finish(path="", format="", title="").runs
    assert run.series["grad_norm"].steps.tolist() == [1, 2, 3, 5, 6, 7]


def test_a_sign_in_brackets_belongs_to_the_number() -> None:
    shapes = _taught("step 7 loss 2.25 (+0.31z)", (5, 6), [("loss", 12, 16)])
    assert shapes.read("step 8 loss 2.5 (-1.25z)") == (8, [("loss", 2.5)], None)


def test_shapes_are_bounded() -> None:
    shapes = Shapes(LogBuilder())
    for n in range(100):
        shapes.learn(f"{'x' * n}y 3", None, [("y", n + 2, n + 3)], rank=None, fixed=0)
    assert len(shapes.known) == MAX_SHAPES
    assert shapes.is_full


def test_rows_kept_back_reach_the_log_before_what_follows(tmp_path) -> None:
    path = tmp_path / "x.log"
    path.write_text(
        "step 1/9 | loss: 5\nstep 2/9 | loss: 4\nstep 3/9 | loss: 3\n"
        "Minimum loss scale reached\nstep 4/9 | loss: 2\n"
    )
    log = LogBuilder()
    _Plain().read(FileSource(path), log)
    (run,) = log.finish(path="", format="", title="").runs
    assert run.series["loss"].lines.tolist() == [1, 2, 3, 5]
    assert [(event.step, event.line) for event in run.events] == [(3, 4)]


def test_a_full_log_keeps_what_fits(tmp_path) -> None:
    path = tmp_path / "x.log"
    path.write_text("".join(f"step {n}/9 | loss: {n}\n" for n in range(20)))
    log = LogBuilder(max_rows=7)
    with pytest.raises(LogFull):
        _Plain().read(FileSource(path), log)
    read = log.finish(path="", format="", title="")
    assert read.runs[0].series["loss"].values.tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert any("first 7 rows" in note for note in read.notes)
