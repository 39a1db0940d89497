"""Requests taken in between steps, and what came back judged: once, durable, alike everywhere."""

from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from foreshock.data.ledger import LedgerEntry
from foreshock.data.requests import Request, Requests
from foreshock.data.stream import Stage, Stream
from foreshock.durable import RealDisk
from foreshock.feed import Feed
from foreshock.journal import Journal
from foreshock.upkeep import DataUpkeep

SAMPLES = [[n] for n in range(60)]
REFLOW: dict[str, Any] = {"command": "reflow", "entry_id": "w"}
REFLOW |= {"every_samples": 12, "watch_steps": 4}


class Loop:
    """A run of data alone, with what a Guard brings to the upkeep of it."""

    def __init__(self, run_dir: Path, *, resume: bool = False, **ranks: Any) -> None:
        self.disk = RealDisk()
        make: Any = Journal.open if resume else Journal.create
        self.warned: list[str] = []
        self.journal = make(self.disk, run_dir, {}, lambda: 0.0, warn=self.warned.append)
        stages = [Stage(name="s", sources={"a": SAMPLES}, repeats=None)]
        stream = Stream(stages, batch_size=4, seed=0, collate=list)
        for record in self.journal.records:
            stream.apply(record)
        self.feed = Feed(stream)
        self.progress = SimpleNamespace(attempt=1, step=0, recent=deque(maxlen=200))
        self.monitor = SimpleNamespace(last_step=0, episode=[])
        self.told: list[str] = []
        self.upkeep = DataUpkeep(
            self.feed,
            SimpleNamespace(progress=self.progress),  # type: ignore[arg-type]
            self.monitor,  # type: ignore[arg-type]
            self.journal,
            disk=self.disk,
            tell=lambda kind, _: self.told.append(kind),
            **ranks,
        )

    def set_aside(self, entry_id: str = "w", start: int = 8, stop: int = 11) -> None:
        entry = LedgerEntry(entry_id=entry_id, reason="spike", window=(start, stop))
        record = self.journal.write("quarantined", attempt=1, step=0, entry=entry.to_json())
        self.feed.stream.apply(record)

    def step(self, alarm: bool = False) -> list[int]:
        self.upkeep.settle()
        self.upkeep.take_in()
        data = self.feed.next_batch()
        if self.feed.wants_losses:
            self.feed.note_losses([value / 10 for (value,) in data])
        self.progress.step += 1
        positions = self.feed.take_positions()
        self.progress.recent.append((self.progress.step, tuple(positions)))
        self.monitor.last_step = self.progress.step
        if alarm:
            self.monitor.episode.append(SimpleNamespace(onset_step=self.progress.step))
        return positions

    def kinds(self, *kinds: str) -> list[dict[str, Any]]:
        return [one for one in self.journal.records if one["kind"] in kinds]


def leave(run_dir: Path, number: int = 1, **fields: Any) -> Request:
    request = Request(request=f"{number:016x}", **{**REFLOW, **fields})
    Requests(RealDisk(), run_dir).leave(request)
    return request


def test_a_request_is_taken_in_once_and_its_samples_are_looked_after(tmp_path: Path) -> None:
    loop = Loop(tmp_path / "run")
    loop.set_aside()
    for _ in range(4):
        loop.step()
    leave(tmp_path / "run")
    for _ in range(26):
        loop.step()
    assert len(loop.kinds("reflow_started")) == 1
    (started,) = loop.kinds("reflow_started")
    assert (started["start"], started["step"], started["request"]) == (20, 4, f"{1:016x}")
    found = loop.kinds("reflowed")
    assert [one["outcome"] for one in found] == ["well"] * 3
    for one in found:
        assert one["loss"] == one["key"][1] / 10
        assert one["batch_median"] >= 0
    assert loop.told == ["reflow_started", *["reflowed"] * 3]
    assert not list((tmp_path / "run" / "requests").iterdir())
    loop.journal.close()
    again = Loop(tmp_path / "run", resume=True)
    assert again.feed.stream.ledger.to_json() == loop.feed.stream.ledger.to_json()


