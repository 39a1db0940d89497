"""trackio and SwanLab keep one folder and one run a process: each test is a process."""

import json
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def done(program: str, folder: Path, **environment: str) -> Any:
    """What a program prints as JSON on its last line."""
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=600,
        cwd=folder, check=False,
        env={"PATH": "", "HOME": str(folder), "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}",
             "HF_HUB_OFFLINE": "1", **environment},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-3000:]
    return json.loads(ran.stdout.strip().splitlines()[-1])


TRACKIO = """
import json, threading
import trackio
from foreshock.sinks.trackio import Trackio
from tests.sinks.mirrored import HALT, HOSTILE, RUN, a_run, alarm, notice, step
own = {own}
user = trackio.init(project="p", name="mine", embed=False) if own else None
(mirror,) = Trackio(project="p").mirrors(RUN)
mirror.adopt()
def work():
    mirror.open()
    mirror.take([*a_run(), notice(3, HALT, attempt=2)])
    mirror.take([step(4, 1.0, attempt=2, series=HOSTILE, alarms=(alarm(4, HOSTILE[3]),))])
    mirror.close()
thread = threading.Thread(target=work); thread.start(); thread.join()
if own:
    trackio.log({{"train": 1.0}})
    trackio.finish()
print()
print(json.dumps("done"))
"""


@pytest.mark.parametrize("own", [False, True])
def test_trackio_keeps_every_row_and_alert(own: bool, tmp_path: Path) -> None:
    pytest.importorskip("trackio")
    done(TRACKIO.format(own=own), tmp_path, TRACKIO_DIR=str(tmp_path / "boards"))
    base = sqlite3.connect(tmp_path / "boards" / "p.db")
    names = {name for (name,) in base.execute("select run_name from metrics")}
    assert names == ({"mine"} if own else {"run <b>a</b>"})
    rows = [
        (at, json.loads(text)) for at, text in base.execute("select step, metrics from metrics")
    ]
    ours = [(at, row) for at, row in rows if "foreshock/step" in row]
    assert [at for at, _ in ours] == [1, 2, 3, 2, 3, 4]
    assert [row["foreshock/attempt"] for _, row in ours] == [1, 1, 1, 2, 2, 2]
    assert ours[1][1]["foreshock/loss/global"] == "NaN"
    assert ours[0][1]["foreshock/threshold/grad_norm/global"] == 5.0
    assert any("train" in row for _, row in rows) is own
    alerts = list(base.execute("select title, level, step from alerts order by rowid"))
    assert [title for title, *_ in alerts] == [
        "alarms at step 3", "plan 1 <b>", "HALTED", "alarms at step 4",
    ]  # fmt: skip
    assert [level for _, level, _ in alerts] == ["warn", "warn", "error", "warn"]
    base.close()


SWANLAB = """
import json, sys, threading, signal
import swanlab
from foreshock.sinks.swanlab import SwanLab
from tests.sinks.mirrored import HOSTILE, RUN, a_run, notice, step
taken = []
own = {own}
user = swanlab.init(mode="offline", project="p", log_dir="mine") if own else None
handler = signal.getsignal(signal.SIGINT)
(mirror,) = SwanLab(log_dir="logs").mirrors(RUN)
mirror.adopt()
def work():
    mirror.open()
    log = mirror._run.log
    def heard(data, step=None):
        taken.append([step, {{k: str(v) for k, v in data.items() if isinstance(v, float | int)}}])
        log(data, step=step)
    mirror._run.log = heard
    mirror.take(a_run())
    mirror.take([step(4, 1.0, attempt=2, series=HOSTILE)])
    mirror.close()
thread = threading.Thread(target=work); thread.start(); thread.join()
assert signal.getsignal(signal.SIGINT) is handler
alive = swanlab.has_run()
if own:
    swanlab.log({{"train": 1.0}})
    swanlab.finish()
print()
print(json.dumps([taken[:7], alive]))
"""


@pytest.mark.parametrize("own", [False, True])
def test_swanlab_counts_what_is_mirrored(own: bool, tmp_path: Path) -> None:
    pytest.importorskip("swanlab")
    taken, alive = done(SWANLAB.format(own=own), tmp_path)
    assert [at for at, _ in taken] == list(range(1, 8))
    steps = [values["foreshock/step"] for _, values in taken if values]
    assert steps == ["1", "2", "3", "2", "3", "4"]
    assert taken[1][1]["foreshock/loss/global"] == "nan"
    assert alive is own
    folder = tmp_path / ("mine" if own else "logs")
    (kept,) = folder.glob("run-*/run-*.swanlab")
    data = kept.read_bytes()
    for name in ("foreshock/loss/global", "foreshock/attempt", "foreshock/threshold/loss/global"):
        assert name.encode() in data
    texts = [path.read_text() for path in folder.glob("run-*/media/text/*.txt")]
    assert any("plan 1 <b>" in text for text in texts)
    assert any("spike on loss/global" in text for text in texts)
