"""Given back on several ranks, in real processes: alike on all, on any number of them."""

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from foreshock.core.minimal import Minimal
from foreshock.data.journalled import data_of
from foreshock.data.minimized import Minimized
from foreshock.data.requests import Requests
from foreshock.data.stream import Stream
from foreshock.durable import RealDisk
from foreshock.journal import Journal
from tests.data.recovered import finding
from tests.data.test_guarded import steps_of
from tests.data.whole_order import admitted
from tests.guard.ranked import Ended, stages, train
from tests.ranks.outcomes import outcomes

RECOVERED = 52
"""A step at which the incident is over, and the data is not."""

TOLD = ("released", "reflow_started", "reflowed", "minimized", "request_refused")


def on_rank(rank: int, world: int, run_dir: Path, until: int | None) -> Ended:
    return train(rank, world, run_dir, max_steps=until)


def ended(world: int, run_dir: Path, until: int | None = None) -> list[Ended]:
    found = outcomes(on_rank, world, run_dir, until)
    assert [one.error for one in found] == [""] * world, [one.trace for one in found]
    return [one.result for one in found]


def told(one: Ended) -> list[dict[str, Any]]:
    kept = [record for record in one.records if record["kind"] in TOLD]
    return [{name: record[name] for name in record if name != "time"} for record in kept]


def cleared(run_dir: Path) -> Minimal:
    """What a search would find: of the quarantine the poison is needed, the rest is not."""
    view = Journal.read(RealDisk(), run_dir)
    _, ledger = data_of(view.identity["stream"], view.records)
    ids = [one.entry_id for one in ledger.entries]
    clean = {entry: tuple(k for k in ledger.samples(entry) if k[0] != "p") for entry in ids}
    bad = {key for entry in ids for key in ledger.samples(entry)} - set().union(*clean.values())
    return finding(1, clean, needed=tuple(sorted(bad)), num_plans=len(ids))


@pytest.mark.slow
def test_four_ranks_break_and_two_or_one_give_back(tmp_path: Path) -> None:
    run_dir = tmp_path / "four"
    ended(4, run_dir, RECOVERED)
    found = cleared(run_dir)
    assert found.num_given_back >= 10
    Requests(RealDisk(), run_dir).leave(Minimized(request="0" * 16, found=found))
    results: dict[int, list[dict[str, Any]]] = {}
    for world in (1, 2):
        copy = Path(shutil.copytree(run_dir, tmp_path / str(world)))
        ranks = ended(world, copy)
        assert all(told(one) == told(ranks[0]) for one in ranks)
        results[world] = told(ranks[0])
        assert [one["kind"] for one in results[world]].count("minimized") == 1
        assert list((copy / "requests").iterdir()) == []
        order = Stream(stages(), batch_size=8, seed=0).order
        base = [tuple(order.locate(place)) for place in range(order.total)]
        expected = admitted(base, Journal.read(RealDisk(), copy).records)  # type: ignore[arg-type]
        at = 0
        for step in steps_of(copy):
            assert step == sorted(expected[at : at + len(step)])
            at += len(step)
        times = Counter(order.locate(place)[1:] for step in steps_of(copy) for place in step)
        assert set(times.values()) == {1}
        given = {key for keys in found.given_back.values() for key in keys}
        assert given <= times.keys()
        assert not set(found.needed) & times.keys()
    assert results[1] == results[2]
