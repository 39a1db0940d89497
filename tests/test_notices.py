"""People are told, and no service can hurt the training or learn its way into a file."""

import dataclasses
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from foreshock.core.incident import IncidentBook
from foreshock.core.ladder import RUNGS, order, rung
from foreshock.core.notice import MAX_CHARS
from foreshock.core.policy import Policy
from foreshock.core.sink import Notice, NoticeKind, NotSentError, Sink
from foreshock.notices import MAX_WAITING, VARIABLE, Notices, sinks_of
from foreshock.sinks.apprise import Apprise
from tests.guard.programs import guarded, make, poisoned_stages, recipe, run
from tests.lab.incidents import recovered_incident
from tests.sinks.receiving import SECRET, serving


class Fake:
    """A channel in memory. It waits while `held` is set, and raises what it is told to."""

    def __init__(self, error: Exception | None = None) -> None:
        self.label = "fake"
        self.sent: list[Notice] = []
        self.error = error
        self.free = threading.Event()
        self.free.set()
        self.busy = threading.Event()

    def send(self, notice: Notice) -> None:
        self.busy.set()
        self.free.wait(60)
        if self.error is not None:
            raise self.error
        self.sent.append(notice)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fakes(Sink):
    name = "fakes"
    on: tuple[str, ...] = tuple(NoticeKind)
    fakes: tuple[Fake, ...]

    def channels(self) -> tuple[Fake, ...]:
        return self.fakes


def notices(*fakes: Fake, on: tuple[str, ...] = tuple(NoticeKind)) -> tuple[Notices, list[Any]]:
    failed: list[Any] = []
    found = Notices(
        [Fakes(fakes=fakes, on=on)],
        run_dir=Path("runs/a"),
        limits=lambda: np.empty(0),
        record=lambda _kind, attempt, step, fields: failed.append((attempt, step, fields)),
        tell=lambda _kind, _content: None,
    )
    return found, failed


def until(so: Callable[[], bool]) -> None:
    """Give other threads their turn until it is so; a run that hangs is ended by its caller."""
    while not so():
        time.sleep(0.001)


def planned(number: int = 1) -> dict[str, Any]:
    incident, _ = recovered_incident(digest_equal=True, probes_passed=True)
    incident.plans = incident.plans * number
    return {"plan": incident.plans[-1], "incident": incident}


CLOSED = {"incident": 1, "outcome": "recovered"}
PASSED = {"incident": 1, "passed": True, "probes": [{"probe": "copy", "passed": True}], "note": ""}
FELL = {"incident": 1, "passed": False, "probes": [{"probe": "brackets", "passed": False}]}


def test_each_event_is_told_in_words_that_can_be_acted_on() -> None:
    fake = Fake()
    told, failed = notices(fake)
    for kind, content in [
        ("plan", planned()), ("verification", FELL), ("plan", planned(2)),
        ("verification", PASSED), ("incident_closed", CLOSED),
    ]:  # fmt: skip
        told.tell(kind, content)
    told.halted("Halted at step 30: nothing else is left to try.")
    told.close()
    kinds = [notice.kind.value for notice in fake.sent]
    assert kinds == ["incident_opened", "verification_failed", "plan", "recovered", "halted"]
    opened, fell, plan, recovered, halted = (f"{n.title}\n{n.body}" for n in fake.sent)
    for part in ("a: incident 1", "step 22", "data_batch (90%)", "loss/global left its range",
                 "rollback", "You need not do anything", "foreshock report runs/a"):  # fmt: skip
        assert part in opened
    assert "brackets" in fell
    assert "plan 2" in plan
    assert "1 probe(s) against before" in recovered
    for part in ("HALTED", "nothing else is left", "handover.md", "--resume"):
        assert part in halted
    assert failed == []


def test_a_halt_is_told_once_however_it_is_heard_of() -> None:
    fake = Fake()
    told, _ = notices(fake)
    content = planned()
    record = content["plan"]
    note = {"name": "halt", "arguments": {"note": "Halted at step 9: x."}}
    record.plan = record.plan.from_json({**record.plan.to_json(), "actions": [note]})
    told.tell("plan", content)
    told.tell("incident_closed", {"incident": 1, "outcome": "halted"})
    told.halted("again")
    told.close()
    assert [notice.kind for notice in fake.sent] == [NoticeKind.HALTED]
    assert "Halted at step 9" in fake.sent[0].body


