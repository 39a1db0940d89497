"""The demo's figures, and its faults; a whole demo is in the slow tier."""

import json

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from foreshock.cli.main import cli
from foreshock.core.incident import Outcome
from foreshock.lab.demo import Trace, demo_settings, step_around
from foreshock.lab.demo_faults import STEPS, DemoFaults
from foreshock.lab.demo_result import DemoResult, excess_area, incident_json
from foreshock.lab.programs import BATCH_SIZE, POISON_SOURCE, text_program, to_text


def trace(name: str, levels: dict[int, float]) -> Trace:
    return Trace(
        name=name,
        held_out=[(at, at, level) for at, level in levels.items()],
        steps=list(range(1, max(levels) + 1)),
    )


def test_faults_of_a_seed_are_always_the_same_and_differ_between_seeds() -> None:
    drawn = [DemoFaults.draw(seed) for seed in range(20)]
    assert drawn == [DemoFaults.draw(seed) for seed in range(20)]
    assert len({one.poison_step for one in drawn}) > 8
    assert {one.moments.mode for one in drawn} == {"scaled", "zeroed"}
    for one in drawn:
        assert one.poison_step + one.poison_batches < one.moments_step < STEPS


def test_the_poisoned_stage_lies_where_it_was_drawn_and_the_rest_is_clean() -> None:
    faults = DemoFaults.draw(3)
    stream = text_program(demo_settings(faults, 0)).stream
    first, last = faults.poison_step * BATCH_SIZE, faults.poison_batches * BATCH_SIZE
    sources = [stream.order.locate(at).source for at in range(first - 1, first + last + 1)]
    assert set(sources[1:-1]) == {POISON_SOURCE}
    assert POISON_SOURCE not in (sources[0], sources[-1])


def test_the_untouched_twin_steps_around_the_stage_and_sees_all_else_in_order() -> None:
    faults = DemoFaults.draw(0)
    program = text_program(demo_settings(faults, 0))
    step_around(faults, program)
    before = faults.poison_step * BATCH_SIZE
    program.stream.load_state_dict({"position": before - BATCH_SIZE})
    last, first = program.stream.next_batch(), program.stream.next_batch()
    after = before + faults.poison_batches * BATCH_SIZE
    assert last.positions == tuple(range(before - BATCH_SIZE, before))
    assert first.positions == tuple(range(after, after + BATCH_SIZE))
    assert all(one.source != POISON_SOURCE for one in first.ids)


def test_excess_area_counts_only_what_lies_above_the_twin() -> None:
    twin = trace("untouched twin", {5: 2.0, 10: 2.0, 15: 2.0, 20: 2.0})
    run = trace("guarded", {5: 2.0, 10: 3.0, 15: 2.0, 20: 1.0})
    assert excess_area(run, twin) == pytest.approx(5.0)
    assert excess_area(twin, twin) == 0.0
    falling = trace("untouched twin", {5: 3.0, 15: 2.0})
    dense = trace("guarded", {5: 3.0, 6: 4.9, 7: 2.8, 15: 2.0})
    assert excess_area(dense, falling) == pytest.approx(2.0)  # a peak of 2 nats, 2 steps wide


def test_a_demo_passes_only_with_both_causes_in_order_and_verified() -> None:
    def result(*incidents: dict) -> DemoResult:
        return DemoResult(faults=DemoFaults.draw(0), traces={}, incidents=list(incidents))

    data = {"cause": "data_batch", "verified": True, "steps_to_recover": 3}
    state = {"cause": "optimizer_state_corrupt", "verified": True, "steps_to_recover": 4}
    assert result(data, state).passed
    assert not result(state, data).passed
    assert not result(data).passed
    assert not result(data, {**state, "verified": False}).passed
    assert not DemoResult(faults=None, traces={}, incidents=[data]).passed
    assert DemoResult(faults=None, traces={}).passed
    json.dumps(result(data, state).to_json(), allow_nan=False)


@pytest.mark.parametrize(
    ("difference", "digest", "probes", "verified"),
    [
        (0.02, True, True, True),
        (0.04, True, True, False),
        (-0.04, True, True, False),
        (0.0, False, True, False),
        (0.0, True, False, False),
    ],
)
def test_verified_needs_digest_probes_and_the_twin(
    difference: float, digest: bool, probes: bool, verified: bool
) -> None:
    from tests.lab.incidents import recovered_incident  # noqa: PLC0415

    incident, records = recovered_incident(digest_equal=digest, probes_passed=probes)
    levels = dict.fromkeys(range(5, 60, 5), 2.0)
    twin = trace("untouched twin", levels)
    run = trace("guarded", {at: level + difference for at, level in levels.items()})
    found = incident_json(incident, records, run, twin, noise=0.01)
    assert incident.outcome is Outcome.RECOVERED
    assert found["verified"] is verified
    assert found["quarantined_samples"] == 64
    assert found["difference_to_twin"] == pytest.approx(difference)


def test_a_character_cut_at_the_edge_of_a_window_is_no_damage() -> None:
    def text(data: bytes) -> str:
        return to_text(torch.from_numpy(np.frombuffer(data, np.uint8).copy()))

    whole = "naïve — 漢字".encode()
    assert text(whole) == "naïve — 漢字"
    assert text(whole[:-1]) == "naïve — 漢"
    assert text(whole[:-2]) == "naïve — 漢"
    assert "\ufffd" not in text("é".encode()[1:] + b"t")
    assert "\ufffd" in text(b"a\xff\xfeb")


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["--fault-seed", "4"], ["--no-faults", "--seed", "11"]])
def test_a_whole_demo(arguments: list[str], tmp_path) -> None:
    found = CliRunner().invoke(
        cli, ["demo", "--json", "--run-dir", str(tmp_path / "r"), *arguments]
    )
    assert found.exit_code == 0, found.output
    result = json.loads(found.output)
    assert result["passed"]
    if "--no-faults" in arguments:
        assert result["incidents"] == []
        return
    keys = {"cause", "onset_step", "alarm_step", "loss_moved_step", "action", "rolled_back_to"}
    keys |= {"quarantined_samples", "verified", "steps_to_recover"}
    assert all(keys <= set(one) for one in result["incidents"])
    assert [one["cause"] for one in result["incidents"]] == [
        "data_batch",
        "optimizer_state_corrupt",
    ]
    assert result["incidents"][1]["quarantined_samples"] == 0
    assert result["excess_loss_guarded"] < result["excess_loss_unguarded"]


@pytest.mark.slow
def test_data_rules_stop_most_of_the_shard_at_the_door(tmp_path) -> None:
    arguments = ["demo", "--json", "--data-rules", "--run-dir", str(tmp_path / "r")]
    found = CliRunner().invoke(cli, [*arguments, "--fault-seed", "4"])
    assert found.exit_code == 0, found.output
    result = json.loads(found.output)
    faults = DemoFaults.draw(4)
    damaged = faults.poison_batches * BATCH_SIZE * faults.shard.intensity
    assert result["samples_refused_by_rules"] > 0.5 * damaged
