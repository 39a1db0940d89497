"""A run of the recovery benchmark that nobody disturbed, made once."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from benchmarks.recovery.power import Simulated, undisturbed_on_simulated
from benchmarks.recovery.training import text_windows


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.bin"
    text_windows(path)
    return path


@pytest.fixture(scope="session")
def reference(text: Path) -> Simulated:
    return undisturbed_on_simulated(text.read_bytes())
