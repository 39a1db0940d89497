"""Which ranks hold the same data, and the odd one named: one flipped bit in real processes."""

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from foreshock.core.errors import ConfigError
from foreshock.ranks.digest import digests
from foreshock.ranks.exchange import exchange
from foreshock.ranks.placement import local_part
from foreshock.ranks.replicas import Mismatch, Replicas, compare, find_replicas
from foreshock.ranks.shards import Seal
from tests.ranks.processes import CPU, on_ranks


def flip(tensor: torch.Tensor, bit: int = 0) -> None:
    """Flip one bit of the first element in memory, past PyTorch."""
    words = tensor.detach().numpy().reshape(-1).view("uint32")
    words[0] ^= 1 << bit


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 3))


def mismatches(named: list[tuple[str, torch.Tensor]], replicas: Replicas) -> list[Mismatch]:
    own = digests([local_part(tensor) for _, tensor in named], CPU)
    return compare(replicas.gather(own, None), replicas)


def test_three_classes_of_answers() -> None:
    """The words for a majority, for two, for a tie, and for all different."""
    replicas = Replicas(names=("w",), ranks=(0, 1, 2, 3), sets=(((0, 1, 2, 3),),), own=(0,))

    def say(*values: int) -> str:
        table = torch.tensor([[[value, 0]] for value in values])
        return str(compare(table, replicas)[0])

    assert say(1, 1, 5, 1) == "w: rank 2 differs from the other 3 replicas"
    assert say(1, 1, 5, 5) == "w: ranks 0, 1 against ranks 2, 3, no majority among 4 replicas"
    assert "no majority among 4" in say(1, 1, 5, 6)
    assert compare(torch.ones(4, 1, 2), replicas) == []
    two = Replicas(names=("w",), ranks=(4, 7), sets=(((4, 7),),), own=(0,))
    (pair,) = compare(torch.tensor([[[1, 2]], [[1, 3]]]), two)
    assert str(pair) == "w: ranks 4, 7 differ; two replicas cannot tell which is right"
    assert not pair.has_majority and pair.odd == (4, 7)
    three = Mismatch(name="w", classes=((0, 2), (1,)))
    assert three.odd == (1,)


def test_a_path_given_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="'w' was given twice"):
        find_replicas([("w", torch.ones(1)), ("w", torch.ones(1))], CPU)


def test_one_rank_alone_has_no_replica() -> None:
    named = [("w", torch.ones(3))]
    replicas = find_replicas(named, CPU)
    assert replicas.sets == ((),) and replicas.unwatched == ("w",)
    assert mismatches(named, replicas) == []


def copies(rank: int, world: int) -> list[str]:
    named = list(net().named_parameters())
    replicas = find_replicas(named, CPU)
    assert replicas.sets == ((tuple(range(world)),),) * 4 and replicas.unwatched == ()
    assert mismatches(named, replicas) == []
    if rank == world - 1:
        flip(dict(named)["2.weight"])
    said = [str(one) for one in mismatches(named, replicas)]
    # a path that only one rank has, and one whose plain tensors are different by design
    own = [*named, ("expert", torch.full((2,), rank)), (f"stage{rank}.w", torch.ones(2))]
    replicas = find_replicas(own, CPU, own=("expert",))
    assert len(replicas.names) == 5 + world
    assert set(replicas.unwatched) == {
        "expert", *(f"stage{one}.w" for one in range(world))
    }  # fmt: skip
    assert [str(one) for one in mismatches(own, replicas)] == said
    assert exchange({"rank": rank, "text": "ü" * rank}, CPU, None)[1] == {"rank": 1, "text": "ü"}
    return said


def test_of_two_replicas_both_are_named() -> None:
    said = ["2.weight: ranks 0, 1 differ; two replicas cannot tell which is right"]
    assert on_ranks(copies, 2) == [said, said]


@pytest.mark.slow
def test_of_four_replicas_the_odd_one_is_named() -> None:
    said = ["2.weight: rank 3 differs from the other 3 replicas"]
    assert on_ranks(copies, 4) == [said] * 4


def shards(rank: int, world: int) -> list[str]:
    """FSDP2: no replicas; a flip between two steps is found by the seal."""
    model = net()
    mesh = init_device_mesh("cpu", (world,))
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=True)
    named = list(model.named_parameters())
    replicas = find_replicas(named, CPU)
    assert not any(replicas.sets) and len(replicas.unwatched) == 4
    seal = Seal(named, CPU)
    assert not seal.changes().any() and not seal.closed

    def step(corrupt: bool = False, edit: bool = False) -> list[str]:
        seal.close()
        model(torch.ones(2, 6)).square().mean().backward()
        if corrupt:
            flip(dict(named)["2.weight"].to_local(), bit=3)
        if edit:
            with torch.no_grad():
                dict(named)["0.bias"].add_(1.0)
        table = seal.gather(seal.changes())
        optimizer.step()
        optimizer.zero_grad()
        return [str(one) for one in seal.name_changes(table)]

    assert step() == step() == []
    found = step(corrupt=rank == 1)
    assert step() == []
    edited = step(edit=rank == 0)
    seal.forget()
    assert not seal.changes().any()
    return found + edited


@pytest.mark.parametrize("world", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_a_shard_that_changed_between_steps_is_named(world: int) -> None:
    said = [
        "2.weight changed on rank 1 between two steps (no write to it was counted)",
        "0.bias changed on rank 0 between two steps (written to by an operation)",
    ]
    assert on_ranks(shards, world) == [said] * world


def hybrid(rank: int, world: int) -> list[str]:
    """HSDP 2x2: each shard has one twin."""
    model = net()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    fully_shard(model, mesh=mesh)
    named = list(model.named_parameters())
    replicas = find_replicas(named, CPU)
    assert dict(zip(replicas.names, replicas.sets, strict=True))["0.weight"] == ((0, 2), (1, 3))
    assert mismatches(named, replicas) == []
    if rank == 3:
        flip(dict(named)["0.weight"].to_local())
    return [str(one) for one in mismatches(named, replicas)]


@pytest.mark.slow
def test_hybrid_shards_are_compared_with_their_twin() -> None:
    said = ["0.weight: ranks 1, 3 differ; two replicas cannot tell which is right"]
    assert on_ranks(hybrid, 4) == [said] * 4
