"""A run is mirrored, and no mirror can hurt it: not by failing, hanging or being slow."""

import dataclasses
import json
import math
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from foreshock.core.detector import Alarm
from foreshock.core.errors import ConfigError, MissingExtra
from foreshock.core.mirrored import MirroredNotice, MirroredRun, MirroredStep
from foreshock.core.reading import ABSENT
from foreshock.core.sink import NoticeKind, NotMirroredError
from foreshock.mirror_lane import BATCH, MAX_SAID, MAX_STEPS
from foreshock.mirroring import THRESHOLDS_EVERY_STEPS, TOLD_EVERY_SECS, Mirroring
from foreshock.observation import Row
from tests.sinks.mirrored import HALT, NOTICE, RUN, SERIES, Fake, Fakes, alarm, until

LIMITS = np.array([4.0, math.inf, math.nan])


class Clock:
    """Seconds that pass only when they are told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def mirroring(*fakes: Any, clock: Clock | None = None, **options: Any) -> tuple[Mirroring, list]:
    records: list[tuple[str, int, int, dict[str, Any]]] = []
    found = Mirroring(
        [Fakes(fakes=fakes, **options)],
        RUN,
        limits=lambda: LIMITS,
        record=lambda *record: records.append(record),
        monotonic=clock or Clock(),
        first_wait_secs=0.001,
    )
    return found, records


def put(mirrors: Mirroring, number: int, attempt: int = 1, alarms: tuple[Alarm, ...] = ()) -> None:
    values = np.array([number, 0.5, ABSENT], np.float32)
    values[2:] = ABSENT
    mirrors.step(attempt, SERIES, Row(number, True, values, ()), alarms)


def test_steps_alarms_and_notices_arrive_in_order_and_backwards_with_the_run() -> None:
    fake = Fake()
    mirrors, records = mirroring(fake)
    for number in range(1, 8):
        put(mirrors, number, alarms=(alarm(number),) if number == 7 else ())
    mirrors.notice(NOTICE)
    for number in range(5, 9):
        put(mirrors, number, attempt=2)
    mirrors.notice(HALT)
    mirrors.close(60)
    expected = [(1, n) for n in range(1, 8)] + [(1, -7)] + [(2, n) for n in range(5, 9)]
    assert fake.steps == [*expected, (2, -8)]
    first = fake.taken[0]
    assert isinstance(first, MirroredStep)
    assert first.readings() == {"loss/global": 1.0, "grad_norm/global": 0.5}
    assert fake.taken[6].alarms == (alarm(7),)
    assert fake.closed
    assert records == []


def test_thresholds_are_looked_at_now_and_then_and_when_an_attempt_begins() -> None:
    fake = Fake()
    mirrors, _ = mirroring(fake)
    every = THRESHOLDS_EVERY_STEPS
    for attempt, numbers in (
        (1, range(1, 2 * every + 5)),
        (2, range(2 * every - 3, 3 * every + 3)),
    ):
        for number in numbers:
            put(mirrors, number, attempt)
    mirrors.close(60)
    told = [(one.attempt, one.step) for one in fake.taken if one.thresholds is not None]
    expected = [(1, 1), (1, every), (1, 2 * every)]
    assert told == [*expected, (2, 2 * every - 3), (2, 2 * every), (2, 3 * every)]
    assert fake.taken[0].limits() == {"loss/global": 4.0}
    scalars = fake.taken[0].scalars("x/")
    assert scalars == {
        "x/loss/global": 1.0, "x/grad_norm/global": 0.5, "x/threshold/loss/global": 4.0,
        "x/attempt": 1, "x/step": 1, "x/committed": 1, "x/num_alarms": 0,
    }  # fmt: skip


def test_a_mirror_that_hangs_loses_the_oldest_readings_and_no_alarm_or_notice() -> None:
    fake, clock = Fake(), Clock()
    fake.free.clear()
    mirrors, records = mirroring(fake, clock=clock)
    put(mirrors, 1)
    until(fake.busy.is_set)  # it is in hand, and hangs
    last = 10 * MAX_STEPS
    for number in range(2, last + 1):
        put(mirrors, number, alarms=(alarm(number),) if number == 7 else ())
        if number == 9:
            mirrors.notice(NOTICE)
    num_lost = last - 1 - MAX_STEPS
    ((kind, attempt, _, fields),) = records  # at most one a minute
    assert (kind, attempt, fields["num_steps"]) == ("mirror_dropped", 1, 1)
    clock.now += TOLD_EVERY_SECS
    put(mirrors, last + 1)
    assert len(records) == 2
    assert records[-1][3] == {
        "mirror": "fake", "num_steps": num_lost, "num_readings": 2 * num_lost, "num_alarms": 0,
        "num_notices": 0,
    }  # fmt: skip
    fake.free.set()
    mirrors.close(60)
    assert len(records) == 2
    seen = fake.steps
    assert seen[:3] == [(1, 1), (1, 7), (1, -9)]
    assert seen[3:] == [(1, number) for number in range(last + 2 - MAX_STEPS, last + 2)]
    assert (fake.taken[1].series, fake.taken[1].alarms) == ((), (alarm(7),))


def test_what_is_said_is_bounded_too_and_counted() -> None:
    fake = Fake()
    fake.free.clear()
    mirrors, records = mirroring(fake)
    put(mirrors, 1)
    until(fake.busy.is_set)
    for _ in range(MAX_SAID + 5):
        mirrors.notice(NOTICE)
    fake.free.set()
    mirrors.close(60)
    ((kind, _, _, fields),) = records
    assert (kind, fields["num_notices"], fields["num_steps"]) == ("mirror_dropped", 5, 0)
    assert len(fake.taken) == 1 + MAX_SAID


def test_alarms_that_are_lost_are_counted_once() -> None:
    fake = Fake()
    fake.free.clear()
    mirrors, records = mirroring(fake)
    put(mirrors, 1)
    until(fake.busy.is_set)
    number = MAX_STEPS + MAX_SAID + 3
    for at in range(2, number + 2):
        put(mirrors, at, alarms=(alarm(at), alarm(at)))
    mirrors.close(0)
    fields = records[-1][3]
    lost = [record[3] for record in records if record[0] == "mirror_dropped"]
    assert sum(one["num_steps"] for one in lost) == number + 1
    assert sum(one["num_alarms"] for one in lost) == 2 * number
    assert fields["mirror"] == "fake"
    fake.free.set()


def test_the_end_of_a_run_does_not_wait_for_a_mirror_that_hangs() -> None:
    hangs, works = Fake(), Fake()
    hangs.free.clear()
    mirrors, records = mirroring(hangs, works)
    put(mirrors, 1)
    until(hangs.busy.is_set)
    put(mirrors, 2)
    until(lambda: len(works.taken) == 2)
    mirrors.notice(NOTICE)
    mirrors.close(0.2)
    kinds = {kind: fields for kind, _, _, fields in records}
    assert "ended" in kinds["mirror_failed"]["reason"]
    assert (kinds["mirror_dropped"]["num_steps"], kinds["mirror_dropped"]["num_notices"]) == (2, 1)
    assert works.steps == [(1, 1), (1, 2), (1, -2)]
    assert works.closed
    put(mirrors, 3)  # nothing follows
    mirrors.close(0)
    hangs.free.set()
    until(lambda: hangs.closed)
    assert hangs.steps == [(1, 1)]


def test_a_process_ends_although_a_mirror_hangs_for_ever(tmp_path: Path) -> None:
    program = """
