"""Faults of the program itself, and of a few samples, on scenes that a caller puts together."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import nn

from foreshock.core.program import Program, Settings
from foreshock.trial import NoResultError
from tests.experiments.runs import healthy, loss_of, outcome_of, program, put_together
from tests.guard.programs import Sentences


def nothing(built: Program) -> None:
    """Leave the state as it is."""


def few_bad(settings: Settings) -> Program:
    return program(settings, bad=Sentences(8, seed=2, poisoned=True))


def test_a_few_bad_samples_are_found() -> None:
    with put_together(nothing, few_bad) as scene:
        result = outcome_of(scene, "bisection", budget=80)
        assert result.outcome == "few_samples"
        assert "p:" in result.statement
        assert "b:" not in result.statement
        assert result.figures["needed"] + result.figures["undecided"] <= 8


def test_a_rate_that_is_too_high_is_cured_by_a_lower_one_and_by_nothing_else() -> None:
    def raised(built: Program) -> None:
        for group in built.optimizer.param_groups:
            group["lr"] *= 15

    with put_together(raised) as scene:
        names = {
            "replay": "comes_back",
            "other_batch": "comes_back",
            "left_out": "comes_back",
            "bisection": "none_needed",
            "fp32_forward": "not_cured",
            "repaired_moments": "not_cured",
        }
        scene.lead.clear()  # the program was another then
        scene.clean = "suspect"
        assert {name: outcome_of(scene, name).outcome for name in names} == names
        assert outcome_of(scene, "lower_rate", factor=0.05).outcome == "cured"
        assert outcome_of(scene, "lower_rate", factor=0.99).outcome == "not_cured"


@pytest.mark.parametrize("kind", ["sum", "mean"])
def test_a_loss_that_depends_on_the_split_is_told_from_one_that_does_not(kind: str) -> None:
    def summed(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return loss_of(model, batch) * (len(batch) if kind == "sum" else 1)

    def made(settings: Settings) -> Program:
        return dataclasses.replace(healthy(settings), loss=summed)

    with put_together(nothing, made) as scene:
        assert outcome_of(scene, "other_split").outcome == {"sum": "differs", "mean": "same"}[kind]


def test_a_kernel_that_computes_something_else_is_found() -> None:
    def faulty(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        fused = torch.backends.cuda.flash_sdp_enabled()
        return loss_of(model, batch) * (1.01 if fused else 1.0)

    def made(settings: Settings) -> Program:
        return dataclasses.replace(healthy(settings), loss=faulty)

    with put_together(nothing, made) as scene:
        assert outcome_of(scene, "eager").outcome == "differs"
        assert torch.backends.cuda.flash_sdp_enabled()


def test_a_model_that_gives_its_loss_cannot_be_asked_for_its_logits() -> None:
    class Whole(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, batch: torch.Tensor) -> torch.Tensor:
            return loss_of(self.inner, batch)

    def made(settings: Settings) -> Program:
        built = few_bad(settings)
        return dataclasses.replace(
            built, model=Whole(built.model), loss=lambda model, batch: model(batch)
        )

    with (
        put_together(nothing, made) as scene,
        pytest.raises(NoResultError, match="not made of what its model gives"),
    ):
        outcome_of(scene, "fp64_loss")


def test_order_and_chance_are_told_from_data() -> None:
    """A trouble that needs two samples in one step, in which they stood, goes with the order."""
    hits: list[Any] = []

    def pair(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        loss = loss_of(model, batch)
        both = _wanted(batch, 0) and _wanted(batch, 1)
        if model.training and both:
            hits.append(1)
            return loss * 400
        return loss

    keys: list[torch.Tensor] = []

    def _wanted(batch: torch.Tensor, place: int) -> bool:
        return bool(keys) and bool((batch == keys[place]).all(dim=1).any())

    def made(settings: Settings) -> Program:
        built = dataclasses.replace(healthy(settings), loss=pair)
        if not keys:
            first = 8 * 141  # of the second step of the window
            keys.extend(built.stream.sample(first + n) for n in range(2))
        return built

    with put_together(nothing, made) as scene:
        assert hits
        assert outcome_of(scene, "replay").outcome == "comes_back"
        assert outcome_of(scene, "reseeded").outcome == "stays_away"


def test_a_lasting_fault_of_the_program_comes_back_on_harmless_data_and_clean_states() -> None:
    """A spike detector takes the new level for healthy after some steps: the level itself counts.

    PaLM's control alone would blame the batches.
    """
    switch = {"on": False}

    def added(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return loss_of(model, batch) + (2.5 if switch["on"] else 0.0)

    def made(settings: Settings) -> Program:
        return dataclasses.replace(healthy(settings), loss=added)

    names = ("earlier_state", "clean_control", "other_batch", "replay", "left_out")
    with put_together(lambda _: switch.update(on=True), made) as scene:
        scene.least = 100  # alarms alone are never enough
        assert {outcome_of(scene, name).outcome for name in names} == {"comes_back"}
        assert outcome_of(scene, "fresh_moments").outcome == "not_cured"
        switch["on"] = False
        found = {name: outcome_of(scene, name).outcome for name in names[:3]}
        assert found == dict.fromkeys(found, "stays_away")


@pytest.mark.parametrize("place", ["data", "weight"])
def test_the_clean_control_is_quiet_where_data_or_state_is_at_fault(place: str) -> None:
    def damaged(built: Program) -> None:
        if place == "weight":
            with torch.no_grad():
                built.model.out.weight[3, 5] = 1e4

    def bad(settings: Settings) -> Program:
        shard = Sentences(160, seed=2, poisoned=True) if place == "data" else None
        return program(settings, bad=shard)

    with put_together(damaged, bad) as scene:
        assert outcome_of(scene, "clean_control").outcome == "stays_away"
        wanted = {"data": "comes_back", "weight": "stays_away"}[place]
        assert outcome_of(scene, "earlier_state").outcome == wanted
        wanted = {"data": "stays_away", "weight": "comes_back"}[place]
        assert outcome_of(scene, "other_batch").outcome == wanted