def test_only_what_was_asked_for_is_sent() -> None:
    fake = Fake()
    told, _ = notices(fake, on=("halted",))
    told.tell("plan", planned())
    told.halted("x")
    told.close()
    assert [notice.kind for notice in fake.sent] == [NoticeKind.HALTED]


def test_a_body_fits_every_service() -> None:
    fake = Fake()
    told, _ = notices(fake)
    told.halted("x" * 100_000)
    told.close()
    assert len(fake.sent[0].body) <= MAX_CHARS
    assert fake.sent[0].body.endswith("foreshock report runs/a")


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (NotSentError("refused"), "refused"),
        (ValueError(f"http://{SECRET}"), "ValueError"),
    ],
)
def test_a_failure_is_counted_and_recorded_without_an_address(error: Exception, says: str) -> None:
    told, failed = notices(Fake(error))
    told.tell("plan", planned())
    told.close()
    ((attempt, _, fields),) = failed
    assert (attempt, told.num_failed) == (1, 1)
    assert (fields["channel"], fields["notice"]) == ("fake", "incident_opened")
    assert says in fields["reason"]
    assert SECRET not in str(fields)


def test_a_service_that_hangs_holds_up_neither_the_run_nor_another() -> None:
    stuck, well = Fake(), Fake()
    well.label = "well"
    stuck.free.clear()
    told, failed = notices(stuck, well)
    told.tell("plan", planned())
    assert stuck.busy.wait(30)
    for number in range(1, MAX_WAITING + 6):
        told.tell("verification", FELL)
        until(lambda number=number: len(well.sent) == number + 1)
    told.close(secs=0.2)
    ours = [one for one in threading.enumerate() if one.name == "foreshock-notice"]
    assert ours
    assert all(one.daemon for one in ours)  # the process ends without it
    stuck.free.set()
    full = [fields for *_, fields in failed if "others wait" in fields["reason"]]
    ended = [fields for *_, fields in failed if "run ended" in fields["reason"]]
    assert {fields["channel"] for *_, fields in failed} == {"fake"}
    assert (len(full), len(ended)) == (5, MAX_WAITING + 1)
    assert len(well.sent) == MAX_WAITING + 6


def test_a_listener_hears_everything_as_without_notices() -> None:
    heard: list[str] = []
    told = Notices(
        (),
        run_dir=Path("r"),
        limits=lambda: np.empty(0),
        record=lambda *_: None,
        tell=lambda kind, _content: heard.append(kind),
    )
    told.tell("step", {})
    told.tell("resumed", {})
    told.close()
    assert heard == ["step", "resumed"]


def test_the_environment_adds_services() -> None:
    own = Apprise(urls=("json://one",))
    assert sinks_of([own], {}) == (own,)
    assert sinks_of([own], {VARIABLE: " "}) == (own,)
    added = sinks_of([own], {VARIABLE: "json://two\tjson://three,four"})
    assert added == (own, Apprise(urls=("json://two", "json://three,four")))


# ---- in a run ---------------------------------------------------------------------------


def with_service(url: str, **policy: Any) -> Any:
    return dataclasses.replace(recipe(**policy), sinks=(Apprise(urls=(url,)),))


def files_with(text: str, folder: Path) -> list[Path]:
    return [p for p in folder.rglob("*") if p.is_file() and text.encode() in p.read_bytes()]


def test_a_run_tells_its_story_and_no_file_knows_to_whom(tmp_path: Path, capfd) -> None:
    with serving() as service:
        training = make(stages=poisoned_stages(480, 32, 1600))
        guard = guarded(training, tmp_path / "run", recipe=with_service(service.url()))
        run(training, guard)
    titles = [one["title"] for one in service.received]
    assert any("incident 1 at step" in title for title in titles)
    assert any("recovered" in title for title in titles)
    assert files_with(SECRET, tmp_path) == []
    printed = capfd.readouterr()
    assert SECRET not in printed.out + printed.err


