"""Logs from someone else: every reader gives a log or one error in one line, and comes to an end.

Readers join by being there: one without a sample of its own gets those of all others.
"""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from foreshock.catalog import members
from foreshock.core.errors import ForeshockError
from foreshock.durable import RealDisk
from foreshock.journal import Journal
from foreshock.logs import ranking, read_log
from foreshock.source import FileSource
from tests.readers.samples import samples
from tests.security import hostile

READERS = sorted(members("readers"))
SAMPLES = samples()
MAX_SECS = 600
"""How long a test may take before it counts as hanging: minutes, where it takes seconds."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("hostile")


def reader_of(name):
    return members("readers")[name]()


@pytest.mark.parametrize("name", SAMPLES)
def test_samples_are_what_they_say(name, folder):
    file, data = SAMPLES[name]
    path = folder / name / file
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    assert ranking(FileSource(path).sample())[0][1].name == name
    signal = {"apex": "loss_scale", "cyclegan": "loss_g_gan"}.get(name, "loss")
    (run,) = read_log(path).runs
    assert len(run.series[signal]) == 12


@pytest.mark.parametrize("name", READERS)
@given(data=st.data(), by=hostile.changes)
@settings(max_examples=40, deadline=None, database=None, suppress_health_check=list(HealthCheck))
def test_a_log_that_was_changed(name, folder, data, by):
    own = [name] if name in SAMPLES else sorted(SAMPLES)
    file, sample = SAMPLES[data.draw(st.sampled_from(own))]
    path = folder / file
    path.write_bytes(hostile.changed(sample, by))
    hostile.keeps_its_promise(reader_of(name), path)


@pytest.mark.parametrize("name", READERS)
def test_logs_of_other_formats(name, folder):
    for other, (file, sample) in SAMPLES.items():
        path = folder / f"{other}-{file}"
        path.write_bytes(sample)
        hostile.keeps_its_promise(reader_of(name), path)


@given(content=st.binary(max_size=400), file=st.sampled_from(["x.log", "x.json", "x.csv", "x.db"]))
@settings(max_examples=60, deadline=None, database=None, suppress_health_check=list(HealthCheck))
def test_any_bytes(folder, content, file):
    path = folder / file
    path.write_bytes(content)
    try:
        read_log(path)
    except ForeshockError as error:
        assert str(error).isprintable()
    for name in READERS:
        hostile.keeps_its_promise(reader_of(name), path)


@pytest.mark.parametrize("name", READERS)
def test_directories(name, folder):
    for content in (b"", b"\0" * 100, b"[", b"a,b\n1,2\n", b"\xff" * 100):
        for file in ("trainer_state.json", "metrics.csv", "x.jsonl", "a/metrics/loss", "meta.yaml",
                     "events.out.tfevents.1", "run-a.wandb", "readings/attempt-00001/000000001.bin",
                     "decisions.jsonl", "run.json", "logging.jsonl", "results.csv"):  # fmt: skip
            path = folder / "directory" / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        hostile.keeps_its_promise(reader_of(name), folder / "directory")


@pytest.fixture(scope="module")
def run_dir(folder):
    identity = {"version": "0", "program": "p", "fingerprint": "f", "stream": {}, "settings": {}}
    with Journal.create(RealDisk(), folder / "run", identity, lambda: 0.0) as journal:
        journal.write("attempt_started", attempt=1, step=0)
        journal.open_readings(1, ["loss/global", "grad_norm/global"])
        for step in range(1, 13):
            journal.append_reading(step, 1, np.array([9 / step, 0.5], np.float32))
        journal.write("run_halted", attempt=1, step=12, digest="00")
    return folder / "run"


@given(by=hostile.changes, place=st.integers(0, 9))
@settings(max_examples=80, deadline=None, database=None, suppress_health_check=list(HealthCheck))
def test_a_run_directory_that_was_changed(run_dir, by, place):
    files = sorted(path for path in run_dir.rglob("*") if path.is_file())
    path = files[place % len(files)]
    before = path.read_bytes()
    path.write_bytes(hostile.changed(before, by))
    try:
        hostile.keeps_its_promise(reader_of("run_dir"), run_dir)
    finally:
        path.write_bytes(before)


def run_giants(*names):
    """Read giants in a process of little memory, so that neither hangs nor fills ours."""
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-m", "tests.security.giants", *names],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=MAX_SECS,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]


def test_giants_small():
    run_giants("--small", *READERS)


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_giants(name):
    run_giants(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
@given(data=st.data(), by=hostile.changes)
@settings(max_examples=500, deadline=None, database=None, suppress_health_check=list(HealthCheck))
def test_a_log_that_was_changed_in_many_ways(name, folder, data, by):
    file, sample = SAMPLES[
        data.draw(st.sampled_from([name] * (name in SAMPLES) or sorted(SAMPLES)))
    ]
    path = folder / file
    path.write_bytes(hostile.changed(sample, by))
    hostile.keeps_its_promise(reader_of(name), path)