import numpy as np, threading
from types import SimpleNamespace
from foreshock.core.mirrored import MirroredRun
from foreshock.mirroring import Mirroring
from tests.sinks.mirrored import Fake, Fakes
class Hangs(Fake):
    def take(self, said): threading.Event().wait()
m = Mirroring([Fakes(fakes=(Hangs(),))], MirroredRun(name="a"), limits=lambda: np.empty(0),
              record=lambda *a: print(a))
m.step(1, ("loss/global",), SimpleNamespace(step=1, committed=True, values=np.ones(1, "f4")), ())
m.close(0.1)
print("ended")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300,
        cwd=Path(__file__).parents[1], check=True,
    )  # fmt: skip
    assert "ended" in done.stdout
    assert "mirror_dropped" in done.stdout


def test_what_fails_is_tried_again_and_told_once() -> None:
    fake = Fake(NotMirroredError("refused"), ValueError("http://me:hunter2@host"))
    mirrors, records = mirroring(fake)
    put(mirrors, 1)
    until(lambda: bool(fake.taken))
    put(mirrors, 2)
    mirrors.close(60)
    assert fake.num_tries >= 3
    assert fake.steps == [(1, 1), (1, 2)]
    assert [(kind, fields) for kind, _, _, fields in records] == [
        ("mirror_failed", {"mirror": "fake", "reason": "refused"})
    ]


