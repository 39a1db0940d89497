"""Sharded snapshots on real gloo ranks: written by some, read by others, killed in between."""

import json
import multiprocessing
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import torch.distributed as dist

from foreshock.durable import REAL_DISK, clean_leftovers
from foreshock.snapshots.sharded_store import ShardedStore
from tests.ranks.processes import on_ranks
from tests.snapshots.sharded_program import (
    Facts,
    die,
    disagree,
    laid_out,
    load,
    ref_of,
    save,
    stage,
    tree_of,
)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def equal(one: Facts, two: Facts) -> None:
    """In every bit, and in digest."""
    assert one.digest == two.digest
    assert one.tensors.keys() == two.tensors.keys()
    for name, tensor in one.tensors.items():
        other = two.tensors[name]
        assert (tensor.dtype, tensor.shape) == (other.dtype, other.shape), name
        assert (
            tensor.numpy(force=True).tobytes() == other.numpy(force=True).tobytes()
            if (tensor.dtype is not torch.bfloat16)
            else torch.equal(tensor.view(torch.int16), other.view(torch.int16))
        ), name


def check_owned(told: list[Facts], world: int) -> None:
    """Each rank has its own state back, if a rank of its number wrote one."""
    for rank, one in enumerate(told):
        if rank < world:
            assert one.own["rank"] == rank
            assert torch.equal(one.own["torch"], torch.Generator().manual_seed(rank).get_state())
        else:
            assert one.own is None


def travel(tmp_path: Path, first: int, second: int, layouts: tuple[str, ...]) -> None:
    """Written by `first` ranks, read and written by `second` and by one, read by `first`."""
    written = on_ranks(save, first, str(tmp_path / "first"), layouts)
    sources = [str(tmp_path / "first" / layout) for layout in layouts]
    expected = [facts for facts in written[0] for _ in ("ddp", "fsdp")]

    read = on_ranks(load, second, sources, ("ddp", "fsdp"), str(tmp_path / "second"))
    for told in read:
        for one, wanted in zip(told, expected, strict=True):
            equal(one, wanted)
    for index in range(len(expected)):
        check_owned([told[index] for told in read], first)

    between = [str(path) for path in sorted((tmp_path / "second").iterdir())]
    assert len(between) == len(expected)
    alone = load(0, 1, [*sources, *between], ("plain",), "")
    by_source = dict(zip([*sources, *between], alone, strict=True))
    for layout, wanted in zip(layouts, written[0], strict=True):
        mine = [one for source, one in by_source.items() if Path(source).name.startswith(layout)]
        assert len(mine) == 3
        for one in mine:
            equal(one, wanted)

    back = on_ranks(load, first, between, (layouts[-1],), "")
    for rank, told in enumerate(back):
        for source, one in zip(between, told, strict=True):
            equal(one, by_source[source])
            assert (one.own is None) == (rank >= second)


def test_four_ranks_to_two_to_one_and_back(tmp_path: Path) -> None:
    travel(tmp_path, 4, 2, ("ddp", "fsdp"))
    check_files(tmp_path / "first")


@pytest.mark.slow
@pytest.mark.parametrize(("first", "second"), [(4, 3), (2, 4), (3, 2)])
def test_any_number_of_ranks(tmp_path: Path, first: int, second: int) -> None:
    travel(tmp_path, first, second, ("ddp", "fsdp"))


@pytest.mark.slow
def test_replicated_shards_are_written_once(tmp_path: Path) -> None:
    travel(tmp_path, 4, 2, ("ddp", "hsdp"))
    check_files(tmp_path / "first")


def check_files(folder: Path) -> None:
    """Nothing is written twice, all can be read by safetensors, and nothing is a pickle."""
    for path in folder.iterdir():
        snapshot = path / ref_of(2).id
        names = sorted(one.name for one in snapshot.iterdir())
        shards = [name for name in names if name.endswith(".safetensors")]
        assert len(names) == 9 and len(shards) == 4 and "manifest.json" in names
        body = json.loads((snapshot / "manifest.json").read_text())["body"]
        held: dict[str, torch.Tensor] = {}
        sizes = []
        for name in shards:
            tensors = safetensors.torch.load_file(snapshot / name)
            state = {key: one for key, one in tensors.items() if key[0] == "/"}
            assert held.keys().isdisjoint(state)
            held.update(state)
            sizes.append(sum(one.nbytes for one in state.values()))
        total = sum(
            one.nbytes for one in held.values()
        )  # of tied weights and copies one, and no chunk without elements
        assert all(one.numel() for one in held.values())
        model, optimizer = laid_out("plain", 1, 1)
        tree = tree_of(model, optimizer)
        plain = [*tree["model"].values()]
        plain += [one for state in tree["optimizer"]["state"].values() for one in state.values()]
        tied = model.embed.weight.nbytes
        assert total == sum(one.nbytes for one in plain) - tied
        assert max(sizes) < 0.45 * total
        assert body["ties"] == {"/model/head.weight": "/model/embed.weight"}


