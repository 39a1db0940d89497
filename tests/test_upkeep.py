"""Requests taken in between steps, and what came back judged: once, durable, alike everywhere."""

import json
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from foreshock.core.minimal import Minimal
from foreshock.data.ledger import LedgerEntry
from foreshock.data.minimized import Dropped, Minimized, fields_of
from foreshock.data.requests import Request, Requests
from foreshock.data.stream import Stage, Stream
from foreshock.decided import Decided
from foreshock.durable import RealDisk
from foreshock.feed import Feed
from foreshock.journal import Journal
from foreshock.upkeep import DataUpkeep
from tests.data.recovered import closed, finding, planned, reopened

SAMPLES = [[n] for n in range(60)]
REFLOW: dict[str, Any] = {"command": "reflow", "entry_id": "w"}
REFLOW |= {"every_samples": 12, "watch_steps": 4}


class Loop:
    """A run of data alone, with what a Guard brings to the upkeep of it."""

    def __init__(
        self, run_dir: Path, *, resume: bool = False, rank: int = 0, world: int = 1, **ranks: Any
    ) -> None:
        self.disk = RealDisk()
        make: Any = Journal.open if resume else Journal.create
        self.warned: list[str] = []
        self.journal = make(self.disk, run_dir, {}, lambda: 0.0, warn=self.warned.append)
        stages = [Stage(name="s", sources={"a": SAMPLES}, repeats=None)]
        stream = Stream(stages, batch_size=4, seed=0, collate=list, rank=rank, world_size=world)
        for record in self.journal.records:
            stream.apply(record)
        self.feed = Feed(stream)
        self.progress = SimpleNamespace(attempt=1, step=0, recent=deque(maxlen=200))
        self.monitor = SimpleNamespace(last_step=0, episode=[])
        self.told: list[str] = []
        self.now = 0.0
        ranks = {"clock": lambda: self.now, **ranks}
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

    def step(self, alarm: bool = False, secs: float = 1.0) -> list[int]:
        self.now += secs
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


class Meeting:
    """Where two ranks, each in a thread of its own, tell each other something."""

    def __init__(self) -> None:
        self._barrier = threading.Barrier(2, timeout=60)
        self._said = [b"", b""]
        self.heard: list[str] = []

    def exchange(self, rank: int) -> Any:
        def meet(what: str, said: bytes) -> list[bytes]:
            self._said[rank] = said
            self._barrier.wait()
            rows = list(self._said)
            self._barrier.wait()
            if rank == 0:
                self.heard.append(what)
            return rows

        return meet

    def from_first(self, rank: int) -> Any:
        def meet(what: str, ask: Any) -> Any:
            said = json.dumps(ask() if rank == 0 else None).encode()
            return json.loads(self.exchange(rank)(what, said)[0])

        return meet


def test_the_loss_of_a_sample_is_known_on_all_ranks_alike(tmp_path: Path) -> None:
    """Only the rank that trained a sample knows its loss; it tells the others."""
    meeting = Meeting()

    def trained(rank: int) -> Loop:
        loop = Loop(
            tmp_path / str(rank),
            rank=rank,
            world=2,
            num_ranks=2,
            is_first=rank == 0,
            from_first=meeting.from_first(rank),
            exchange=meeting.exchange(rank),
        )
        for number in range(3):  # so that a batch has three that come back, on both ranks
            loop.set_aside(f"w{number}", 8 + 6 * number, 14 + 6 * number)
            if rank == 0:
                leave(tmp_path / "0", number, entry_id=f"w{number}", every_samples=1)
        for _ in range(80):
            loop.step()
        return loop

    with ThreadPoolExecutor(2) as pool:
        loops = list(pool.map(trained, range(2)))
    told = [loop.kinds("reflowed") for loop in loops]
    assert told[0] == told[1]
    assert len(told[0]) == 18
    assert all(one["loss"] == one["key"][1] / 10 for one in told[0])
    assert loops[0].journal.decided.digest == loops[1].journal.decided.digest
    assert 1 <= meeting.heard.count("losses") <= 18  # they meet where there is something to tell
    for loop in loops:
        other = Decided()
        for record in loop.journal.records:
            changed = {**record, "loss": 1.5} if record["kind"] == "reflowed" else record
            other.add(changed)
        assert other.digest != loop.journal.decided.digest  # ranks that differ in it would stop


def recover(loop: Loop, *told: Any) -> None:
    for records in told:
        for kind, fields in records:
            loop.feed.stream.apply(loop.journal.write(kind, attempt=1, step=0, **fields))


def leave_finding(run_dir: Path, found: Any, number: int = 1) -> None:
    Requests(RealDisk(), run_dir).leave(Minimized(request=f"{number:016x}", found=found))


