"""The synthetic comparison: its noise, its faults, its tuning and its scores."""

import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
from rich.console import Console

from benchmarks import synthetic
from benchmarks.peers.fixed_norm import FixedNorm
from benchmarks.peers.kill_loss_spike import KillLossSpike
from benchmarks.peers.lightning_spike import LightningSpike
from benchmarks.peers.peer import Flags, Trace
from benchmarks.synthetic_rules import SCALES, Family, PeerRule, Rule, all_rules
from benchmarks.synthetic_tables import show
from benchmarks.synthetic_traces import (
    FAULT_STEP,
    NUM_STEPS,
    Noise,
    around_median,
    cases,
    clean,
    load_residuals,
)
from foreshock import catalog


@dataclass(frozen=True)
class Above(Rule):
    """Flags a loss above a level: what it does is plain to see."""

    name: str = "above"
    level: float = 0.1

    def scaled(self, factor: float) -> Self:
        return type(self)(level=self.level * factor)

    def prepare(self, loss: Trace, grad_norm: Trace) -> Any:
        return loss - 2.5

    def decide(self, prepared: Any) -> Flags:
        return np.asarray(prepared > self.level)


@pytest.mark.parametrize("kind", synthetic.NOISES)
def test_noise_has_unit_robust_deviation_and_repeats(kind: str):
    noise = Noise(kind)
    for signal in ("loss", "grad_norm"):
        drawn = noise.draw(signal, (4000, 10), np.random.default_rng(1))
        assert 1.4826 * np.median(np.abs(drawn)) == pytest.approx(1, rel=0.03)
        assert (drawn == noise.draw(signal, (4000, 10), np.random.default_rng(1))).all()


def test_real_noise_is_drawn_in_blocks_from_the_residuals(tmp_path: Path):
    residuals = np.random.default_rng(2).standard_normal(700)
    np.save(tmp_path / "a.npy", 3 * residuals[:400])
    np.savetxt(tmp_path / "b.txt", residuals[400:])
    (tmp_path / "notes.md").write_text("not a series")
    np.save(tmp_path / "grad_norm.npy", np.tile([-0.03, 0.03], 60))
    loaded = load_residuals(tmp_path)
    assert len(loaded.loss) == 700
    noise = Noise("real", loaded)
    drawn = noise.draw("loss", (200, 1), np.random.default_rng(3))[:, 0]
    ratios = drawn[1:50] / drawn[0]
    starts = [
        place
        for place in range(651)
        if np.allclose(loaded.loss[place + 1 : place + 50] / loaded.loss[place], ratios)
    ]
    assert len(starts) == 1
    norms = noise.draw("grad_norm", (200, 1), np.random.default_rng(3))
    assert set(np.abs(norms).round(6).ravel()) == {round(1 / 1.4826, 6)}
    grad_norm = clean(noise, 100, [0])[1]
    assert set(grad_norm.round(6).ravel()) == {round(np.exp(sign * 0.03), 6) for sign in (-1, 1)}
    assert "700" in noise.label and "120" in noise.label
    assert Noise("real").label == "AR(1)+t4"


def test_no_residuals_is_said(tmp_path: Path):
    with pytest.raises(SystemExit, match="holds no"):
        load_residuals(tmp_path)


def test_residuals_are_around_the_rolling_median():
    series = np.arange(200.0)
    series[100] += 50
    series[3] = np.nan
    residuals = around_median(series, window=21)
    assert np.flatnonzero(np.abs(residuals) > 10).tolist() == [100 - 1 - 10]
    assert np.median(np.abs(residuals)) < 1


def test_every_case_leaves_the_time_before_it_alone_and_changes_what_follows():
    loss, norm = clean(Noise("gauss"), NUM_STEPS, range(4))
    names = list(cases())
    assert len(names) >= 30
    for case in cases().values():
        changed = loss.copy(), norm.copy()
        case.change(*changed)
        differs = np.zeros(NUM_STEPS, dtype=bool)
        for before, after in zip((loss, norm), changed, strict=True):
            differs |= (before != after).any(axis=1)
        if case.name == "nothing":
            assert not differs.any()
            continue
        places = np.flatnonzero(differs)
        assert places[0] == FAULT_STEP
        last = FAULT_STEP + case.lasts - 1 if case.lasts else NUM_STEPS - 1
        assert places[-1] == last, case.name