@pytest.mark.parametrize("mood", ["hang", "refuse", "drop"])
def test_a_bad_service_changes_no_bit_of_a_run(tmp_path: Path, mood: str) -> None:
    stages = poisoned_stages(480, 32, 480)
    plain = make(stages=stages)
    expected = run(plain, guarded(plain, tmp_path / "plain"))
    with serving(mood) as service:
        told = make(stages=stages)
        url = service.url(rto=0.5)
        guard = guarded(told, tmp_path / "told", recipe=with_service(url))
        assert run(told, guard) == expected
        assert service.wait()
    failed = [record for record in guard.records if record["kind"] == "notice_failed"]
    assert failed
    assert {record["channel"] for record in failed} == {"json (URL 1)"}
    assert files_with(SECRET, tmp_path) == []
    IncidentBook(guard.records)


def test_a_halt_reaches_someone(tmp_path: Path) -> None:
    with serving() as service:
        training = make()

        def hurt(guard, training):
            if guard.step_number >= 30:
                weight = training.model.last_norm.weight
                weight.register_hook(lambda grad: grad * float("nan"))

        given = with_service(service.url(), max_rollbacks=0)
        guard = guarded(training, tmp_path / "run", recipe=given, max_steps=60)
        run(training, guard, before_step=hurt)
        halted = [one for one in service.received if "HALTED" in one["title"]]
    assert guard.halted is not None
    assert len(halted) == 1
    assert "someone must look" in halted[0]["title"]
    assert guard.halted.splitlines()[0] in halted[0]["message"]


def test_an_address_that_is_no_address_is_refused_before_a_run_directory_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, f"nosuch://{SECRET}")
    with pytest.raises(Exception, match="URL number 1") as caught:
        guarded(make(), tmp_path / "run")
    assert SECRET not in str(caught.value)
    assert not (tmp_path / "run").exists()


# ---- waiting for a person ---------------------------------------------------------------


class Died(BaseException):
    """The process is gone."""


def waiting(folder: Path, fake: Fake, **options: Any) -> tuple[Any, Any]:
    """A run that breaks at step 30, and whose policy asks for a person, or halts after none."""
    training = make()
    pause = rung(order("pause", timeout_secs=0.0))
    policy = Policy(ladder=("pause", "halt"), rungs={**RUNGS, "pause": pause}, preferences={})
    chosen = dataclasses.replace(recipe(), policy=policy, sinks=(Fakes(fakes=(fake,)),))
    return training, guarded(training, folder, recipe=chosen, max_steps=60, **options)


def break_it(guard: Any, training: Any) -> None:
    if guard.step_number >= 30:
        training.model.last_norm.weight.register_hook(lambda grad: grad * float("nan"))


def test_people_hear_that_a_run_waits_for_them_and_how_to_go_on(tmp_path: Path) -> None:
    fake = Fake()
    training, guard = waiting(tmp_path / "run", fake)
    run(training, guard, before_step=break_it)
    assert [one.kind for one in fake.sent] == [NoticeKind.PAUSED, NoticeKind.HALTED]
    paused, halted = (f"{one.title}\n{one.body}" for one in fake.sent)
    assert "waits for you" in paused
    assert f"touch {tmp_path / 'run'}/resume.now" in paused
    assert "halts 0 seconds after" in paused and "--resume" in paused
    assert "nobody lifted the pause" in halted or "handover.md" in halted


def test_who_was_not_told_before_the_process_died_is_told_on_resume(tmp_path: Path) -> None:
    def die(kind: str, _content: Any) -> None:
        if kind == "waiting":
            raise Died

    lost, told = Fake(), Fake()
    training, guard = waiting(tmp_path / "run", lost, listener=die)
    with pytest.raises(Died):
        run(training, guard, before_step=break_it)
    assert lost.sent == []
    training, guard = waiting(tmp_path / "run", told, resume=True)
    run(training, guard)
    assert [one.kind for one in told.sent] == [NoticeKind.PAUSED, NoticeKind.HALTED]


def test_what_nothing_older_helps_is_told_with_the_data_that_would() -> None:
    fake = Fake()
    told, _ = notices(fake)
    told.tell("verification", {**FELL, "again": True})
    advice = {"incident": 1, "capabilities": ["brackets"], "data": "code"}
    told.tell("strengthen_data", advice)
    told.tell("verification", {**FELL, "again": True, "reopens": True})
    told.close()
    first, then = (f"{one.title}\n{one.body}" for one in fake.sent)
    assert "nothing older helps" in first and "brackets" in first and "again: code" in first
    assert "goes further" in then