def test_ranks_that_disagree_or_fail_are_named_on_every_rank(tmp_path: Path) -> None:
    told = on_ranks(disagree, 2, str(tmp_path))
    assert told[0] == told[1]
    said = {name: " ".join(words[:2]) for name, words in told[0].items()}
    for name in ("replica", "shape", "value"):
        assert said[name].startswith("UnlikeRanksError"), said[name]
    assert said["damage"].startswith("DamagedError")
    assert "/w is not the same" in said["replica"]
    assert "[0] against [1]" in said["replica"]
    assert "ranks 0 and 1 differ in what they hold" in said["shape"] and "'/w'" in said["shape"]
    assert "hold different values of /s" in said["value"]
    assert "on rank 1: state.s is a set" in said["object"]
    assert "on rank 1: state.own is a set" in said["own"]
    assert said["full"].startswith("OSError") and "on rank 1: No space left" in said["full"]
    assert "on rank 1" in said["target"] and "where this run has torch.float32" in said["target"]
    assert "rank-00000.safetensors is damaged: /w@0,0 does not match" in said["damage"]
    assert {words[2] for words in told[0].values()} == {ref_of(1).id}


def test_a_staged_copy_is_what_is_written(tmp_path: Path) -> None:
    for first, written, second, again in on_ranks(stage, 2, str(tmp_path)):
        assert first == written != second == again


# A rank dies while it writes


def killed(tmp_path: Path, world: int, victim: int, die_at: int) -> str:
    """Kill a rank at a change of its disk; what the run would go back to must be whole."""
    context = multiprocessing.get_context("forkserver")
    store_file = f"file://{tmp_path}/rendezvous"
    folder = tmp_path / "snapshots"
    processes = [
        context.Process(
            target=in_a_group, args=(die, rank, world, store_file, str(folder), victim, die_at)
        )
        for rank in range(world)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
        assert process.exitcode is not None
    died = processes[victim].exitcode != 0
    for rank in range(world):
        said = folder / f"{rank}.said"
        if rank != victim:
            assert said.read_text() == "written" or "cannot be written" in said.read_text()
        said.unlink(missing_ok=True)
    assert died == (processes[victim].exitcode == -9)

    clean_leftovers(REAL_DISK, folder)
    store = ShardedStore(REAL_DISK, folder)
    found, objections = store.refs()
    assert objections == []
    assert [ref.step for ref in found] in ([1], [1, 2])
    for ref in found:
        store.verify(ref.id)
        tree = tree_of(*laid_out("plain", 1, 9))
        assert store.read_into(ref.id, tree) == {"rank": 0}
        assert store.digest(tree) == ref.digest
    return f"{'died' if died else 'lived'} {len(found)}"


def in_a_group(function: Any, rank: int, world: int, store: str, *args: Any) -> None:
    torch.set_num_threads(1)
    os.environ["TORCH_CPP_LOG_LEVEL"] = "FATAL"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world)
    function(rank, world, *args)


@pytest.mark.parametrize(
    ("victim", "die_at", "outcome"), [(1, 1, "died 1"), (0, 7, "died 1"), (0, 11, "died 2")]
)
def test_a_killed_rank_leaves_the_old_or_the_new(
    tmp_path: Path, victim: int, die_at: int, outcome: str
) -> None:
    assert killed(tmp_path, 2, victim, die_at) == outcome


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 4])
def test_a_rank_killed_at_every_change(tmp_path: Path, world: int) -> None:
    for victim in (0, world - 1):
        outcomes = []
        for die_at in range(14):
            folder = tmp_path / f"{victim}-{die_at}"
            folder.mkdir()
            outcomes.append(killed(folder, world, victim, die_at))
        last = {0: "died 2", world - 1: "died 1"}[victim]
        dead = [one for one in outcomes if one != "lived 2"]
        assert dead == outcomes[: len(dead)] and len(dead) == (12 if victim == 0 else 6)
        assert dead[-1] == last and set(dead[:-1]) == {"died 1"}