def test_an_alarm_keeps_the_sample_for_good(tmp_path: Path) -> None:
    loop = Loop(tmp_path / "run")
    loop.set_aside()
    for _ in range(4):
        loop.step()
    leave(tmp_path / "run", every_samples=40)
    bad = loop.feed.stream.ledger.samples("w")[1]
    place = loop.feed.stream.order.last_visit(*bad, 12)
    for _ in range(40):
        coming = place in loop.step()
        if coming:
            loop.monitor.episode.append(SimpleNamespace(onset_step=loop.progress.step))
    outcomes = {tuple(one["key"]): one["outcome"] for one in loop.kinds("reflowed")}
    assert outcomes[bad] == "alarmed"
    assert sorted(outcomes.values()) == ["alarmed", "well", "well"]
    assert loop.feed.stream.ledger.held_by("w") == [bad]


def test_one_that_cannot_be_done_is_answered_in_the_journal(tmp_path: Path) -> None:
    loop = Loop(tmp_path / "run")
    loop.set_aside()
    leave(tmp_path / "run", entry_id="nothing")
    for _ in range(3):
        loop.step()
    (refused,) = loop.kinds("request_refused")
    assert "no entry 'nothing'" in refused["reason"]
    loop.journal.close()
    leave(tmp_path / "run", entry_id="nothing")  # as after a crash before it was removed
    again = Loop(tmp_path / "run", resume=True)
    again.step()
    assert len(again.kinds("request_refused")) == 1
    assert not list((tmp_path / "run" / "requests").iterdir())


def test_what_is_no_request_is_warned_of_once(tmp_path: Path) -> None:
    loop = Loop(tmp_path / "run")
    (tmp_path / "run" / "requests").mkdir()
    (tmp_path / "run" / "requests" / "x.json").write_bytes(b"{}")
    for _ in range(3):
        loop.step()
    (warning,) = loop.warned
    assert "x.json" in warning
    assert len(loop.journal.records) == 0


@pytest.mark.parametrize("num_written", [0, 1, 2])
def test_a_crash_in_the_middle_of_a_request_is_made_good(tmp_path: Path, num_written: int) -> None:
    """One request, three entries; the process dies after some of its records."""
    loop = Loop(tmp_path / "run")
    for number in range(3):
        loop.set_aside(f"rule/{number}", 8 + number, 9 + number)
    for _ in range(4):
        loop.step()
    stream = loop.feed.stream
    request = leave(tmp_path / "run", entry_id="rule")
    for kind, fields in request.records(stream.ledger, stream.order, stream.position)[:num_written]:
        assert "request" not in fields
        loop.journal.write(kind, attempt=1, step=4, **fields)
    state = stream.state_dict()
    loop.journal.close()
    again = Loop(tmp_path / "run", resume=True)
    again.feed.stream.load_state_dict(state)
    given = [position for _ in range(12) for position in again.step()]
    assert [given.count(position) for position in (8, 9, 10)] == [1, 1, 1]
    assert not list((tmp_path / "run" / "requests").iterdir())


def test_ranks_hear_of_requests_from_the_first(tmp_path: Path) -> None:
    first, other = tmp_path / "first", tmp_path / "other"
    said: list[list[str]] = []

    def speak(_what: str, ask: Any) -> Any:
        said.append(ask())
        return said[-1]

    loops = [
        Loop(first, num_ranks=2, is_first=True, from_first=speak),
        Loop(other, num_ranks=2, is_first=False, from_first=lambda _what, _ask: said[-1]),
    ]
    for loop in loops:
        loop.set_aside()
    leave(first)
    for _ in range(40):
        positions = [loop.step() for loop in loops]
        assert positions[0] == positions[1]
    assert len(said) == 3  # steps 0, 16 and 32: they meet for it
    kinds = ("reflow_started", "reflowed")
    assert loops[0].kinds(*kinds) == loops[1].kinds(*kinds)
    assert len(loops[0].kinds("reflowed")) == 3
    assert {one["loss"] for one in loops[0].kinds("reflowed")} == {None}


def test_a_loop_that_owns_its_loader_is_left_alone(tmp_path: Path) -> None:
    loop = Loop(tmp_path / "run")
    loop.feed.stream = None
    loop.upkeep.settle()
    loop.upkeep.take_in()
    assert loop.journal.records == []
