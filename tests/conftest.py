"""Fixtures of all tests."""

import gc
import signal
from collections.abc import Iterator

import pytest
import torch.distributed as dist

from foreshock.fused.library import library
from foreshock.fused.passes import unfused


@pytest.fixture(params=["fused", "torch"])
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    """With the fused passes, then with torch alone: a module asks for it by `usefixtures`."""
    if request.param == "torch":
        with unfused():
            yield "torch"
        return
    if library().functions is None:
        pytest.skip(library().said)
    yield "fused"


@pytest.fixture
def no_handlers() -> Iterator[tuple[int, ...]]:
    """Nothing handles the signals that ask to stop, whatever tests before this one left."""
    gc.collect()
    numbers = (signal.SIGTERM, signal.SIGUSR1, signal.SIGALRM)
    before = {number: signal.signal(number, signal.SIG_DFL) for number in numbers}
    yield numbers
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(scope="module")
def group_of_one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A gloo group of one rank for the tests of a file."""
    store = tmp_path_factory.mktemp("group") / "store"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()