def test_half_of_the_clean_runs_fall():
    loss, norm = clean(Noise("gauss"), NUM_STEPS, range(4))
    assert loss[-500:, ::2].mean() == pytest.approx(2.5, abs=0.005)
    assert loss[:50, 1::2].mean() > 3.3
    assert 2.6 < loss[-500:, 1::2].mean() < 2.8
    assert np.median(norm) == pytest.approx(1, abs=0.01)
    assert np.log(norm).std() == pytest.approx(0.1, rel=0.05)


def test_alarms_are_stretches_and_lasting_ones_count_again():
    flags = np.zeros((500, 2), dtype=bool)
    flags[3] = flags[5:9, 0] = True
    assert synthetic.num_alarms(flags) == 3
    flags[100:200, 1] = True
    assert synthetic.num_alarms(flags) == 4
    flags[100:301, 1] = True
    assert synthetic.num_alarms(flags) == 6
    assert synthetic.num_alarms(np.ones((500, 1), dtype=bool)) == 5


@pytest.mark.parametrize("level", [0.01, 0.3])
def test_tuning_ends_at_the_target_from_either_side(level: float):
    calm = clean(Noise("gauss"), 20_000, [0, 2])
    rule = Above(level=level)
    prepared = rule.prepare(*calm)
    factor, reached = synthetic.tune(rule, prepared, 10)
    assert reached
    assert 8 <= synthetic.num_alarms(rule.scaled(factor).decide(prepared)) <= 10
    assert factor * level == pytest.approx(0.02 * 3.5, rel=0.1)  # one in 4,000 of a Gaussian


def test_a_rule_that_cannot_be_tuned_says_so():
    calm = clean(Noise("gauss"), 2000, [0])

    @dataclass(frozen=True)
    class Always(Above):
        name: str = "always"

        def decide(self, prepared: Any) -> Flags:
            return np.ones(prepared.shape, dtype=bool)

    @dataclass(frozen=True)
    class Never(Above):
        name: str = "never"

        def decide(self, prepared: Any) -> Flags:
            return np.zeros(prepared.shape, dtype=bool)

    assert synthetic.tune(Always(), calm[0], 5) == (1.0, False)
    assert not synthetic.tune(Never(), calm[0], 5)[1]


def test_score_counts_within_the_window_and_only_who_was_calm():
    case = cases()["loss x1.2, 1 step"]
    flags = np.zeros((NUM_STEPS, 4), dtype=bool)
    flags[FAULT_STEP + 2, 0] = True
    flags[FAULT_STEP + case.within, 1] = True
    flags[FAULT_STEP - 1 : FAULT_STEP + 1, 2] = True
    flags[FAULT_STEP + 4 : FAULT_STEP + 6, 3] = True
    flags[FAULT_STEP + 100 : FAULT_STEP + 110, 3] = True
    found = synthetic.score(case, flags)
    assert found["rate"] == 0.5
    assert found["rate_flat"] == 0.5
    assert found["delay"] == 3
    assert found["flags_after"] == pytest.approx(10 / 4)


def test_family_scales_every_threshold_by_the_one_factor():
    plain, doubled = Family().detectors(), Family().scaled(2.0)
    assert doubled is not None
    for name, rule in doubled.detectors().items():
        for key, neutral in SCALES.get(name, {}).items():
            moved = getattr(rule, key) - neutral
            assert moved == pytest.approx(2 * (getattr(plain[name], key) - neutral))
    assert plain["spike"] != doubled.detectors()["spike"]
    assert plain["nonfinite"] == doubled.detectors()["nonfinite"]


def test_family_takes_in_every_detector_of_these_signals():
    known = catalog.members("detectors")
    watching = {name for name, kind in known.items() if {"loss", "grad_norm"} & set(kind().watches)}
    assert set(Family().detectors()) == watching - {"plateau"}
    acting = Family(advisory=False).detectors()
    assert acting and not any(rule.advisory for rule in acting.values())


