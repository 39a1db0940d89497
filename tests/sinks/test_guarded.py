"""A real run that goes wrong and is put right, seen through its mirrors."""

import dataclasses
import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import foreshock
from foreshock.core.errors import ConfigError, MissingExtra
from foreshock.core.mirrored import MirroredNotice, MirroredRun
from foreshock.core.sink import NotMirroredError
from foreshock.guard import Guard
from foreshock.mirroring import Mirroring
from foreshock.observation import Row
from foreshock.sinks.jsonl import Jsonl
from tests.guard.programs import guarded, make, recipe, run
from tests.sinks.mirrored import Fake, Fakes


def poison_later(guard: Guard, training: Any) -> None:
    """Break the weights once, at step 12 of the first attempt."""
    if guard.step_number == 12 and guard.attempt == 1:
        with torch.no_grad():
            training.model.out.weight.mul_(float("nan"))


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def close_soon(guard: Any) -> None:
    """Let the end of the run wait for its mirrors half a second only."""
    mirroring = guard._notices._mirroring
    close = mirroring.close
    mirroring.close = lambda _secs: close(0.5)


def survivors(steps: list[tuple[int, int]]) -> list[int]:
    """The steps that were not undone, as a mirror tells them by attempt and step."""
    kept: list[int] = []
    for _, step in steps:
        kept = [one for one in kept if one < step] + [step]
    return kept


def test_a_listener_can_mirror_a_run_bit_for_bit_as_its_journal_has_it(tmp_path: Path) -> None:
    """Without any wiring in the Guard: what it tells its listener is enough."""
    fake = Fake()
    training = make()
    guards: list[Guard] = []

    def tell(kind: str, content: Any) -> None:
        if kind == "step":
            row: Row = content["row"]
            mirrors.step(guards[0].attempt, content["series"], row, content["alarms"])

    guard = guarded(training, tmp_path / "run", listener=tell, max_steps=25)
    guards.append(guard)
    mirrors = Mirroring(
        [Fakes(fakes=(fake,))],
        MirroredRun(name="run"),
        limits=lambda: np.array(
            [guard.monitor.limit(name) or np.inf for name in guard.monitor.timeline.series]
        ),
        record=lambda *_: None,
    )
    run(training, guard, before_step=poison_later)
    mirrors.close(60)
    assert {attempt for attempt, _ in fake.steps} == {1, 2}
    assert survivors(fake.steps) == list(range(1, 26))
    values = {one.step: one.readings()["loss/global"] for one in fake.taken}
    with foreshock.open(tmp_path / "run") as data:
        kept = data.read("loss/global")
    mirrored = [values[step] for step in kept.steps.tolist()]
    np.testing.assert_array_equal(np.array(mirrored, np.float32), kept["loss/global"])
    assert any(one.limits() for one in fake.taken)
    assert any(one.alarms for one in fake.taken)


def test_a_guard_mirrors_its_steps_its_thresholds_and_its_decisions(tmp_path: Path) -> None:
    training = make()
    sink = Jsonl(path=str(tmp_path / "mirror.jsonl"))
    settings = dataclasses.replace(recipe(), sinks=(sink,))
    guard = guarded(training, tmp_path / "run", recipe=settings, max_steps=45)
    run(training, guard, before_step=poison_later)
    found = lines(tmp_path / "mirror.jsonl")
    steps = [(one["attempt"], one["step"]) for one in found if one["kind"] == "step"]
    assert survivors(steps) == list(range(1, 46))
    assert {attempt for attempt, _ in steps} == {1, 2}
    assert {one["run"] for one in found} == {"run"}
    told = [one["notice"] for one in found if one["kind"] == "notice"]
    assert told[0] == "incident_opened"
    assert any(one.get("alarms") for one in found)
    limits = [one for one in found if one.get("thresholds")]
    assert limits[-1]["step"] >= 40
    monitor = guard.monitor
    for series, limit in zip(monitor.timeline.series, monitor.limits().tolist(), strict=True):
        assert (monitor.limit(series) or np.inf) == limit
    opened = next(at for at, one in enumerate(found) if one["kind"] == "notice")
    assert found[opened - 1]["attempt"] == 1  # the step that alarmed comes before what it led to
    assert found[opened + 1]["attempt"] == 2


def test_a_run_with_mirrors_is_the_same_run_even_if_they_fail_and_hang(tmp_path: Path) -> None:
    digests = []
    for name in ("none", "three"):
        fails, hangs, works = Fake(*[NotMirroredError("no")] * 10_000), Fake(), Fake()
        hangs.free.clear()
        training = make()
        sinks = (Fakes(fakes=(fails, hangs, works)),) if name == "three" else ()
        settings = dataclasses.replace(recipe(), sinks=sinks)
        guard = guarded(training, tmp_path / name, recipe=settings, max_steps=30)
        close_soon(guard)
        digests.append(run(training, guard, before_step=poison_later))
        kinds = {record["kind"] for record in guard.records if "mirror" in record["kind"]}
        if name == "three":
            assert kinds == {"mirror_failed", "mirror_dropped"}
            assert survivors([s for s in works.steps if s[1] > 0]) == list(range(1, 31))
            assert any(isinstance(one, MirroredNotice) for one in works.taken)
            hangs.free.set()
    assert digests[0] == digests[1]


def test_a_resumed_run_goes_on_in_its_mirror(tmp_path: Path) -> None:
    sink = Jsonl(path=str(tmp_path / "mirror.jsonl"))
    for last, resume in ((10, False), (20, True)):
        training = make()
        settings = dataclasses.replace(recipe(), sinks=(sink,))
        guard = guarded(training, tmp_path / "run", recipe=settings, max_steps=last, resume=resume)
        run(training, guard)
    found = [(one["attempt"], one["step"]) for one in lines(tmp_path / "mirror.jsonl")]
    assert survivors(found) == list(range(1, 21))
    assert found[-1] == (2, 20)


def test_a_sink_that_cannot_be_built_leaves_no_run_directory(tmp_path: Path) -> None:
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Missing(Fakes):
        def mirrors(self, run: MirroredRun) -> Any:
            raise MissingExtra("pip install it")

    for sink, error in (
        (Missing(fakes=()), MissingExtra),
        (Jsonl(path=str(tmp_path / "no" / "a")), ConfigError),
    ):
        settings = dataclasses.replace(recipe(), sinks=(sink,))
        with pytest.raises(error):
            guarded(make(), tmp_path / "run", recipe=settings)
        assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("kept", [False, True])
def test_a_loop_that_is_only_watched_is_mirrored(kept: bool, tmp_path: Path) -> None:
    fails, works = Fake(*[NotMirroredError("no")] * 10_000), Fake()
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    options = {"run_dir": tmp_path / "run"} if kept else {}
    watched = foreshock.watch(
        model, optimizer, sinks=[Fakes(fakes=(works, fails))], **options
    )  # fmt: skip

    def train(first: int, last: int) -> None:
        for number in range(first, last):
            loss = model(torch.full((4, 2), float(number))).square().mean()
            loss.backward()
            watched.loss(loss * (float("nan") if number == 5 else 1.0))
            optimizer.step()
            optimizer.zero_grad()

    expected = nullcontext() if kept else pytest.warns(UserWarning, match="mirror_failed")
    with expected:
        train(1, 8)
        watched.close()
    if kept:
        kinds = [one["kind"] for one in lines(tmp_path / "run" / "decisions.jsonl")]
        assert "mirror_failed" in kinds
    assert [step for _, step in works.steps] == list(range(1, 8))
    assert works.taken[0].series == watched.series
    assert [one.step for one in works.taken if one.alarms] == [5]
