"""A run that someone else hands over, and a folder beside it that nothing may touch."""

import shutil

import pytest
import torch

from tests.guard.programs import guarded, make, run


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of 22 steps with durable snapshots at 0, 20 and 22."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    training = make()
    run(training, guarded(training, folder, max_steps=22))
    return folder


@pytest.fixture
def theirs(trained, tmp_path):
    shutil.copytree(trained, tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def outside(tmp_path):
    path = tmp_path / "outside"
    path.mkdir()
    (path / "precious").write_text("precious")
    (path / ".precious.tmp").write_text("precious")
    return path
