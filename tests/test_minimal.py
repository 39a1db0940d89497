"""Minimal quarantine: real runs that broke, replayed until the culprits are left."""

import dataclasses
import json
import shutil
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from foreshock import recipes
from foreshock.cli.main import cli
from foreshock.core.errors import Halted, RunDirError, SnapshotError, StreamError
from foreshock.core.minimal import Minimal
from foreshock.core.program import Program, Settings
from foreshock.data.account import Account
from foreshock.data.stream import Stage, Stream
from foreshock.driver import build, guard_for, train
from foreshock.durable import RealDisk
from foreshock.faults.crawl_shard import CrawlShard
from foreshock.giving_back import give_back
from foreshock.guard import Guard
from foreshock.journal import Journal
from foreshock.lab.programs import POISON_SOURCE, text_program
from foreshock.minimal import minimize
from foreshock.recipes import Recipe
from foreshock.replaying import Replay
from tests.data.lineage import lineage
from tests.guard.programs import Sentences, TinyModel, loss_of

STEPS = 100
BATCH = 8
BEFORE, POISON = 404, 40
SETTINGS = Settings(seed=0, max_steps=STEPS)
RECIPE = """
rules = false
[cadence]
memory_steps = 10
memory_keep = 3
disk_steps = 20
disk_keep = 8
[policy]
lookahead = 1.0
"""


def tiny(settings: Settings) -> Program:
    """A small program with a bad region of 40 samples that begins in the middle of step 51."""
    model = TinyModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.get("lr", 1e-2))
    stages = [
        Stage(name="before", sources={"a": Sentences(BEFORE, seed=1)}),
        Stage(name="poison", sources={"p": Sentences(POISON, seed=2, poisoned=True)}),
        Stage(name="after", sources={"b": Sentences(4000, seed=3)}),
    ]
    return Program(
        model=model,
        optimizer=optimizer,
        scheduler=torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, settings.max_steps),
        stream=Stream(stages, batch_size=BATCH, seed=settings.seed),
        loss=loss_of,
        clip=1.0,
        name="tiny",
    )


