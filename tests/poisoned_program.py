"""A program that breaks once; what happens while a search runs behind it is up to a file.

The loss counts its calls. Once the incident is over, `foreshock run` waits in it, a few steps
on, for what the folder of `SCENE` tells: `kill_search` kills the search once and goes on,
`kill_run` kills the run while it searches. After that it waits until a finding lies there.
"""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch

from foreshock.core.program import Program, Settings
from tests.guard.programs import loss_of
from tests.test_minimal import tiny

WAITING_SECS = 240
STEPS_ON = 4


def children() -> list[int]:
    """The processes that this one has started and that are still there."""
    found: list[int] = []
    for task in Path("/proc/self/task").iterdir():
        found += [int(one) for one in (task / "children").read_text().split()]
    return found


class Scene:
    """What is done to the run, and to the search behind it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run = folder / "run"
        self.steps_since = 0

    def is_over(self) -> bool:
        return '"kind":"incident_closed"' in (self.run / "decisions.jsonl").read_text()

    def has_finding(self) -> bool:
        known = '"kind":"minimized"' in (self.run / "decisions.jsonl").read_text()
        return known or any((self.run / "requests").glob("[0-9a-f]*.json"))

    def act(self) -> None:
        if not self.is_over() or self.has_finding():
            return
        self.steps_since += 1
        if self.steps_since < STEPS_ON:
            return
        if self.take("kill_search"):
            self.wait(lambda: bool(children()))
            os.kill(children()[0], signal.SIGKILL)
            self.steps_since = 0
        elif self.take("kill_run"):
            self.wait(lambda: bool(children()))
            (self.folder / "orphan").write_text(str(children()[0]))
            os.kill(os.getpid(), signal.SIGKILL)
        else:
            self.wait(self.has_finding)

    def take(self, name: str) -> bool:
        there = (self.folder / name).exists()
        (self.folder / name).unlink(missing_ok=True)
        return there

    def wait(self, what: Any) -> None:
        end = time.monotonic() + WAITING_SECS
        while not what():
            if time.monotonic() > end:
                raise TimeoutError("what was waited for did not come")
            time.sleep(0.05)


def program(settings: Settings) -> Program:
    torch.set_num_threads(1)
    built = tiny(settings)
    if sys.argv[1:2] != ["run"]:
        return built
    scene = Scene(Path(os.environ["SCENE"]))

    def loss(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        if model.training:
            scene.act()
        return loss_of(model, batch)

    return Program(**{**vars(built), "loss": loss})
