"""Fixtures of all tests."""

from collections.abc import Iterator

import pytest

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
