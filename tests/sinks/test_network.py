"""Mirrors send nothing that nobody asked for: no telemetry of the packages they use either."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.sinks.settings import NEEDS

ROOT = Path(__file__).parents[2]

PROGRAM = """
import sys, threading
from pathlib import Path

def heard(event, given):
    if event not in ("socket.connect", "socket.sendto", "socket.getaddrinfo"):
        return
    where = given[0] if event == "socket.getaddrinfo" else given[1]
    where = where[0] if isinstance(where, tuple) else where
    if str(where) not in ("127.0.0.1", "::1", "localhost") and not str(where).startswith("/"):
        print("ASKED FOR", event, where, flush=True)

sys.addaudithook(heard)
from foreshock.catalog import make
from tests.sinks.mirrored import RUN, a_run
from tests.sinks.settings import settings_of

name, folder = sys.argv[1:]
(mirror,) = make("sinks", name, **settings_of(name, Path(folder))).mirrors(RUN)
mirror.adopt()

def work():
    mirror.open()
    mirror.take(a_run())
    mirror.close()

thread = threading.Thread(target=work)
thread.start()
thread.join()
print("mirrored")
"""


@pytest.mark.parametrize("name", ["mlflow", "swanlab", "trackio", "wandb"])
def test_nothing_is_sent_anywhere(name: str, tmp_path: Path) -> None:
    pytest.importorskip(NEEDS[name])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, name, str(tmp_path)], capture_output=True, text=True,
        timeout=600, check=True, cwd=tmp_path,
        env={"PATH": "", "HOME": str(tmp_path), "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}",
             "TRACKIO_DIR": str(tmp_path / "trackio")},
    )  # fmt: skip
    assert "mirrored" in done.stdout
    assert "ASKED FOR" not in done.stdout + done.stderr