def test_family_flags_are_the_alarms_of_its_detectors_each_in_its_run():
    loss, norm = clean(Noise("gauss"), 1200, range(3))
    loss[700, 1] *= 1.3
    norm[800, 2] *= 9
    loss[900, 0] = np.nan
    loss, norm = loss[:, [0, 1, 2, 1]], norm[:, [0, 1, 2, 2]]
    family = Family()
    flags = family.decide(family.prepare(loss, norm))
    assert flags[900].tolist() == [True, False, False, False]
    assert flags[700].tolist() == [False, True, False, True]
    assert flags[800].tolist() == [False, False, True, True]
    by = family.flags_by_detector(family.prepare(loss, norm))
    assert np.flatnonzero(by["nonfinite"].any(axis=1)).tolist() == [900]
    assert (np.logical_or.reduce(list(by.values())) == flags).all()


def test_runs_are_not_taken_for_scopes_that_are_compared():
    calm, wild = (np.ones((1200, 3)) for _ in range(2))
    wild[600:, 1] = 50.0
    by = Family().flags_by_detector(Family().prepare(calm, wild))
    assert not any(flags[:, [0, 2]].any() for flags in by.values())
    assert not by.get("layer_imbalance", wild < 0).any()
    assert by["median_ratio"][600, 1]


def test_every_rule_takes_part_once_and_knows_the_length_of_the_run():
    rules = all_rules()
    assert list(rules)[:2] == ["foreshock", "foreshock acting"]
    assert len(rules) >= 17
    killer = rules["KillLossSpike"]
    assert isinstance(killer, PeerRule) and isinstance(killer.peer, KillLossSpike)
    assert killer.peer.total_steps == 10_000


def test_comparison_names_where_we_are_worse():
    def rule(rates: dict[str, float], delay: float, *, is_ours: bool) -> dict[str, Any]:
        return {
            "is_ours": is_ours,
            "factor": 1.0,
            "reached": rates["a"] <= 1,
            "columns": {name: {"rate": rate, "delay": delay} for name, rate in rates.items()},
        }

    found = synthetic.compare(
        {
            "foreshock": rule(
                {"nothing": 0.0, "a": 0.85, "b": 0.95, "c": 0.5, "d": 0.0}, 9, is_ours=True
            ),
            "x": rule({"nothing": 0.2, "a": 1.0, "b": 0.3, "c": 0.0, "d": 0.0}, 4, is_ours=False),
            "loud": rule({"nothing": 1.0, "a": 1.1, "b": 1.1}, 0, is_ours=False),
            "y": rule({"nothing": 0.1, "a": 1.0, "b": 1.0, "c": 0.1, "d": 0.08}, 3, is_ours=False),
        }
    )
    assert found["columns_worse_than_best_peer_by_10_percent"] == ["a"]
    assert found["columns_slower_than_best_peer"] == ["b"]
    assert found["columns"]["a"]["best_peer"] == "y"
    assert found["columns"]["c"]["ratio"] == 5
    assert found["not_comparable"] == ["loud"]


def test_quick_run_ends_in_numbers_and_tables_that_fit():
    chosen = {
        name: rule
        for name, rule in all_rules().items()
        if isinstance(rule, Family) or isinstance(rule.peer, LightningSpike | FixedNorm)  # pyright: ignore[reportAttributeAccessIssue]
    }
    heard: list[tuple[int, int, str]] = []
    result = synthetic.run(
        **synthetic.QUICK, rules=chosen, progress=lambda *told: heard.append(told)
    )
    json.dumps(result, allow_nan=False)
    assert heard[-1] == (4, 4, "done")
    assert set(result["overall"]) == set(chosen)
    part = result["noises"]["t3"]
    assert set(part["columns"]) == set(cases())
    assert part["rules"]["Lightning"]["columns"]["NaN loss, 1 step"]["rate"] == 1.0
    assert part["rules"]["Lightning"]["columns"]["NaN norm, 1 step"]["rate"] == 0.0
    ours = part["rules"]["foreshock"]
    assert ours["columns"]["NaN both, 1 step"]["rate"] == 1.0
    assert ours["columns"]["NaN both, 1 step"]["by_detector"]["nonfinite/loss"]["delay"] == 0
    assert ours["score"] > part["rules"]["fixed norm"]["score"]
    screen = io.StringIO()
    show(result, Console(file=screen, width=100))
    lines = screen.getvalue().splitlines()
    assert max(map(len, lines)) <= 100
    assert any("NaN norm, 1 step" in line for line in lines)