def test_a_finding_is_taken_in_once_and_what_is_not_needed_comes_back(tmp_path: Path) -> None:
    loop = Loop(tmp_path / "run")
    recover(loop, planned(1, 1, (8, 24)), closed(1))
    for _ in range(8):
        loop.step()
    keys = loop.feed.stream.ledger.samples("plan1/0")
    needed, cleared = keys[:5], keys[5:]
    leave_finding(tmp_path / "run", finding(1, {"plan1/0": cleared}, needed=needed))
    loop.step()
    (record,) = loop.kinds("minimized")
    assert record["request"] == f"{1:016x}"
    assert record["step"] == 8
    assert Minimal.from_json(fields_of(record)).needed == needed
    (flow,) = loop.kinds("reflow_started")
    assert [tuple(key) for key in flow["ids"]] == list(cleared)
    assert loop.told[-2:] == ["reflow_started", "minimized"]
    for _ in range(60):
        loop.step()
    assert {one["outcome"] for one in loop.kinds("reflowed")} == {"well"}
    assert loop.feed.stream.ledger.held_by("plan1/0") == list(needed)
    loop.journal.close()
    again = Loop(tmp_path / "run", resume=True)
    assert again.feed.stream.ledger.to_json() == loop.feed.stream.ledger.to_json()
    again.step()
    assert len(again.kinds("minimized")) == 1


def test_a_finding_waits_while_another_incident_is_open(tmp_path: Path) -> None:
    loop = Loop(tmp_path / "run")
    recover(loop, planned(1, 1, (8, 24)), closed(1))
    keys = loop.feed.stream.ledger.samples("plan1/0")
    leave_finding(tmp_path / "run", finding(1, {"plan1/0": keys}))
    leave(tmp_path / "run", 2, command="release", entry_id="plan1/0", ids=keys[:1], every_samples=0)
    recover(loop, planned(2, 2, (40, 44)))
    for _ in range(5):
        loop.step()
    assert len(loop.kinds("released")) == 1  # a person's is obeyed at once
    assert loop.kinds("minimized") == []
    assert len(list((tmp_path / "run" / "requests").iterdir())) == 1
    recover(loop, closed(2))
    loop.step()
    assert len(loop.kinds("minimized")) == 1
    assert list((tmp_path / "run" / "requests").iterdir()) == []


def test_one_of_an_incident_that_went_on_is_refused(tmp_path: Path) -> None:
    loop = Loop(tmp_path / "run")
    recover(loop, planned(1, 1, (8, 24)), closed(1))
    keys = loop.feed.stream.ledger.samples("plan1/0")
    leave_finding(tmp_path / "run", finding(1, {"plan1/0": keys}))
    recover(loop, reopened(1), planned(1, 2, (8, 40)), closed(1))
    loop.step()
    (refused,) = loop.kinds("request_refused")
    assert "had 1 plans, and has 2" in refused["reason"]
    assert loop.feed.stream.ledger.held_by("plan1/0") == list(keys)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (finding(7, {}), "no incident 7"),
        (finding(1, {"plan9/0": (("a", 1),)}), "no entry 'plan9/0'"),
        (finding(1, {"plan1/0": (("a", 10**9),)}), "has not set aside"),
        (finding(1, {"plan1/0": (("z", 1),)}), "has not set aside"),
        (finding(1, {}, needed=(("z", 1),)), "has not set aside"),
        (Dropped(request="e" * 16, incident=7, num_plans=1, reason="r"), "no incident 7"),
    ],
)
def test_a_finding_of_another_run_changes_nothing(tmp_path: Path, found: Any, said: str) -> None:
    loop = Loop(tmp_path / "run")
    recover(loop, planned(1, 1, (8, 24)), closed(1))
    before = loop.feed.stream.ledger.to_json()
    if isinstance(found, Dropped):
        Requests(RealDisk(), tmp_path / "run").leave(found)
    else:
        leave_finding(tmp_path / "run", found)
    loop.step()
    (refused,) = loop.kinds("request_refused")
    assert said in refused["reason"]
    assert loop.feed.stream.ledger.to_json() == before
    assert list((tmp_path / "run" / "requests").iterdir()) == []


def test_that_there_is_no_finding_is_journalled(tmp_path: Path) -> None:
    loop = Loop(tmp_path / "run")
    recover(loop, planned(1, 1, (8, 24)), closed(1))
    Requests(RealDisk(), tmp_path / "run").leave(
        Dropped(request="e" * 16, incident=1, num_plans=1, reason="no snapshot")
    )
    for _ in range(3):
        loop.step()
    (record,) = loop.kinds("minimize_dropped")
    assert (record["incident"], record["num_plans"]) == (1, 1)
    assert record["reason"] == "no snapshot"


def test_requests_are_looked_for_once_a_second_at_most(tmp_path: Path) -> None:
    loop = Loop(tmp_path / "run")
    looks: list[int] = []
    pending = loop.upkeep._requests.pending
    loop.upkeep._requests.pending = lambda: looks.append(loop.progress.step) or pending()  # type: ignore[method-assign,func-returns-value]
    for _ in range(40):
        loop.step(secs=0.25)
    assert looks == list(range(0, 40, 4))
    loop.now = -1000.0  # a clock that is set back does not silence it
    loop.step(secs=0.25)
    assert looks[-1] == 40


def test_a_loop_that_owns_its_loader_is_left_alone(tmp_path: Path) -> None:
    loop = Loop(tmp_path / "run")
    loop.feed.stream = None
    loop.upkeep.settle()
    loop.upkeep.take_in()
    assert loop.journal.records == []
