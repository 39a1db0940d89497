"""The broken runs, each made once, and one thread for all of them."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.experiments.runs import broken_run


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def run_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A broken run by its kind; nobody may write to it."""
    folder = tmp_path_factory.mktemp("broken")
    made: dict[str, Path] = {}

    def run(kind: str) -> Path:
        if kind not in made:
            made[kind] = broken_run(folder / kind, kind)
        return made[kind]

    return run
