"""Which part moved: the embedding's gradient, one part alone, the lower layers."""

import numpy as np
import pytest

from foreshock.symptoms.groups import Groups
from tests.symptoms.cases import PARTS, MadeRun, degrees, found, healthy_with_an_outlier

LOOK = Groups()
SEEDS = pytest.mark.parametrize("seed", range(6))


def told(run: MadeRun, last: int = 110, row: int = 90, **fields: object) -> dict[str, float]:
    return degrees(LOOK, run.case(last, [("loss", row)], **fields))


def with_embedding_share(seed: int, share: float) -> MadeRun:
    run = MadeRun(seed=seed).put("grad_share/embed", share, 92, 96)
    for part in PARTS[1:]:
        run.put(f"grad_share/{part}", (1 - share) / 5, 92, 96)
    return run


@SEEDS
def test_the_embedding_takes_most_of_the_gradient(seed: int) -> None:
    run = with_embedding_share(seed, 0.8)
    assert told(run, row=97)["embedding_gradient_dominates"] == 0, "over before the onset"
    said = found(LOOK, run.case(110, [("loss", 91)]))["embedding_gradient_dominates"]
    assert said.degree == 1
    assert "embed had 80% of the squared gradient norm at step 1093, usually 1" in said.statement


@SEEDS
def test_one_step_alone_may_be_noise(seed: int) -> None:
    run = MadeRun(seed=seed).put("grad_share/embed", 0.9, 92, 93)
    assert told(run)["embedding_gradient_dominates"] == 0


@SEEDS
def test_another_part_that_has_more_is_no_embedding(seed: int) -> None:
    run = with_embedding_share(seed, 0.42).put("grad_share/head", 0.55, 92, 96)
    assert told(run)["embedding_gradient_dominates"] == 0


@SEEDS
def test_an_embedding_that_always_leads_is_usual(seed: int) -> None:
    run = MadeRun(seed=seed)
    rng = np.random.default_rng(seed)
    run.put("grad_share/embed", 0.6 + 0.05 * rng.standard_normal(120))
    assert told(run)["embedding_gradient_dominates"] == 0


def test_an_embedding_of_another_name_is_told_by_facts() -> None:
    run = with_embedding_share(0, 0.8)
    run.rows = {name.replace("/embed", "/inputs"): one for name, one in run.rows.items()}
    assert "embedding_gradient_dominates" not in told(run)
    facts = {"roles": {"inputs": "embedding"}}
    assert told(run, facts=facts)["embedding_gradient_dominates"] == 1


@SEEDS
@pytest.mark.parametrize("signal", ["grad_norm", "update_ratio", "param_norm"])
def test_one_part_alone(seed: int, signal: str) -> None:
    run = MadeRun(seed=seed).times(6, f"{signal}/blocks.0.mlp", first=91)
    run.times(9, *(f"grad_norm/{part}" for part in PARTS), first=94)
    said = found(LOOK, run.case(110, [("loss", 90)]))["one_part_moved"]
    assert said.degree == 1
    assert "1 of 6 parts left their range at step 1091" in said.statement
    assert f"{signal}/blocks.0.mlp" in said.statement


@SEEDS
def test_all_parts_together(seed: int) -> None:
    run = MadeRun(seed=seed).times(6, *(f"grad_norm/{part}" for part in PARTS), first=91)
    assert told(run)["one_part_moved"] == 0


@SEEDS
def test_lower_layers_first(seed: int) -> None:
    parts = [f"update_ratio/blocks.0.{part}" for part in ("attn", "mlp")]
    run = MadeRun(seed=seed).times(2.5, *parts, first=91, stop=97)
    run.times(1.6, "update_ratio", first=91, stop=97)
    said = found(LOOK, run.case(110, [("loss", 90)]))["lower_layers_moved_more"]
    assert said.degree == 1
    upper = [name.replace("blocks.0", "blocks.1") for name in parts]
    run = MadeRun(seed=seed).times(2.5, *upper, first=91).times(1.6, "update_ratio", first=91)
    assert told(run)["lower_layers_moved_more"] == 0
    run = MadeRun(seed=seed).times(2.5, *parts, *upper, "update_ratio", first=91)
    assert told(run)["lower_layers_moved_more"] == 0


@SEEDS
def test_a_healthy_run_with_an_outlier(seed: int) -> None:
    run = healthy_with_an_outlier(seed)
    assert told(run) == {"embedding_gradient_dominates": 0, "lower_layers_moved_more": 0}


def test_what_is_not_measured_is_not_told() -> None:
    assert told(MadeRun().printed(), 119) == {}
    assert told(MadeRun(steps=6), 4, 3) == {}
    run = MadeRun().without("grad_share").times(6, "grad_norm/head", first=91)
    assert set(told(run)) == {"one_part_moved", "lower_layers_moved_more"}


def test_many_groups_and_much_noise_name_no_part() -> None:
    rng = np.random.default_rng(0)
    run = MadeRun(steps=200)
    for layer in range(60):
        run.put(f"grad_norm/blocks.{layer}.norm", rng.lognormal(0, 0.25, 200))
    assert "one_part_moved" not in told(run, 190, 120)
