"""Every format of the benchmark, read by shapes and the long way: the same log."""

import random

import pytest

from benchmarks.reading import FORMATS, lines
from foreshock.core.line_shape import Shapes
from foreshock.logs import read_log

_WORDS = ("[WARNING] something else", "", "Minimum loss scale reached", "[default1]: noise")


def _text(name: str, seed: int) -> str:
    """Lines with others between them, some twice, and some of another process."""
    template, _, head = FORMATS[name]
    chance = random.Random(seed)
    text = head
    for line in lines(template, 400):
        kind = chance.random()
        if seed and kind < 0.02:
            text += chance.choice(_WORDS) + "\n"
        elif seed > 1 and kind < 0.05:
            text += f"[default{chance.randrange(2)}]: "
        elif seed > 1 and kind < 0.07:
            text += line.replace("5", chance.choice(["nan", "", "-"]), 1)
        text += line
    return text


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", sorted(set(FORMATS) - {"csv_table"}))
def test_by_shape_and_the_long_way(name, seed, tmp_path, monkeypatch) -> None:
    path = tmp_path / "x.log"
    path.write_text(_text(name, seed))
    by_shape = read_log(path, format=name)
    monkeypatch.setattr(Shapes, "learn", lambda *_, **__: None)
    the_long_way = read_log(path, format=name)
    assert by_shape.num_lines == the_long_way.num_lines
    for one, other in zip(by_shape.runs, the_long_way.runs, strict=True):
        assert one.events == other.events
        assert one.restarts == other.restarts
        assert one.total_steps == other.total_steps
        assert list(one.series) == list(other.series)
        for mine, theirs in zip(one.series.values(), other.series.values(), strict=True):
            assert mine.lines.tolist() == theirs.lines.tolist()
            assert mine.steps.tolist() == theirs.steps.tolist()
            assert mine.values.tobytes() == theirs.values.tobytes()
