"""The claims of the data page, on real guarded runs: nothing lost, twice or undone."""

import dataclasses
import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from foreshock import upkeep
from foreshock.core.errors import Halted
from foreshock.core.minimal import Minimal
from foreshock.core.program import Program, Settings
from foreshock.data.account import Account
from foreshock.data.minimized import fields_of
from foreshock.data.requests import Request, Requests
from foreshock.data.stream import Stage, Stream
from foreshock.driver import build, guard_for
from foreshock.durable import RealDisk
from foreshock.giving_back import give_back
from foreshock.guard import Guard
from foreshock.journal import Journal
from foreshock.minimal import minimize
from foreshock.recipes import Cadence, Recipe, standard
from tests.data.lineage import lineage
from tests.data.whole_order import admitted
from tests.guard.programs import Sentences, TinyModel, loss_of

STEPS = 60
BATCH = 8
LETHAL = 81
"""The index of the one sample of which the loss is no number."""


class WithOneLethal(Sentences):
    def __getitem__(self, index: int) -> torch.Tensor:
        return super().__getitem__(index) if index != LETHAL else torch.zeros(12, dtype=torch.long)


def lethal_loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    loss = loss_of(model, batch)
    return loss + torch.nan if bool((batch == 0).all(1).any()) else loss


def one_lethal(settings: Settings) -> Program:
    """Two sources whose samples have the same indices; one sample of the second is lethal."""
    model = TinyModel()
    twice = Sentences(160, seed=1)
    stages = [
        Stage(name="first", sources={"a": twice}),
        Stage(name="both", sources={"a": twice, "n": WithOneLethal(300, seed=2)}),
        Stage(name="last", sources={"b": Sentences(1500, seed=3)}),
    ]
    return Program(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=5e-3),
        stream=Stream(stages, batch_size=settings.get("batch_size", BATCH), seed=settings.seed),
        loss=lethal_loss,
        clip=1.0,
        name="one_lethal",
    )


def recipe() -> Recipe:
    cadence = Cadence(memory_steps=5, memory_keep=3, disk_steps=10, asynchronous=False)
    return dataclasses.replace(standard({"rules": False}), cadence=cadence)


Hook = Callable[[Guard, Stream], None]


def trained(
    run_dir: Path, max_steps: int, *, hook: Hook | None = None, batch_size: int = BATCH
) -> Guard:
    """Begin the run, or go on with it, up to a step; requests are looked for at each."""
    program = build(one_lethal, Settings(overrides={"batch_size": batch_size}))
    guard = guard_for(
        program,
        name="one_lethal",
        run_dir=run_dir,
        recipe=recipe(),
        max_steps=max_steps,
        resume=None,
    )
    with guard, suppress(Halted):
        for batch in guard:
            if hook is not None:
                hook(guard, program.stream)
            guard.step(program.loss(program.model, batch))
    assert guard.halted is None
    return guard


def ask(run_dir: Path, number: int, **fields: Any) -> None:
    Requests(RealDisk(), run_dir).leave(Request(request=f"{number:016x}", **fields))


def steps_of(run_dir: Path) -> list[list[int]]:
    """The positions of each step that the run is made of now."""
    return list(lineage(Journal.read(RealDisk(), run_dir)).values())


def keys_of(run_dir: Path) -> Iterator[tuple[str, int]]:
    order = one_lethal(Settings()).stream.order
    return (order.locate(place)[1:] for step in steps_of(run_dir) for place in step)


def checked(run_dir: Path) -> None:
    """The run's batches are what brute force makes of its order and its records."""
    order = one_lethal(Settings()).stream.order
    base = [tuple(order.locate(place)) for place in range(order.total)]
    expected = admitted(base, Journal.read(RealDisk(), run_dir).records)  # type: ignore[arg-type]
    at = 0
    for step in steps_of(run_dir):
        assert step == sorted(expected[at : at + len(step)])
        at += len(step)


def records(run_dir: Path, *kinds: str) -> list[dict[str, Any]]:
    return [one for one in Journal.read(RealDisk(), run_dir).records if one["kind"] in kinds]


def held(run_dir: Path) -> set[tuple[str, int]]:
    view = Journal.read(RealDisk(), run_dir)
    ledger = Account(view.identity["stream"], view.records).ledger
    return {key for one in ledger.entries for key in ledger.held_by(one.entry_id)}


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def requests_are_looked_for_at_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "_LOOK_EVERY_SECS", 0.0)


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Minimal]:
    """A run that met the lethal sample and recovered; what is needed of its quarantine."""
    run_dir = tmp_path_factory.mktemp("guarded") / "run"
    guard = trained(run_dir, STEPS)
    assert [one.outcome for one in guard.book.incidents] == ["recovered"]
    found = minimize(run_dir, build(one_lethal, Settings()), recipe(), budget=64)
    return run_dir, found


