"""The search behind a run: one at a time, restarted or dropped, and gone when the run is."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from foreshock.background import BackgroundSearch, alone, due, minimize_command
from foreshock.core.program import Settings
from foreshock.data.minimized import Dropped, Minimized
from foreshock.data.requests import Requests
from foreshock.data.stream import Stream
from foreshock.durable import RealDisk
from foreshock.journal import Journal
from tests.data.recovered import Told, closed, finding, planned, reopened
from tests.test_minimal import POISON, SETTINGS, held_in, recipe_in, tiny, trained_in

STREAM = Stream(list(range(200)), batch_size=4, seed=0, collate=list)
WAITING_SECS = 120


class Run:
    """A journal, and a search behind it that runs a script in place of `foreshock minimize`."""

    def __init__(self, folder: Path, script: str, **options: Any) -> None:
        self.run_dir = folder / "run"
        self.out = folder / "out"
        self.out.mkdir()
        identity = {"program": "p", "fingerprint": "f", "stream": STREAM.describe()}
        self.journal = Journal.create(RealDisk(), self.run_dir, identity, lambda: 0.0)
        self.told: list[str] = []
        setup = f"import os, signal, sys, time\nout, incident = {str(self.out)!r}, sys.argv[1]\n"
        setup += "n = len(os.listdir(out))\nopen(f'{out}/{n}.{incident}', 'w').write('here')\n"
        self.script = [sys.executable, "-c", setup + script]
        self.search = BackgroundSearch(self.script, self.run_dir, tell=self.told.append, **options)

    def write(self, *told: Told) -> None:
        for records in told:
            for kind, fields in records:
                self.journal.write(kind, attempt=1, step=7, **fields)
                self.look(kind)

    def look(self, kind: str = "step") -> None:
        self.search.look(kind, lambda: self.journal.records)

    def until(self, what: Callable[[], bool]) -> None:
        end = time.monotonic() + WAITING_SECS
        while not what():
            assert time.monotonic() < end, (self.told, self.started)
            self.look()
            time.sleep(0.01)

    @property
    def started(self) -> list[str]:
        """The incidents that a search was started for, in order."""
        return [path.suffix[1:] for path in sorted(self.out.iterdir())]

    @property
    def left(self) -> list[Any]:
        return Requests(RealDisk(), self.run_dir).look()

    def leave(self, incident: int, **change: Any) -> None:
        found = finding(incident, {}, **change)
        Requests(RealDisk(), self.run_dir).leave(Minimized(request=f"{incident:016x}", found=found))


@pytest.fixture
def make(tmp_path: Path):
    made: list[Run] = []

    def build(script: str, **options: Any) -> Run:
        made.append(Run(tmp_path, script, **options))
        return made[-1]

    yield build
    for run in made:
        run.search.close()
        run.journal.close()


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


SLEEP = "time.sleep(600)"


def test_nothing_is_started_before_an_incident_is_over(make) -> None:
    run = make(SLEEP)
    run.look()
    run.write(planned(1, 1, (20, 36)))
    run.look()
    assert run.search.pid is None
    run.write(closed(1))
    assert run.search.pid is None  # at the next step
    run.look()
    assert run.search.pid is not None


def test_one_at_a_time_and_the_oldest_first(make) -> None:
    run = make("while not os.path.exists(f'{out}.done{incident}'): time.sleep(0.01)")
    run.write(planned(1, 1, (20, 36)), closed(1), planned(2, 2, (60, 64)), closed(2))
    run.until(lambda: run.started == ["1"])
    pid = run.search.pid
    for _ in range(20):
        run.look()
    assert run.search.pid == pid
    run.leave(1)
    Path(f"{run.out}.done1").touch()
    run.until(lambda: run.started == ["1", "2"])
    assert not is_alive(pid)
    run.leave(2)
    Path(f"{run.out}.done2").touch()
    run.until(lambda: run.search.pid is None)
    for _ in range(5):
        run.look("minimized")
        run.look()
    assert run.started == ["1", "2"]


def test_a_finding_that_waits_is_not_searched_for_again(make) -> None:
    run = make(SLEEP)
    run.leave(1)
    run.write(planned(1, 1, (20, 36)), closed(1))
    run.look()
    assert run.search.pid is None
    run.leave(1, num_plans=3)  # of the same incident, but before it went on
    run.look("plan")
    run.look()
    assert run.search.pid is not None


def test_what_is_due_is_told_by_the_journal() -> None:
    def records(*told: Told) -> list[dict[str, Any]]:
        stamp = {"attempt": 1, "step": 7, "time": 0.0}
        return [{"kind": kind, **stamp, **fields} for each in told for kind, fields in each]

    def numbers(*told: Told) -> list[int]:
        return [one.id for one in due(records(*told), STREAM.describe())]

    one, two = planned(1, 1, (20, 36)), planned(2, 2, (60, 64))
    assert numbers(one) == []
    assert numbers(one, closed(1)) == [1]
    assert numbers(one, closed(1, "halted")) == []
    assert numbers(one, closed(1), two) == []  # an incident is open
    assert numbers(one, closed(1), two, closed(2)) == [1, 2]
    minimized = [("minimized", finding(1, {}).to_json())]
    assert numbers(one, closed(1), two, closed(2), minimized) == [2]
    dropped = [("minimize_dropped", {"incident": 2, "num_plans": 1, "reason": "r"})]
    assert numbers(one, closed(1), two, closed(2), minimized, dropped) == []
    again = planned(1, 2, (20, 52))
    assert numbers(one, closed(1), minimized, reopened(1)) == []
    assert numbers(one, closed(1), minimized, reopened(1), again, closed(1)) == [1]
    gone = [("released", {"entry_id": "plan1/0", "ids": None, "position": 40})]
    assert numbers(one, closed(1), gone) == []
    flow = {"entry_id": "plan1/0", "start": 41, "every_samples": 1, "watch_steps": 16}
    assert numbers(one, closed(1), [("reflow_started", flow)]) == []


def test_one_that_is_refused_is_dropped_with_its_reason(make) -> None:
    run = make("print('foreshock: no healthy snapshot is left', file=sys.stderr); sys.exit(2)")
    run.write(planned(1, 1, (20, 36)), closed(1))
    run.until(lambda: bool(run.left))
    (dropped,) = run.left
    assert isinstance(dropped, Dropped)
    assert (dropped.incident, dropped.num_plans) == (1, 1)
    assert dropped.reason == "no healthy snapshot is left"
    for _ in range(5):
        run.look("verification")
        run.look()
    assert run.started == ["1"]


def test_one_that_is_killed_is_tried_once_more_and_then_dropped(make) -> None:
    run = make("os.kill(os.getpid(), signal.SIGKILL)")
    run.write(planned(1, 1, (20, 36)), closed(1))
    run.until(lambda: bool(run.left))
    assert run.started == ["1", "1"]
    assert "exit code -9, twice" in run.left[0].reason


def test_one_that_takes_too_long_is_killed_and_dropped(make) -> None:
    now = [0.0]
    run = make(SLEEP, secs=10.0, clock=lambda: now[0])
    run.write(planned(1, 1, (20, 36)), closed(1))
    run.until(lambda: run.started == ["1"])
    pid = run.search.pid
    now[0] = 20.0
    run.look()
    assert run.search.pid == pid
    now[0] = 20.1
    run.look()
    assert run.search.pid is None
    assert not is_alive(pid)
    assert "took over 20 seconds" in run.left[0].reason


def test_one_whose_incident_goes_on_is_ended_without_blame(make) -> None:
    run = make(SLEEP)
    run.write(planned(1, 1, (20, 36)), closed(1))
    run.until(lambda: run.started == ["1"])
    pid = run.search.pid
    run.write(reopened(1))
    assert run.search.pid is None
    assert not is_alive(pid)
    assert run.left == []
    run.write(planned(1, 2, (20, 52)), closed(1))
    run.until(lambda: run.started == ["1", "1"])


def test_the_search_ends_with_the_run(make) -> None:
    run = make(SLEEP)
    run.write(planned(1, 1, (20, 36)), closed(1))
    run.until(lambda: run.started == ["1"])
    pid = run.search.pid
    assert run.search.close() == 1
    assert not is_alive(pid)
    assert run.search.close() is None


def test_what_fails_here_does_not_reach_the_training(make, monkeypatch) -> None:
    run = make(SLEEP)
    run.write(planned(1, 1, (20, 36)), closed(1))
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: 1 / 0)
    run.look()
    assert "ZeroDivisionError" in run.told[-1]
    run.write(planned(2, 2, (60, 64)), closed(2))
    run.look()
    assert len(run.told) == 1
    assert run.search.pid is None


def test_a_command_that_is_not_there_is_dropped(make) -> None:
    run = make(SLEEP)
    run.search._command = ["/nowhere/at/all"]
    run.write(planned(1, 1, (20, 36)), closed(1))
    run.look()
    assert "could not be started" in run.left[0].reason


PARENT = """
import sys, time
from foreshock.background import BackgroundSearch
from foreshock.core.incident import IncidentBook
from tests.test_background import CHILD
search = BackgroundSearch([sys.executable, "-c", CHILD], __import__("pathlib").Path(sys.argv[1]))
search._start(IncidentBook([dict(kind="plan", attempt=1, step=7, **dict(FIELDS))]).incidents[0])
print(search.pid, flush=True)
time.sleep(600)
"""
CHILD = """
import os, sys, time
from foreshock.background import behind_run
behind_run()
print(os.nice(0), file=sys.stderr, flush=True)
open(os.environ["READY"], "w").write(str(os.nice(0)))
time.sleep(600)
"""


def test_a_run_that_is_killed_takes_its_search_with_it(tmp_path: Path) -> None:
    root = Path(__file__).parents[1]
    ((_, fields), *_) = planned(1, 1, (20, 36))
    ready = tmp_path / "ready"
    path = os.pathsep.join([str(root), *sys.path])
    parent = subprocess.Popen(
        [sys.executable, "-c", f"FIELDS = {fields!r}\n{PARENT}", str(tmp_path)],
        stdout=subprocess.PIPE,
        env=os.environ | {"READY": str(ready), "PYTHONPATH": path},
    )
    try:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        end = time.monotonic() + WAITING_SECS
        while not (ready.exists() and ready.read_text()):
            assert time.monotonic() < end
            time.sleep(0.01)
        assert ready.read_text() == "19"
        assert is_alive(pid)
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        while is_alive(pid):
            assert time.monotonic() < end
            time.sleep(0.01)
    finally:
        parent.kill()
        parent.wait()


def test_it_is_no_rank_and_has_one_thread_and_no_accelerator() -> None:
    found = alone(
        {"RANK": "0", "WORLD_SIZE": "4", "MASTER_ADDR": "a", "TORCHELASTIC_RUN_ID": "r"}
        | {"PATH": "/bin", "OMP_NUM_THREADS": "64", "FORESHOCK_NOTIFY": "secret://"}
    )
    assert found.pop("PATH") == "/bin"
    assert found.pop("CUDA_VISIBLE_DEVICES") == ""
    assert set(found.values()) == {"1"}
    assert "OMP_NUM_THREADS" in found


def test_the_command_has_the_settings_of_the_run() -> None:
    settings = Settings(seed=3, max_steps=77, device="cuda:0", overrides={"lr": 0.1})
    command = minimize_command(
        Path("run"), "a.py:b", settings, config=Path("c.toml"), overrides=["lr=0.1"], minutes=5.0
    )
    text = " ".join(command[3:])
    assert text.startswith("minimize run --program a.py:b --seed 3 --max-steps 77 --device cpu")
    assert "--config c.toml --set lr=0.1" in text
    assert command[-1] == "--incident"
    assert json.dumps(command)


@pytest.mark.slow
def test_a_run_that_broke_gives_back_by_itself_what_was_clean(tmp_path: Path) -> None:
    """The search is killed once, then the run with the search; a resume does the rest.

    In the end each clean sample has trained once, and none that was needed.
    """
    root = Path(__file__).parents[1]
    config, _ = recipe_in(tmp_path)
    run_dir = tmp_path / "run"
    command = [sys.executable, "-c", "from foreshock.cli.main import app; app()", "run"]
    command += [f"{root}/tests/poisoned_program.py:program", "--run-dir", str(run_dir)]
    command += ["--max-steps", "460", "--config", str(config)]
    path = os.pathsep.join([str(root), *sys.path])
    env = os.environ | {"PYTHONPATH": path, "SCENE": str(tmp_path), "OMP_NUM_THREADS": "1"}

    def start(*more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, *more], cwd=root, env=env, capture_output=True, text=True, check=False
        )

    (tmp_path / "kill_search").touch()
    (tmp_path / "kill_run").touch()
    first = start()
    assert first.returncode == -signal.SIGKILL, first.stderr
    assert first.stderr.count("searching behind the run") == 2  # the first was killed
    orphan = int((tmp_path / "orphan").read_text())
    end = time.monotonic() + WAITING_SECS
    while is_alive(orphan):
        assert time.monotonic() < end
        time.sleep(0.05)
    kinds = [one["kind"] for one in Journal.read(RealDisk(), run_dir).records]
    assert "incident_closed" in kinds
    assert "minimized" not in kinds
    second = start("--resume")
    assert second.returncode == 0, second.stderr
    assert second.stderr.count("searching behind the run") == 1
    assert "samples given back" in second.stderr
    view = Journal.read(RealDisk(), run_dir)
    (record,) = [one for one in view.records if one["kind"] == "minimized"]
    assert record["exact"] is True
    assert record["num_replays"] <= 64
    needed = {tuple(key) for key in [*record["needed"], *record["undecided"]]}
    poison = {("p", number) for number in range(POISON)}
    assert len(poison & needed) >= 0.9 * POISON
    held, coming = held_in(run_dir)
    assert (held, coming) == (needed, set())
    times = trained_in(run_dir)
    assert set(times.values()) == {1}
    assert not needed & times.keys()
    last = max(place for one in view.last_trained().values() for place in one)
    order = tiny(SETTINGS).stream.order
    assert times.keys() | needed == {order.locate(place)[1:] for place in range(last + 1)}
    listed = subprocess.run(
        [*command[:3], "quarantine", "list", str(run_dir), "--json"],
        env=env, capture_output=True, text=True, check=True,
    )  # fmt: skip
    told = json.loads(listed.stdout)
    (cost,) = told["incidents"]
    assert cost["num_held"] == len(needed)
    assert cost["num_given_back"] == cost["num_set_aside"] - len(needed)
    assert cost["tokens"]["set_aside_after"] == 12 * len(needed)
    assert told["in_all"]["tokens"]["saved"] == cost["tokens"]["saved"]
    assert cost["tokens"]["saved"][0] > 0
