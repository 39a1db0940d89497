import pytest


@pytest.fixture(autouse=True)
def both_ways(way: str) -> None:
    """Every test of a signal runs with the fused passes and with torch alone."""
