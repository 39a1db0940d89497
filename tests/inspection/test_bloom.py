"""A newcomer's test: the best known spike of a public run, as a Megatron log of our making."""

from pathlib import Path

import numpy as np
import pytest

from foreshock.inspection.finding import EpisodeKind, Inspection, RunClass
from foreshock.inspection.inspect import inspect_log
from foreshock.logs import read_log

LOSS = {31214: 2.199, 31215: 2.220, 31216: 2.595, 31217: 2.242, 31218: 2.345, 31219: 5.098,
        31220: 3.49, 31221: 3.21, 31222: 2.80, 31250: 2.216}  # fmt: skip
NORM = {31214: 0.242, 31215: 0.947, 31216: 2.39, 31217: 15.9, 31218: 145.0, 31219: 960.0,
        31220: 353.0, 31221: 379.0, 31222: 650.0, 31250: 0.267}  # fmt: skip


def line(step: int, loss: float, norm: float) -> str:
    return (
        f"[default7]: iteration   {step}/ 115311 | consumed samples:    {step * 2048} | learning "
        f"rate: 5.9E-05 | global batch size:  2048 | lm loss: {loss:.6E} | grad norm: {norm:.3f} "
        "| num zeros: 0.0 | number of skipped iterations:   0 | number of nan iterations:   0 |\n"
    )


def inspected(folder: Path, lines: list[str]) -> Inspection:
    path = folder / "main_log.txt"
    path.write_text("".join(lines))
    return inspect_log(read_log(path))


def check(inspection: Inspection) -> None:
    assert inspection.format == "megatron"
    assert inspection.run_class is RunClass.RECOVERING_SPIKE
    assert inspection.exit_code == 1
    (episode,) = [one for one in inspection.worst.episodes if one.matters]
    assert episode.kind is EpisodeKind.RECOVERING_SPIKE
    assert episode.first_mover == "grad_norm"
    assert (episode.onset_step, episode.peak_step) == (31215, 31219)
    assert (episode.lead_to_loss_move_steps, episode.lead_to_loss_peak_steps) == (1, 4)
    assert episode.end_step is not None
    assert episode.end_step <= 31250
    assert inspection.worst.nan_from_step is None


def test_the_excerpt_alone_is_enough(tmp_path: Path) -> None:
    check(inspected(tmp_path, [line(step, LOSS[step], NORM[step]) for step in LOSS]))


@pytest.mark.parametrize("seed", range(5))
def test_within_a_long_log_live_watching_would_have_alarmed_in_time(
    tmp_path: Path, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    lines = [
        line(step, 2.21 + 0.012 * rng.normal(), 0.2 * np.exp(0.1 * rng.normal()))
        for step in range(30900, 31214)
    ]
    lines += [line(step, LOSS[step], NORM[step]) for step in LOSS if step < 31250]
    decay = range(31223, 31250)
    lines += [
        line(step, 2.21 + 0.5 * np.exp(-(step - 31222) / 6), 0.3 + 300 * np.exp(-(step - 31222)))
        for step in decay
    ]
    lines += [
        line(step, 2.21 + 0.012 * rng.normal(), 0.2 * np.exp(0.1 * rng.normal()))
        for step in range(31250, 31500)
    ]
    inspection = inspected(tmp_path, lines)
    check(inspection)
    episode = next(one for one in inspection.worst.episodes if one.matters)
    assert episode.alarm_step is not None
    assert episode.alarm_step < 31219  # before the loss was at its peak
    assert episode.causal_onset_step is not None
    assert episode.causal_onset_step <= 31216
    assert inspection.worst.diagnosis is not None
