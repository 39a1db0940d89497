"""Edits and overrides on sharded parameters are those of the whole."""

import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

from foreshock.core.override import Tuning
from foreshock.state_edits import add_noise, reset_moments
from foreshock.update import Update, trained_parameters
from tests.ranks.processes import on_ranks

TUNING = Tuning(embedding_factor=0.1, clips=((0.3, 1.0),), eps_factor=100.0, beta2_most=0.9)


def built() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(11, 6), nn.Linear(6, 5), nn.Linear(5, 11))
    return model.double(), torch.arange(8) % 11


def trained(model: nn.Module, tokens: torch.Tensor) -> tuple[list[torch.Tensor], list[float]]:
    """Three steps with everything that can be ordered, and the norms on the way."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    update = Update(optimizer, trained_parameters(model, optimizer), model=model)
    norms: list[float] = []
    for step in range(3):
        if step == 1:
            add_noise(list(model.parameters()), 0.05, seed=3)
        if step == 2:
            reset_moments(optimizer, list(model.parameters())[:2])
        update.backward(model(tokens).square().sum())
        sizes, norm = update.gradient_sizes()
        used = update.shrink_embeddings(norm, sizes.norms, TUNING)
        norms += [norm.item(), used.item()]
        assert update.commit_or_skip(norm, math.inf, 0.5, TUNING, used)
    whole: list[Any] = list(model.parameters())
    parts = [one.full_tensor() if hasattr(one, "full_tensor") else one for one in whole]
    return [one.detach().clone() for one in parts], norms


def sharded(_rank: int, _world: int) -> tuple[list[torch.Tensor], list[float]]:
    model, tokens = built()
    fully_shard(model[1])
    fully_shard(model)
    return trained(model, tokens)


@pytest.mark.parametrize("world", [2])
def test_shards_are_edited_and_tuned_as_the_whole(world: int) -> None:
    weights, norms = trained(*built())
    for found, found_norms in on_ranks(sharded, world):
        assert found_norms == pytest.approx(norms, rel=1e-6)
        for ours, theirs in zip(found, weights, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