def test_it_is_told_again_once_it_has_worked_in_between() -> None:
    clock = Clock()
    fake = Fake(NotMirroredError("one"))
    mirrors, records = mirroring(fake, clock=clock)
    put(mirrors, 1)
    until(lambda: bool(fake.taken))
    put(mirrors, 2)
    until(lambda: len(fake.taken) == 2)
    fake.errors = [NotMirroredError("two")]
    clock.now += TOLD_EVERY_SECS
    put(mirrors, 3)
    mirrors.close(60)
    assert [fields["reason"] for _, _, _, fields in records] == ["one", "two"]


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (ValueError("http://me:hunter2@host"), "ValueError"),
        (OSError(28, "No space left on device", "/home/hunter2"), "No space left on device"),
        (SystemExit("hunter2"), "SystemExit"),
    ],
)
def test_what_cannot_be_taken_is_given_up_after_a_while_and_no_address_told(
    error: Exception, says: str
) -> None:
    fake = Fake(error, error, error)
    mirrors, records = mirroring(fake)
    put(mirrors, 1)
    until(lambda: fake.num_tries == 3)
    put(mirrors, 2)
    mirrors.close(60)
    assert fake.steps == [(1, 2)]
    kinds = {kind: fields for kind, _, _, fields in records}
    assert says in kinds["mirror_failed"]["reason"]
    assert "hunter2" not in str(records)
    assert kinds["mirror_dropped"]["num_steps"] == 1


def test_a_mirror_that_cannot_open_is_opened_later() -> None:
    fake = Fake(opening=[NotMirroredError("no port"), NotMirroredError("no port")])
    mirrors, records = mirroring(fake)
    put(mirrors, 1)
    until(lambda: bool(fake.taken))
    mirrors.close(60)
    assert fake.steps == [(1, 1)]
    assert [fields for _, _, _, fields in records] == [{"mirror": "fake", "reason": "no port"}]


def test_one_that_never_opens_is_counted_at_the_end() -> None:
    fake = Fake(opening=[NotMirroredError("no port")] * 100_000)
    mirrors, records = mirroring(fake)
    for number in range(1, BATCH + 3):
        put(mirrors, number, alarms=(alarm(number),))
    mirrors.notice(NOTICE)
    mirrors.close(60)
    kinds = {kind: fields for kind, _, _, fields in records}
    assert kinds["mirror_failed"]["reason"] == "no port"
    assert kinds["mirror_dropped"] == {
        "mirror": "fake", "num_steps": BATCH + 2, "num_readings": 2 * (BATCH + 2),
        "num_alarms": BATCH + 2, "num_notices": 1,
    }  # fmt: skip
    assert not fake.closed


def test_nothing_is_raised_into_the_loop() -> None:
    class Breaks(Fake):
        def adopt(self) -> None:
            raise RuntimeError("hunter2")

    def limits() -> Any:
        raise RuntimeError("hunter2")

    fake = Breaks()
    records: list[Any] = []
    mirrors = Mirroring(
        [Fakes(fakes=(fake,))], RUN, limits=limits, record=lambda *record: records.append(record)
    )
    put(mirrors, 10)
    put(mirrors, 20)
    mirrors.close(60)
    assert fake.steps == [(1, 10), (1, 20)]
    assert all(kind == "mirror_failed" for kind, *_ in records)
    assert [fields["mirror"] for *_, fields in records] == ["thresholds", "fake"]
    assert "hunter2" not in str(records)