def recipe_in(folder: Path) -> tuple[Path, Recipe]:
    path = folder / "recipe.toml"
    path.write_text(RECIPE)
    return path, recipes.load(path)


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `run`, which broke once and recovered, and `recipe.toml`."""
    folder = tmp_path_factory.mktemp("broken")
    _, recipe = recipe_in(folder)
    program = build(tiny, SETTINGS)
    guard = guard_for(program, name="tiny", run_dir=folder / "run", recipe=recipe, max_steps=STEPS)
    with guard, suppress(Halted):
        train(program, guard)
    assert guard.halted is None
    assert [one.outcome for one in guard.book.incidents] == ["recovered"]
    return folder


@pytest.fixture
def run(broken: Path, tmp_path: Path) -> Path:
    """A copy of the run."""
    return Path(shutil.copytree(broken / "run", tmp_path / "run"))


@pytest.fixture(scope="module")
def found(broken: Path) -> Minimal:
    _, recipe = recipe_in(broken)
    return minimize(broken / "run", build(tiny, SETTINGS), recipe, budget=40)


def files_of(run: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(run)): path.read_bytes() for path in run.rglob("*") if path.is_file()
    }


def account_of(run: Path) -> Account:
    view = Journal.read(RealDisk(), run)
    return Account(view.identity["stream"], view.records)


def stay(found: Minimal) -> set[tuple[str, int]]:
    return {*found.needed, *found.undecided}


def test_the_bad_samples_stay_and_the_clean_ones_are_given_back(
    broken: Path, found: Minimal
) -> None:
    held = {
        key
        for one in account_of(broken / "run").ledger.entries
        for key in account_of(broken / "run").ledger.held_by(one.entry_id)
    }
    given = {key for keys in found.given_back.values() for key in keys}
    assert given | stay(found) == held
    assert not given & stay(found)
    poison = {key for key in held if key[0] == "p"}
    clean = held - poison
    assert len(poison) >= 16
    assert len(clean) >= 4
    assert poison <= stay(found)
    assert len(given & clean) >= 0.8 * len(clean)
    assert found.reproduced
    assert not found.without_any
    assert found.exact is True
    assert set(found.needed) <= poison


def test_the_cost_is_told_against_the_fixed_practice(found: Minimal) -> None:
    cost = found.tokens
    assert cost.per_sample == 12
    assert cost.palm == (300 * BATCH * 12, 600 * BATCH * 12)
    assert cost.set_aside_after == 12 * len(stay(found)) <= cost.set_aside_before
    lost = cost.recomputed + cost.set_aside_after
    assert cost.times_fewer == (cost.palm[0] / lost, cost.palm[1] / lost)


def test_the_same_search_finds_the_same_and_leaves_the_run_alone(run: Path, broken: Path) -> None:
    before = files_of(run)
    twice = [
        minimize(run, build(tiny, SETTINGS), recipe_in(broken)[1], budget=10) for _ in range(2)
    ]
    assert twice[0] == twice[1]
    assert files_of(run) == before


@pytest.mark.slow
def test_with_replays_enough_just_the_bad_samples_stay(broken: Path) -> None:
    _, recipe = recipe_in(broken)
    found = minimize(broken / "run", build(tiny, SETTINGS), recipe, budget=200)
    assert set(found.needed) == {("p", number) for number in range(POISON)}
    assert found.minimal
    assert not found.undecided


def test_a_small_budget_gives_back_less_and_says_so(
    run: Path, broken: Path, found: Minimal
) -> None:
    few = minimize(run, build(tiny, SETTINGS), recipe_in(broken)[1], budget=4)
    assert few.num_replays <= 4
    assert not few.minimal
    assert few.num_given_back <= found.num_given_back
    assert {key for key in stay(found) if key[0] == "p"} <= stay(few)


def held_in(run: Path) -> tuple[set[tuple[str, int]], set[tuple[str, int]]]:
    """The samples that are held, and those of them that are coming back."""
    ledger = account_of(run).ledger
    ids = [one.entry_id for one in ledger.entries]
    held = {key for entry in ids for key in ledger.held_by(entry)}
    return held, {key for entry in ids for key in ledger.coming_back(entry)}


def given_of(found: Minimal) -> set[tuple[str, int]]:
    return {key for keys in found.given_back.values() for key in keys}


def resumed(run: Path, broken: Path, max_steps: int, **options: Any) -> Guard:
    """Go on to a step; the program is that of the run."""
    program = build(tiny, SETTINGS)
    guard = guard_for(
        program,
        name="tiny",
        run_dir=run,
        recipe=recipe_in(broken)[1],
        max_steps=max_steps,
        resume=True,
        **options,
    )
    with guard, suppress(Halted):
        train(program, guard)
    return guard


def trained_in(run: Path) -> Counter[tuple[str, int]]:
    """How often each sample trained, in what the run is made of now."""
    view = Journal.read(RealDisk(), run)
    order = tiny(SETTINGS).stream.order
    places = [place for one in lineage(view).values() for place in one]
    return Counter(order.locate(place)[1:] for place in places)


def test_what_is_given_back_comes_back_and_the_rest_is_held(run: Path, found: Minimal) -> None:
    old = files_of(run)
    assert give_back(run, found, clock=lambda: 0.0)
    new = files_of(run)
    assert {name for name in new if new[name] != old.get(name)} == {"decisions.jsonl"}
    assert new["decisions.jsonl"].startswith(old["decisions.jsonl"])
    view = Journal.read(RealDisk(), run)
    (record,) = [one for one in view.records if one["kind"] == "minimized"]
    assert {tuple(key) for key in record["needed"]} == set(found.needed)
    assert record["tokens"]["palm"] == list(found.tokens.palm)
    assert record == view.records[-1]
    held, coming = held_in(run)
    assert coming == given_of(found)  # the run has passed all of them by
    assert held - coming == stay(found)


@pytest.mark.slow
def test_every_clean_sample_trains_once_and_the_bad_ones_do_not(
    run: Path, broken: Path, found: Minimal
) -> None:
    give_back(run, found)
    guard = resumed(run, broken, STEPS + 340)
    assert len(guard.book.incidents) == 1
    held, coming = held_in(run)
    assert not coming
    assert held == stay(found)
    times = trained_in(run)
    assert given_of(found) <= times.keys()
    assert not stay(found) & times.keys()
    assert set(times.values()) == {1}
    order = tiny(SETTINGS).stream.order
    last = max(order.last_visit(*key, order.total) or 0 for key in times)
    assert times.keys() | stay(found) == {order.locate(place)[1:] for place in range(last + 1)}


@pytest.mark.parametrize("num_written", [0, 1, 2, 3])
def test_a_crash_while_it_is_given_back_is_made_good(
    run: Path, found: Minimal, num_written: int
) -> None:
    """Killed after some of the records, it is done again; each sample has one slot."""
    whole = Path(shutil.copytree(run, run.parent / "whole"))
    give_back(whole, found)
    more = Journal.read(RealDisk(), whole).records[len(Journal.read(RealDisk(), run).records) :]
    with Journal.open(RealDisk(), run, None, lambda: 0.0) as journal:
        for one in more[:-1][:num_written]:
            fields = {key: value for key, value in one.items() if key != "time"}
            journal.write(fields.pop("kind"), **fields)
    give_back(run, found)
    assert held_in(run) == held_in(whole)
    ledger = account_of(run).ledger
    slots = [course.keys[n] for course in ledger.courses for n in course.waiting()]
    assert len(slots) == len(set(slots)) == found.num_given_back


def test_a_second_search_looks_at_what_is_left_only(
    run: Path, broken: Path, found: Minimal
) -> None:
    give_back(run, found)
    again = minimize(run, build(tiny, SETTINGS), recipe_in(broken)[1], budget=6)
    assert stay(again) | given_of(again) == stay(found)
    assert not given_of(found) & stay(again)


def test_a_run_that_goes_on_takes_the_finding_in_by_itself(
    run: Path, broken: Path, found: Minimal
) -> None:
    old = files_of(run)
    lock = RealDisk().lock(run / "lock")
    try:
        assert not give_back(run, found)
    finally:
        lock.close()
    new = files_of(run)
    (left,) = {name for name in new if new[name] != old.get(name)} - {"lock"}
    assert left.startswith("requests/")
    told: list[str] = []
    resumed(run, broken, STEPS + 340, listener=lambda kind, _: told.append(kind))
    assert told.count("minimized") == 1
    (record,) = [o for o in Journal.read(RealDisk(), run).records if o["kind"] == "minimized"]
    assert record["step"] == STEPS
    assert held_in(run) == (stay(found), set())
    assert set(trained_in(run).values()) == {1}
    assert not list((run / "requests").iterdir())


def test_a_replay_is_the_run_step_by_step(broken: Path) -> None:
    """Also over overrides; the plain past of the run has the losses that were recorded."""
    view = Journal.read(RealDisk(), broken / "run")
    first = next(n for n, one in enumerate(view.records) if one["kind"] == "plan")
    replay = Replay(
        build(tiny, SETTINGS),
        recipe_in(broken)[1],
        broken / "run",
        view.records[:first],
        disk=RealDisk(),
    )
    replay.go_to("00000020-a00001")
    for _ in range(30):
        batches = replay.draw()
        assert batches is not None
        replay.train(batches)
    block = view.readings(1, ["loss/global"])
    told = dict(zip(block.steps.tolist(), block.values[:, 0].tolist(), strict=True))
    assert {step: told[step] for step in range(21, 51)} == replay.losses


def test_a_kept_state_is_gone_back_to_bit_by_bit(broken: Path) -> None:
    replay = Replay(
        build(tiny, SETTINGS), recipe_in(broken)[1], broken / "run", [], disk=RealDisk()
    )
    with pytest.raises(SnapshotError, match="no state"):
        replay.back()
    replay.go_to("00000020-a00001")
    replay.keep()
    steps = [[list(range(8 * n, 8 * n + 8))] for n in range(5)]

    def trained() -> list[float]:
        replay.back()
        for one in steps:
            replay.train(one)
        return [replay.losses[21 + n] for n in range(5)]

    first = trained()
    replay.loss_at(3)
    replay.train([[9, 8, 7]])
    assert trained() == first


def test_where_the_same_steps_raise_no_alarm_the_data_is_not_at_fault(run: Path) -> None:
    silent = recipes.standard({"rules": False, "detectors": False})
    told = minimize(run, build(tiny, SETTINGS), silent, budget=3)
    assert not told.reproduced
    assert told.exact is True
    assert not stay(told)


def test_where_the_replay_is_another_run_nothing_is_given_back(run: Path) -> None:
    program = build(tiny, SETTINGS)
    other = dataclasses.replace(program, loss=lambda model, batch: 0.5 * loss_of(model, batch))
    silent = recipes.standard({"rules": False, "detectors": False})
    told = minimize(run, other, silent, budget=3)
    assert not told.reproduced
    assert told.exact is False
    assert told.num_given_back == 0
    assert "nothing can be told" in told.verdict


def test_what_cannot_be_minimized_is_refused(run: Path, broken: Path, tmp_path: Path) -> None:
    recipe = recipe_in(broken)[1]
    with pytest.raises(RunDirError, match="no incident 7"):
        minimize(run, build(tiny, SETTINGS), recipe, incident=7)
    with pytest.raises(StreamError, match="not that of the run"):
        minimize(run, build(tiny, Settings(seed=1, max_steps=STEPS)), recipe)
    with pytest.raises(ValueError, match="budget=2"):
        minimize(run, build(tiny, SETTINGS), recipe, budget=2)
    for path in (run / "snapshots").iterdir():
        (path / "manifest.json").write_bytes(b"{}")
    with pytest.raises(SnapshotError, match="no healthy snapshot from before"):
        minimize(run, build(tiny, SETTINGS), recipe)
    with Journal.open(RealDisk(), run, None, lambda: 0.0) as journal:
        for one in account_of(run).ledger.entries:
            journal.write(
                "released", attempt=1, step=1, entry_id=one.entry_id, ids=None, position=9
            )
    with pytest.raises(RunDirError, match="still holds samples"):
        minimize(run, build(tiny, SETTINGS), recipe)


def command(run: Path, broken: Path, *more: str) -> Any:
    arguments = ["minimize", str(run), "--program", f"{__file__}:tiny", "--max-steps", str(STEPS)]
    arguments += ["--config", str(recipe_in(broken)[0]), *more]
    return CliRunner().invoke(cli, arguments, env={"COLUMNS": "80"})


def test_the_command_gives_back_and_tells(run: Path, broken: Path) -> None:
    dry = command(run, broken, "--budget", "6", "--json", "--dry-run")
    assert dry.exit_code == 0, dry.output
    first = json.loads(dry.stdout)
    assert first["taken"] == "not recorded"
    assert not any(one["kind"] == "minimized" for one in Journal.read(RealDisk(), run).records)
    told = command(run, broken, "--budget", "6")
    assert told.exit_code == 0, told.output
    assert max(map(len, told.stdout.splitlines())) <= 80
    given = {tuple(key) for keys in first["given_back"].values() for key in keys}
    assert given
    assert f"{len(given):,} samples (journalled)" in told.stdout
    (record,) = [o for o in Journal.read(RealDisk(), run).records if o["kind"] == "minimized"]
    assert {**record, "taken": "not recorded"}.items() >= first.items()


def guarded_text(run: Path, settings: Settings, recipe: Recipe) -> Guard:
    program = build(text_program, settings)
    guard = guard_for(
        program, name="text", run_dir=run, recipe=recipe, max_steps=settings.max_steps
    )
    with guard, suppress(Halted):
        train(program, guard)
    return guard


@pytest.mark.slow
def test_of_a_bad_region_in_real_text_the_clean_samples_come_back(tmp_path: Path) -> None:
    """Six batches of a broken crawl in the middle of text: recovered from, then minimised."""
    fault = CrawlShard(intensity=1.0, repetition=0.0)
    poison = {"step": 67, "batches": 6, "fault": fault, "seed": [1, 2]}
    settings = Settings(
        seed=3, max_steps=110, overrides={"width": 64, "depth": 2, "poison": poison}
    )
    recipe = recipes.standard({"rules": False, "cadence": {"disk_steps": 20}})
    run = tmp_path / "run"
    guard = guarded_text(run, settings, recipe)
    assert guard.halted is None
    held = guard.num_quarantined
    found = minimize(run, build(text_program, settings), recipe, budget=64)
    given = {key for keys in found.given_back.values() for key in keys}
    assert len(given) + len(stay(found)) == held
    poison_kept = {key for key in stay(found) if key[0] == POISON_SOURCE}
    clean = [key for key in given | stay(found) if key[0] != POISON_SOURCE]
    assert len(clean) > 100
    assert len(poison_kept) >= 0.9 * 96
    assert sum(key in given for key in clean) >= 0.8 * len(clean)
    assert found.exact is True
    assert found.tokens.times_fewer is not None
    assert found.tokens.times_fewer[0] > 5