@pytest.fixture
def run(broken: tuple[Path, Minimal], tmp_path: Path) -> Path:
    return Path(shutil.copytree(broken[0], tmp_path / "run"))


def test_just_the_lethal_one_is_needed(broken: tuple[Path, Minimal]) -> None:
    run_dir, found = broken
    assert found.needed == (("n", LETHAL),)
    assert found.minimal
    assert found.num_given_back == len(held(run_dir)) - 1
    checked(run_dir)


@pytest.mark.slow
def test_one_that_alarms_again_stays_for_good_and_its_new_window_is_given_back(
    run: Path, broken: tuple[Path, Minimal]
) -> None:
    """Brought back beside clean samples it breaks the run once more; they are not to blame."""
    give_back(run, broken[1])
    flow = {"every_samples": 40, "watch_steps": 16}
    ask(run, 1, command="reflow", entry_id="incident/1", ids=broken[1].needed, **flow)
    guard = trained(run, STEPS + 60)
    assert [one.outcome for one in guard.book.incidents] == ["recovered"] * 2
    outcomes = {tuple(one["key"]): one for one in records(run, "reflowed")}
    blamed = outcomes["n", LETHAL]
    assert blamed["outcome"] == "alarmed"
    assert "an alarm began in step" in blamed["reason"]
    checked(run)
    new = {key for key in held(run) if outcomes.get(key, {}).get("outcome") != "alarmed"}
    found = minimize(run, build(one_lethal, Settings()), recipe(), incident=2, budget=64)
    assert "had been brought back are needed" in found.verdict
    assert found.needed == found.undecided == ()
    given = {key for keys in found.given_back.values() for key in keys}
    assert given
    assert given <= new
    give_back(run, found)
    ask(run, 2, command="reflow", entry_id="incident/1", **flow)  # it is not taken again
    guard = trained(run, STEPS + 200)
    assert len(guard.book.incidents) == 2
    (refused,) = records(run, "request_refused")
    assert "nothing of it is left" in refused["reason"]
    checked(run)
    stay = held(run)
    assert ("n", LETHAL) in stay
    assert all(outcomes[key]["outcome"] == "alarmed" for key in stay)
    times, expected = Counter(keys_of(run)), visits(run)
    assert ("n", LETHAL) not in times
    assert all(times[key] == expected[key] for key in times if key not in stay)


def test_a_release_while_another_incident_is_recovered_from(
    run: Path, broken: tuple[Path, Minimal]
) -> None:
    """Both a person's and a search's; the order stays one function of the records."""
    give_back(run, broken[1])
    flow = {"every_samples": 16, "watch_steps": 16}
    ask(run, 1, command="reflow", entry_id="plan1/0", ids=broken[1].needed, **flow)
    left: list[int] = []

    def hook(guard: Guard, stream: Stream) -> None:
        if guard.book.open is not None and not left:
            left.append(guard.step_number)
            new = stream.ledger.all_entries[-1].entry_id
            some = stream.ledger.samples(new)[:3]
            ask(run, 2, command="release", entry_id=new, ids=some)
            ask(run, 3, command="reflow", entry_id=new, **flow)

    guard = trained(run, STEPS + 200, hook=hook)
    assert left
    assert [one.outcome for one in guard.book.incidents] == ["recovered"] * 2
    assert [one["request"][-1] for one in records(run, "released") if "request" in one] == ["2"]
    checked(run)
    assert ("n", LETHAL) not in set(keys_of(run))
    assert max(Counter(keys_of(run)).values()) <= 2  # of "a" and "n" both stages visit


@pytest.mark.parametrize("batch_size", [12, pytest.param(4, marks=pytest.mark.slow)])
def test_another_batch_size_between_quarantine_and_return(
    run: Path, broken: tuple[Path, Minimal], batch_size: int
) -> None:
    give_back(run, broken[1])
    trained(run, STEPS + 30, batch_size=batch_size)
    trained(run, STEPS + 180, batch_size=BATCH)
    checked(run)
    assert held(run) == {("n", LETHAL)}
    assert Counter(keys_of(run)) == visits(run) - Counter({("n", LETHAL): 1})


def test_a_finding_is_the_journal_s_own(run: Path, broken: tuple[Path, Minimal]) -> None:
    give_back(run, broken[1])
    (record,) = records(run, "minimized")
    assert Minimal.from_json(fields_of(json.loads(json.dumps(record)))) == broken[1]


def visits(run_dir: Path) -> Counter[tuple[str, int]]:
    """How often the order has each sample up to where the run is."""
    order = one_lethal(Settings()).stream.order
    last = max(place for step in steps_of(run_dir) for place in step)
    return Counter(order.locate(place)[1:] for place in range(last + 1))
