"""The page: one file, nothing loaded, nothing of the run's strings let loose."""

import builtins
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from foreshock.core.errors import ForeshockError, MissingExtra
from foreshock.report.html import read_held_out, render_report, write_report
from tests.report.pages import EVIL, Page, assert_loads_nothing
from tests.report.runs import NAN, Script, diagnosis, one_rollback, same
from tests.report.test_summary import aftermath


def test_the_page_stands_alone(tmp_path: Path) -> None:
    one_rollback(tmp_path / "run")
    write_report(tmp_path / "run", tmp_path / "deep" / "out.html", {})
    text = (tmp_path / "deep" / "out.html").read_text("utf-8")
    page = Page(text)
    assert_loads_nothing(page)
    assert "Finished at step 200; one incident (optimizer state corrupt, step 120)" in page.text
    assert "update_ratio/global moved first, 1 step before the loss" in page.text
    assert "the same step with fresh moments" in page.text
    assert "data batch" in page.text
    assert "@import" not in text.split("<script")[0]
    assert not re.search(r"url\(", text.split("<script")[0])


def test_hostile_strings_are_only_text(tmp_path: Path) -> None:
    run = Script(tmp_path / "run", program=EVIL)
    mover = f"grad_norm/{EVIL}"
    run.start(series=["loss/global", mover, f"activation_norm/$$x$$ {EVIL}"])
    run.train(130, same(1, 130, [1.0, 2.0, 3.0]))
    told = diagnosis(first_mover=mover, cause=EVIL, statement=EVIL)
    run.plan(told, why=EVIL, rung=EVIL, back_to=100)
    run.write("halted", note=EVIL)
    run.write("skip", reason=EVIL, grad_norm=1.0)
    run.write("rejected", position=3, entry={"rule": EVIL})
    run.snapshot([EVIL])
    run.write("run_halted")
    run.close()
    curves = {"curves": {EVIL: [[1, 2.0], [2, "NaN"], [3, 1.0]]}}
    (tmp_path / "run" / "demo.json").write_text(json.dumps(curves))
    other = one_rollback(tmp_path / "other")
    text = render_report(tmp_path / "run", {EVIL: other.run_dir})
    text.encode("utf-8")
    page = Page(text)
    assert_loads_nothing(page)
    assert page.text.count("<script>alert('x')</script>") >= 8
    assert "alert('x')" not in "".join(re.findall(r"<script[^>]*>(.*?)</script>", text, re.S))
    assert "$$" not in text.split("<body>")[1].rpartition("<script")[2]


def test_what_came_after_is_on_the_page(tmp_path: Path) -> None:
    run = Script(tmp_path / "run")
    aftermath(run)
    run.write("paused", key="plan9/0", reason="look", timeout_secs=7200.0)
    fields = {"plan": {"rung": EVIL, "why": EVIL}, "diagnosis": diagnosis(cause=EVIL).to_json()}
    run.write("advice", advice_id=1, **fields)
    run.write("notice_failed", channel=EVIL, notice="plan", reason=EVIL)
    run.write("strengthen_data", incident=1, capabilities=[EVIL], data=EVIL)
    run.close()
    page = Page(render_report(tmp_path / "run", {}))
    assert_loads_nothing(page)
    for part in (
        "rollback_further to step 100", "lifted by a person after 1 min", "looked at once more",
        "What teaches it: code text", "2 given back, by 7 replays", "stayed in memory: ",
        "2 notifications by slack", "only 1.5 MB were free", "waits for a person since step 200",
        "Advice, not carried out", "worse", "within noise",
    ):  # fmt: skip
        assert part.rstrip(": ") in page.text, part


def test_nan_runs_are_drawn(tmp_path: Path) -> None:
    run = Script(tmp_path / "run")
    run.start()
    run.train(50, same(10, 50, [NAN, math.inf, 0.0, NAN, -math.inf]))
    run.close()
    page = Page(render_report(tmp_path / "run", {}))
    assert "NaN or Inf" in page.text
    assert "zero or less" in page.text


def test_a_run_of_nothing_but_nan(tmp_path: Path) -> None:
    run = Script(tmp_path / "run")
    run.start()
    run.train(3, same(1, 3, [NAN] * 5))
    run.plan(diagnosis(2, loss_moved=2), back_to=0)
    run.close()
    assert "NaN or Inf" in Page(render_report(tmp_path / "run", {})).text


def test_a_run_without_readings(tmp_path: Path) -> None:
    run = Script(tmp_path / "run")
    page = Page(render_report(tmp_path / "run", {}))
    assert_loads_nothing(page)
    assert "There are no readings to draw." in page.text
    run.start()
    run.plan(diagnosis(), back_to=100)
    run.close()
    assert "not carried out yet" in Page(render_report(tmp_path / "run", {})).text


def test_the_demo_and_other_runs_are_drawn_beside(tmp_path: Path) -> None:
    one_rollback(tmp_path / "run")
    one_rollback(tmp_path / "plain")
    points = [[step, 3.0 - step / 100] for step in range(0, 100, 5)]
    curves = {"guarded": points, "unguarded": [*points, [100, math.nan]], "untouched twin": points}
    (tmp_path / "run" / "demo.json").write_text(json.dumps({"curves": curves, "incidents": []}))
    page = Page(render_report(tmp_path / "run", {"plain one": tmp_path / "plain"}))
    for name in ("guarded", "unguarded", "untouched twin", "plain one", "this run"):
        assert name in page.text


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "{", '{"curves": 3}', '{"curves": {"a": [[1]]}}', "[" * 100_000),
        *('{"curves": {"a": [["x", 2]]}}', '{"curves": {"a": [[1, "two"]]}}'),
    ],
)
def test_a_broken_demo_file_is_a_note(tmp_path: Path, text: str) -> None:
    (tmp_path / "demo.json").write_text(text)
    curves, notes = read_held_out(tmp_path / "demo.json")
    assert curves == {}
    assert "demo.json cannot be shown" in notes[0]


def test_missing_packages_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one_rollback(tmp_path / "run")
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == "jinja2":
            raise ImportError("no", name="jinja2")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtra, match=r"pip install 'foreshock\[report\]'"):
        render_report(tmp_path / "run", {})


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    Script(tmp_path / "run").close()
    (tmp_path / "file").write_text("")
    with pytest.raises(ForeshockError, match="--out"):
        write_report(tmp_path / "run", tmp_path / "file" / "out.html", {})
