"""Lines of JSON: every value, whatever comes in between."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from foreshock.core.errors import ConfigError
from foreshock.sinks.jsonl import Jsonl
from tests.sinks.mirrored import HOSTILE, RUN, a_run, step


def lines(path: Path) -> list[dict[str, Any]]:
    def refuse(constant: str) -> None:
        raise ValueError(constant)

    return [json.loads(line, parse_constant=refuse) for line in path.read_text().splitlines()]


def opened(path: Path, **options: Any) -> Any:
    (mirror,) = Jsonl(path=str(path), **options).mirrors(RUN)
    mirror.adopt()
    mirror.open()
    return mirror


def test_a_run_as_lines(tmp_path: Path) -> None:
    mirror = opened(tmp_path / "a.jsonl")
    mirror.take(a_run())
    mirror.close()
    found = lines(tmp_path / "a.jsonl")
    where = [(one["kind"], one["attempt"], one["step"]) for one in found]
    assert where == [
        ("step", 1, 1), ("step", 1, 2), ("step", 1, 3), ("notice", 1, 3), ("step", 2, 2),
        ("step", 2, 3),
    ]  # fmt: skip
    assert found[0]["readings"] == {"loss/global": 2.0, "grad_norm/global": 0.5}
    assert found[0]["thresholds"] == {"grad_norm/global": 5.0}
    assert found[1]["readings"]["loss/global"] == "NaN"
    assert found[1]["readings"]["grad_norm/global"] == "Infinity"
    assert found[1]["readings"]["grad_norm/blocks.0.attn"] == "-Infinity"
    assert found[2]["committed"] is False
    assert found[2]["alarms"][0]["threshold"] == 4.0
    assert (found[3]["notice"], found[3]["title"]) == ("plan", "plan 1 <b>")


def test_hostile_names_stay_inside_their_line(tmp_path: Path) -> None:
    mirror = opened(tmp_path / "a.jsonl")
    mirror.take([step(1, 1.0, series=HOSTILE)])
    mirror.close()
    (one,) = lines(tmp_path / "a.jsonl")
    assert tuple(one["readings"]) == HOSTILE


def test_a_line_that_a_crash_cut_short_does_not_spoil_the_next(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"kind":"step"}\n{"kin')
    mirror = opened(path)
    mirror.take([step(1)])
    mirror.close()
    assert json.loads(path.read_text().splitlines()[2])["step"] == 1


def test_a_full_disk_leaves_no_part_of_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror = opened(tmp_path / "a.jsonl")
    mirror.take([step(1)])
    write, calls = os.write, []

    def full(fd: int, data: bytes) -> int:
        calls.append(len(data))
        if len(calls) == 1:
            return write(fd, data[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("foreshock.sinks.jsonl.os.write", full)
    with pytest.raises(OSError, match="No space"):
        mirror.take([step(2)])
    monkeypatch.undo()
    mirror.take([step(2)])
    mirror.close()
    assert [one["step"] for one in lines(tmp_path / "a.jsonl")] == [1, 2]


def test_it_never_fills_a_disk(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    mirror = opened(path, max_bytes=2000)
    for number in range(1, 101):
        mirror.take([step(number)])
    mirror.close()
    older, newer = lines(tmp_path / "a.jsonl.1"), lines(path)
    numbers = [one["step"] for one in (*older, *newer)]
    assert numbers == list(range(numbers[0], 101))
    assert all(one.stat().st_size <= 2000 for one in tmp_path.iterdir())
    assert len(list(tmp_path.iterdir())) == 2


def test_a_path_that_cannot_be_used_is_refused_before_the_run(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for path in (tmp_path, tmp_path / "no" / "folder.jsonl", tmp_path / "link"):
        with pytest.raises(ConfigError, match=r"sinks\.jsonl\.path"):
            Jsonl(path=str(path)).mirrors(RUN)
