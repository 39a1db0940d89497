"""What the tests of mirrors share: steps to mirror, and mirrors in memory."""

import dataclasses
import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from foreshock.core.detector import Alarm, AlarmKind
from foreshock.core.mirrored import Mirrored, MirroredNotice, MirroredRun, MirroredStep
from foreshock.core.reading import ABSENT
from foreshock.core.sink import MirrorSink, Notice, NoticeKind

RUN = MirroredRun(name="run <b>a</b>", run_dir="runs/a")
SERIES = ("loss/global", "grad_norm/global", "grad_norm/blocks.0.attn")
HOSTILE = (
    "grad_norm/<script>alert(1)</script>",
    'grad_norm/"quoted"\nfoo{bar="1"} 2',
    "grad_norm/../../etc/passwd",
    "grad_norm/\x1b[31mred\x00",
    "grad_norm/" + "long." * 200,
    "grad_norm/%s{0}$x\u202e",
    "grad_norm/weiß.模型",
    "loss/=cmd|' /C calc'!A0",
)
NOTICE = Notice(kind=NoticeKind.PLAN, title="plan 1 <b>", body="roll back to step 2\n<i>x</i>")
HALT = Notice(kind=NoticeKind.HALTED, title="HALTED", body="nothing is left")


def step(
    number: int,
    *values: float,
    attempt: int = 1,
    series: tuple[str, ...] = SERIES,
    limits: Sequence[float] | None = None,
    alarms: tuple[Alarm, ...] = (),
    committed: bool = True,
) -> MirroredStep:
    """A step whose time is known from where it stands; values of later series repeat the last."""
    given = list(values) or [float(number)]
    filled = given + [given[-1]] * (len(series) - len(given))
    row = np.array(filled, np.float32)
    for place, value in enumerate(filled):  # converting keeps no payload
        if isinstance(value, np.float32) and math.isnan(value):
            row[place : place + 1].view(np.uint32)[:] = np.array(value).view(np.uint32)
    return MirroredStep(
        attempt=attempt,
        step=number,
        time_secs=1_700_000_000.0 + 1000 * attempt + number,
        committed=committed,
        alarms=alarms,
        series=series,
        values=row,
        thresholds=None if limits is None else np.array(limits, np.float64),
    )


def alarm(number: int, series: str = "loss/global", value: float = 9.0) -> Alarm:
    return Alarm(
        kind=AlarmKind.SPIKE,
        detector="spike",
        series=series,
        step=number,
        onset_step=number - 1,
        value=value,
        baseline=2.0,
        threshold=4.0,
    )


def notice(number: int, told: Notice = NOTICE, attempt: int = 1) -> MirroredNotice:
    return MirroredNotice(attempt=attempt, step=number, time_secs=1_700_000_000.0, notice=told)


def a_run() -> list[Mirrored]:
    """Three steps, an alarm, a plan, and back to step 2 in attempt 2."""
    return [
        step(1, 2.0, 0.5, ABSENT, limits=[math.inf, 5.0, math.nan]),
        step(2, math.nan, math.inf, -math.inf),
        step(3, 9.0, 0.5, 0.25, alarms=(alarm(3),), committed=False),
        notice(3),
        step(2, 2.5, 0.75, 0.5, attempt=2, limits=[4.0, 6.0, math.inf]),
        step(3, 2.25, 0.5, 0.25, attempt=2),
    ]


class Fake:
    """A mirror in memory. It waits while `free` is not set, and raises what it is told to."""

    def __init__(self, *errors: Exception, opening: Sequence[Exception] = ()) -> None:
        self.label = "fake"
        self.taken: list[Mirrored] = []
        self.errors = list(errors)
        self.opening = list(opening)
        self.adopted_by: threading.Thread | None = None
        self.num_tries = 0
        self.closed = False
        self.free = threading.Event()
        self.free.set()
        self.busy = threading.Event()

    def adopt(self) -> None:
        self.adopted_by = threading.current_thread()

    def open(self) -> None:
        if self.opening:
            raise self.opening.pop(0)

    def take(self, said: Sequence[Mirrored]) -> None:
        self.num_tries += 1
        self.busy.set()
        self.free.wait(60)
        if self.errors:
            raise self.errors.pop(0)
        self.taken += said

    def close(self) -> None:
        self.closed = True

    @property
    def steps(self) -> list[tuple[int, int]]:
        """Attempt and step of what was taken, notices as minus their step."""
        return [
            (one.attempt, -one.step if isinstance(one, MirroredNotice) else one.step)
            for one in self.taken
        ]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fakes(MirrorSink):
    name = "fakes"
    fakes: tuple[Any, ...]

    def mirrors(self, run: MirroredRun) -> tuple[Any, ...]:
        return self.fakes


def until(so: Callable[[], bool]) -> None:
    """Give other threads their turn until it is so; a run that hangs is ended by its caller."""
    while not so():
        time.sleep(0.001)