def test_the_loops_own_loggers_are_looked_for_in_its_thread() -> None:
    fake = Fake()
    mirrors, _ = mirroring(fake)
    assert fake.adopted_by is None
    put(mirrors, 1)
    assert fake.adopted_by is threading.current_thread()
    mirrors.close(60)


def test_only_what_was_asked_for_is_mirrored() -> None:
    fake = Fake()
    mirrors, _ = mirroring(
        fake, series=("grad_*", "nothing"), every_steps=5, thresholds=False, on=("halted",)
    )
    for number in range(1, 12):
        put(mirrors, number, alarms=(alarm(number),) if number == 7 else ())
    mirrors.notice(NOTICE)
    mirrors.notice(HALT)
    mirrors.close(60)
    assert fake.steps == [(1, 5), (1, 7), (1, 10), (1, -11)]
    assert fake.taken[0].series == ("grad_norm/global", "grad_norm/blocks.0.attn")
    assert fake.taken[0].readings() == {"grad_norm/global": 0.5}
    assert all(one.thresholds is None for one in fake.taken[:3])
    assert isinstance(fake.taken[3], MirroredNotice)


def test_what_is_left_out_by_a_pattern_is_not_counted_as_dropped() -> None:
    fake = Fake()
    fake.free.clear()
    mirrors, records = mirroring(fake, series=("loss/*",))
    for number in range(1, 4):
        put(mirrors, number)
    mirrors.close(0)
    assert records[-1][3]["num_readings"] == 3
    fake.free.set()


def test_sinks_that_mirror_nothing_cost_no_thread_and_no_look() -> None:
    before = threading.active_count()
    mirrors = Mirroring([], RUN, limits=lambda: 1 / 0, record=lambda *_: None)
    put(mirrors, 1)
    mirrors.notice(NOTICE)
    mirrors.close()
    quiet, _ = mirroring(Fake())
    quiet.close()
    assert threading.active_count() == before


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"every_steps": 0}, "every_steps is 0"),
        ({"series": ()}, "series has no pattern"),
        ({"on": ("halts",)}, "no kind 'halts'; did you mean 'halted'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Fakes(fakes=(), **settings)


def test_what_a_sink_refuses_is_raised_when_the_guard_is_built() -> None:
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Missing(Fakes):
        def mirrors(self, run: MirroredRun) -> tuple[Any, ...]:
            raise MissingExtra("pip install it")

    with pytest.raises(MissingExtra):
        Mirroring([Missing(fakes=())], RUN, limits=lambda: LIMITS, record=lambda *_: None)


def test_many_alarms_are_told_in_few_words_that_hold_no_control_letters() -> None:
    fake = Fake()
    mirrors, _ = mirroring(fake)
    put(mirrors, 1, alarms=tuple(alarm(1, f"grad_norm/\x1b[31m{at}\n") for at in range(100)))
    mirrors.close(60)
    lines = fake.taken[0].alarm_lines()
    assert len(lines) == 21
    assert lines[-1] == "and 80 more"
    assert "\x1b" not in "".join(lines)
    assert "\n" not in "".join(lines)
    assert lines[0].startswith("spike on grad_norm/ [31m0 at step 1: 9, threshold 4 (spike")
    json.dumps(lines)
    assert set(NoticeKind)  # every kind has a sink that takes it by default


def test_what_utf8_cannot_encode_reaches_no_mirror() -> None:
    fake = Fake()
    mirrors, _ = mirroring(fake)
    broken = "grad_norm/a\ud800"
    values = np.ones(1, np.float32)
    for number in (1, 2):
        mirrors.step(1, [broken], Row(number, True, values, ()), [alarm(1, broken)])
    mirrors.notice(dataclasses.replace(NOTICE, body=broken))
    mirrors.close(60)
    first, _, told = fake.taken
    assert first.series == ("grad_norm/a?",)
    assert first.alarms[0].series == "grad_norm/a?"
    assert told.notice.body == "grad_norm/a?"
