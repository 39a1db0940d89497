"""Our versions of the peers' rules: known answers, and flag for flag against the tools.

The tools are no dependency of this project; where one is missing, its comparison is left out.
To run all of them, install them next to the project and test with that interpreter:

    python -m venv peers && peers/bin/pip install --no-deps trainspotter zclip losslint
    peers/bin/pip install trainscope lightning ai2-olmo-core "torch==2.13.0"
    peers/bin/pip install --no-deps llm-foundry atorch
    peers/bin/pip install -e . pytest && peers/bin/pytest tests/benchmarks/test_peers.py
"""

import importlib.util
import math
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.peers import all_peers
from benchmarks.peers.arc_thresholds import ArcThresholds
from benchmarks.peers.atorch_ewma import AtorchEwma
from benchmarks.peers.axolotl_watchdog import AxolotlWatchdog
from benchmarks.peers.cusum_mad import CusumMad
from benchmarks.peers.delayed_mean import DelayedMean
from benchmarks.peers.fixed_norm import FixedNorm
from benchmarks.peers.flagscale import FlagScale
from benchmarks.peers.kill_loss_spike import KillLossSpike
from benchmarks.peers.lightning_spike import LightningSpike
from benchmarks.peers.losslint_spike import LosslintSpike
from benchmarks.peers.megatron_large import MegatronLarge
from benchmarks.peers.metaseq_ewm import MetaseqEwm
from benchmarks.peers.olmo2_spike_score import Olmo2SpikeScore
from benchmarks.peers.olmo_skip_step import OlmoSkipStep
from benchmarks.peers.peer import Peer
from benchmarks.peers.trainspotter_z import TrainspotterZ
from benchmarks.peers.zclip import ZClip

Trace = NDArray[np.float64]


def traces() -> dict[str, tuple[Trace, Trace]]:
    """Pairs of loss and gradient norm on which a rule and its model must agree."""
    random = np.random.default_rng(11)
    steps = np.arange(2500)

    def calm(scale: float = 0.02) -> Trace:
        return 2.5 + scale * random.standard_normal(len(steps))

    def norm() -> Trace:
        return np.exp(0.1 * random.standard_normal(len(steps)))

    found = {name: (calm(), norm()) for name in ("gauss", "gauss again")}
    found["t3"] = (
        2.5 + 0.02 * random.standard_t(3, len(steps)),
        np.exp(0.1 * random.standard_t(3, len(steps))),
    )
    found["t3 wide"] = (
        2.5 + 0.1 * random.standard_t(3, len(steps)),
        np.exp(0.3 * random.standard_t(3, len(steps))),
    )

    def change(name: str, where: slice | int, loss: Any, grad: Any) -> None:
        pair = calm(), norm()
        for trace, how in zip(pair, (loss, grad), strict=True):
            trace[where] = how(trace[where])
        found[name] = pair

    same = np.positive
    change("outlier", 1500, lambda x: 1.2 * x, lambda g: 5 * g)
    change("spike x2.5 of 20", slice(1500, 1520), lambda x: 2.5 * x, lambda g: 20 * g)
    change("spike x1.4 of 5", slice(1500, 1505), lambda x: 1.4 * x, lambda g: 3 * g)
    change("spikes", slice(200, 2400, 97), lambda x: 4 * x, lambda g: 30 * g)
    change("NaN once", 1500, lambda x: np.nan * x, lambda g: np.nan * g)
    change("NaN thrice in the loss", slice(1500, 1503), lambda x: np.nan * x, same)
    change("inf once", 1500, lambda x: np.inf * x, lambda g: np.inf * g)
    change("NaN at the start", slice(3, 5), lambda x: np.nan * x, lambda g: np.nan * g)
    change("NaN for good", slice(1500, None), lambda x: np.nan * x, lambda g: np.nan * g)
    change("shift +0.3", slice(1500, None), lambda x: x + 0.3, lambda g: 2 * g)
    change("shift -0.3", slice(1500, None), lambda x: x - 0.3, lambda g: g / 2)
    change("shift to 14", slice(900, None), lambda x: x + 11.5, lambda g: 12 * g)
    ramp = np.linspace(0, 2, 1000)
    change("ramp", slice(1500, None), lambda x: x + ramp, lambda g: g * (1 + ramp))
    fall = 8 * np.exp(-steps / 60)
    found["start-up"] = calm() + fall, norm() * (1 + fall)
    return found


TRACES = traces()


def _member(package: str, file: str) -> ModuleType:
    """One file of an installed package, without importing what the package needs."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        pytest.skip(f"{package} is not installed")
    where = Path(spec.origin).parent / file
    found = importlib.util.spec_from_file_location(f"_{package}_{where.stem}", where)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def lightning_flags(loss: Trace, _: Trace, folder: Path) -> list[int]:
    spike = pytest.importorskip("lightning.fabric.utilities.spike")
    torch = pytest.importorskip("torch")
    fabric = MagicMock()
    fabric.strategy.reduce_boolean_decision = lambda value, **_: value
    fabric.device = fabric.strategy.root_device = torch.device("cpu")
    rule = spike.SpikeDetection(exclude_batches_path=folder / "skip.json")
    found = []
    for step, value in enumerate(loss):
        try:
            rule.on_train_batch_end(fabric, torch.tensor(value), None, step)
        except spike.TrainingSpikeException:
            found.append(step)
    return found


def trainscope_flags(loss: Trace, _: Trace, __: Path) -> list[int]:
    rule = pytest.importorskip("trainscope.core.detectors.changepoint").ChangePointDetector()
    scores = [rule.update(float(value)) for value in loss]
    return [
        step
        for step, score in enumerate(scores)
        if score is not None and abs(score) >= rule.threshold
    ]


def zclip_flags(_: Trace, grad_norm: Trace, __: Path) -> list[int]:
    zclip = pytest.importorskip("zclip").ZClip()
    torch = pytest.importorskip("torch")
    weight = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    model = torch.nn.Module()
    model.register_parameter("weight", weight)
    zclip.max_grad_norm = None
    found = []
    for step, value in enumerate(grad_norm):
        weight.grad = torch.tensor([value], dtype=torch.float64)
        zclip.step(model)
        if not np.isnan(value) and not abs(weight.grad.item()) >= value * (1 - 1e-9):
            found.append(step)
    return found


def trainspotter_flags(loss: Trace, grad_norm: Trace, _: Path) -> list[int]:
    tool = pytest.importorskip("trainspotter.detectors.base")
    far = np.abs(tool.robust_zscore(loss, 21)) > 6
    return np.flatnonzero(far | (tool.robust_zscore(grad_norm, 21) > 10)).tolist()


def olmo_flags(loss: Trace, grad_norm: Trace, _: Path) -> list[int]:
    torch = pytest.importorskip("torch")
    olmo = pytest.importorskip("olmo_core.optim.skip_step_optimizer")
    rule = olmo.SkipStepOptimizer([torch.nn.Parameter(torch.zeros(1))], {})
    found = []
    for step, (value, norm) in enumerate(zip(loss, grad_norm, strict=True)):
        rule.latest_loss = torch.tensor(value, dtype=torch.float64)
        rule.latest_grad_norm = torch.tensor(norm, dtype=torch.float64)
        if not bool(rule.get_step_factor()):
            found.append(step)
    return found


def delayed_flags(_: Trace, grad_norm: Trace, __: Path) -> list[int]:
    rule = _member("llmfoundry", "optim/outlier_detection.py").OutlierDetector()
    return [step for step, value in enumerate(grad_norm) if rule.insert_observation(float(value))]


def atorch_flags(_: Trace, grad_norm: Trace, __: Path) -> list[int]:
    torch = pytest.importorskip("torch")
    tool = _member("atorch", "local_sgd/utils/anomaly_detection.py")
    rule = tool.OnlineDynamicEWMA(warmup_steps=120)
    found = []
    for step, value in enumerate(grad_norm):
        norm = torch.tensor(value, dtype=torch.float64)
        if rule.is_outlier(norm):
            found.append(step)
        else:
            rule.update(norm)
    return found


def foundry_flags(loss: Trace, _: Trace, __: Path) -> list[int]:
    """With stand-ins for the parts of `composer` that the file imports; it needs torchvision."""
    torch = pytest.importorskip("torch")

    rank = SimpleNamespace(get_global_rank=lambda: 0, get_local_rank=lambda: 0)
    contents: dict[str, dict[str, Any]] = {
        "composer": {},
        "composer.core": {
            "Callback": object,
            "State": object,
            "TimeUnit": SimpleNamespace(BATCH="ba", EPOCH="ep", TOKEN="tok", SAMPLE="sp"),
        },
        "composer.loggers": {"Logger": object, "MosaicMLLogger": type(None)},
        "composer.utils": {"dist": rank},
        "llmfoundry": {},
        "llmfoundry.utils": {},
        "llmfoundry.utils.exceptions": {"HighLossError": Exception, "LossSpikeError": Exception},
        "llmfoundry.utils.warnings": {"experimental_class": lambda _: lambda kind: kind},
    }
    with pytest.MonkeyPatch.context() as patch:
        file = importlib.util.find_spec("llmfoundry")
        if file is None:
            pytest.skip("llmfoundry is not installed")
        for name, attributes in contents.items():
            module = ModuleType(name)
            vars(module).update(attributes)
            if name == "llmfoundry":
                module.__spec__ = file
            patch.setitem(sys.modules, name, module)
        tool = _member("llmfoundry", "callbacks/kill_loss_spike_callback.py")
        found: list[int] = []

        class Watching(tool.KillLossSpike):
            def _handle_loss_spike(self, *_: Any) -> None:
                found.append(step)

            def _handle_high_losses(self, *_: Any) -> None:
                found.append(step)

        rule = Watching()
        for step, value in enumerate(loss):
            state = SimpleNamespace(
                loss=torch.tensor(value),
                timestamp=SimpleNamespace(batch=step + 1, token=0, sample=0, epoch=0),
                max_duration=SimpleNamespace(unit="ba", value=len(loss)),
                dataloader_len=len(loss),
            )
            rule.batch_end(state, SimpleNamespace(destinations=[]))
    return sorted(set(found))


# Flags a step per 1,000 under Gaussian and under t3 noise, and hits of ten seeds of: one loss
# x1.2; one gradient norm x5; loss +0.3 for good; loss +2.0 over 500 steps; one NaN in both.
SANITY: dict[Peer, tuple[float, float, int, int, int, int, int]] = {
    OlmoSkipStep(): (0, 2.5, 10, 10, 10, 0, 10),
    CusumMad(): (0, 6.3, 10, 0, 10, 10, 0),
    LightningSpike(): (0, 0, 0, 0, 0, 0, 10),
    FlagScale(): (0, 1.3, 5, 0, 0, 0, 0),
    ZClip(): (8.4, 22, 0, 10, 0, 10, 0),
    KillLossSpike(): (0, 0, 0, 0, 0, 0, 0),
    TrainspotterZ(grad_share=math.inf): (0.3, 8.9, 10, 0, 10, 0, 0),
    AtorchEwma(): (1.4, 12, 0, 10, 0, 10, 0),
    MegatronLarge(): (0, 0, 0, 0, 0, 0, 0),
}
WATCHES_NORM_ONLY = (ZClip, AtorchEwma)


@pytest.mark.parametrize("rule", SANITY, ids=lambda rule: rule.name)
def test_hits_and_false_alarms_are_as_measured_on_the_tool(rule: Peer):
    *false_alarms, outlier, norm, shift, drift, nan = SANITY[rule]
    random = np.random.default_rng(5)
    shape = (1000, 60)
    for expected, noise in zip(
        false_alarms, (random.standard_normal, lambda size: random.standard_t(3, size)), strict=True
    ):
        flags = rule.flags(2.5 + 0.02 * noise(shape), 1 + 0.1 * noise(shape))
        if isinstance(rule, FlagScale) and expected:
            continue  # one low loss that it accepts locks it up: the number is that of the draw
        assert flags.mean() * 1000 == pytest.approx(expected, rel=0.35, abs=0.35)

    def hits(within: int, change: Callable[[Trace, Trace], None]) -> int:
        loss = 2.5 + 0.02 * random.standard_normal((1600, 10))
        grad_norm = 1 + 0.05 * random.standard_normal((1600, 10))
        change(loss, grad_norm)
        return int(rule.flags(loss, grad_norm)[1000 : 1000 + within].any(axis=0).sum())

    def jump(loss: Trace, _: Trace) -> None:
        loss[1000] *= 1.2

    def burst(_: Trace, grad_norm: Trace) -> None:
        grad_norm[1000] *= 5

    def step_up(loss: Trace, _: Trace) -> None:
        loss[1000:] += 0.3

    def ramp(loss: Trace, _: Trace) -> None:
        loss[1000:] += np.minimum(np.arange(600) / 500, 1)[:, None] * 2

    def poison(loss: Trace, grad_norm: Trace) -> None:
        loss[1000] = grad_norm[1000] = np.nan

    even = isinstance(rule, FlagScale)  # x1.2 is right at its limit: 8 there, 5 on average
    assert abs(hits(1, jump) - outlier) <= (4 if even else 1)
    assert abs(hits(1, burst) - norm) <= 1
    if not isinstance(rule, WATCHES_NORM_ONLY):
        assert abs(hits(3, step_up) - shift) <= 1
        assert abs(hits(500, ramp) - drift) <= 1
    assert hits(1, poison) == nan


def test_olmo_skips_128_good_steps_after_a_nan():
    assert OlmoSkipStep().flags(*TRACES["NaN once"]).sum() == 129


def test_cusum_meets_the_drift_after_about_thirteen_steps():
    random = np.random.default_rng(6)
    loss = 2.5 + 0.02 * random.standard_normal((1600, 20))
    loss[1000:] += np.minimum(np.arange(600) / 500, 1)[:, None] * 2
    assert np.median(CusumMad().flags(loss, loss)[1000:].argmax(axis=0)) == pytest.approx(13, abs=3)


@pytest.mark.parametrize(
    ("rule", "loss", "grad_norm", "flagged"),
    [
        (FlagScale(), [2.0, 2.3, 2.9, 2.7, np.inf, 2.8, np.nan, 9.0, 12.0], None, [2, 4, 8]),
        (MetaseqEwm(), [2.0, 2.4, 2.7, 2.7, 2.4], None, [2, 3]),
        (AxolotlWatchdog(), [6.0, 6.0, 6.0, 6.0, np.nan, 6.0, 6.0, 4.0], None, [2, 3]),
        (FixedNorm(), None, [1.0, 3.0, 2.9, np.nan], [1, 3]),
        (MegatronLarge(samples=2), [1.0, np.nan, 1.5, 14.9, 15.0, np.inf], None, [4]),
        (MegatronLarge(samples=2), None, [1.0, 2.0, 20.0], [2]),
        (Olmo2SpikeScore(window=4), [2.0, 2.2, 2.0, 2.2, 2.81, 2.1], None, [4]),
        (ArcThresholds(calibration=6), [2.0] * 5 + [25.0] + [2.0] * 3 + [np.nan], None, [5, 9]),
        (LosslintSpike(half=2), [1.0, 1.0, 1.0, 11.0, 1.0, 1.0, 1.0, 1.0], None, [5]),
        (DelayedMean(delay=2), None, [1.0, 1.0, 1.0, 1.0, 8.0, 1.0, 8.0, 34.0], [4, 7]),
    ],
    ids=lambda value: value.name if isinstance(value, Peer) else "",
)
def test_known_answers(rule: Peer, loss: Any, grad_norm: Any, flagged: list[int]):
    calm = np.ones(len(loss or grad_norm))
    found = rule.flags(
        calm if loss is None else np.array(loss), calm if grad_norm is None else np.array(grad_norm)
    )
    assert np.flatnonzero(found).tolist() == flagged


@pytest.mark.parametrize("rule", all_peers().values(), ids=lambda rule: rule.name)
def test_runs_do_not_see_each_other_or_the_future(rule: Peer):
    names = ["t3 wide", "spikes", "NaN once", "shift +0.3"]
    loss = np.stack([TRACES[name][0] for name in names], axis=1)
    grad_norm = np.stack([TRACES[name][1] for name in names], axis=1)
    together = rule.flags(loss, grad_norm)
    for place, name in enumerate(names):
        assert (rule.flags(*TRACES[name]) == together[:, place]).all()
    if isinstance(rule, KillLossSpike):
        rule = KillLossSpike(total_steps=2500)
    if not isinstance(rule, LosslintSpike):  # what it still waits for, it gives up at the end
        assert (rule.flags(loss[:1510], grad_norm[:1510]) == together[:1510]).all()


@pytest.mark.parametrize("rule", all_peers().values(), ids=lambda rule: rule.name)
def test_a_trace_may_be_short_or_all_nan(rule: Peer):
    for length in (1, 2, 11, 40, 130):
        calm = rule.flags(np.full(length, 2.5), np.full(length, 1.0))
        assert calm.shape == (length,) and not calm.any()
        assert rule.flags(np.full(length, np.nan), np.full(length, np.nan)).shape == (length,)


@pytest.mark.parametrize("rule", all_peers().values(), ids=lambda rule: rule.name)
def test_a_smaller_factor_never_makes_a_rule_deaf(rule: Peer):
    loss, grad_norm = TRACES["t3"]
    assert rule.scaled(1.0) == rule
    keen, dull = rule.scaled(1e-3), rule.scaled(1e3)
    assert keen.flags(loss, grad_norm).sum() > dull.flags(loss, grad_norm).sum()


REAL: dict[type[Peer], Callable[[Trace, Trace, Path], list[int]]] = {
    LightningSpike: lightning_flags,
    CusumMad: trainscope_flags,
    ZClip: zclip_flags,
    TrainspotterZ: trainspotter_flags,
    OlmoSkipStep: olmo_flags,
    DelayedMean: delayed_flags,
    AtorchEwma: atorch_flags,
    KillLossSpike: foundry_flags,
}


@pytest.mark.parametrize("trace", TRACES)
@pytest.mark.parametrize("rule", REAL, ids=lambda rule: rule.name)
def test_flags_are_those_of_the_tool(rule: type[Peer], trace: str, tmp_path: Path):
    loss, grad_norm = TRACES[trace]
    theirs = REAL[rule](loss, grad_norm, tmp_path)
    assert np.flatnonzero(rule().flags(loss, grad_norm)).tolist() == theirs


@pytest.mark.parametrize("trace", TRACES)
def test_losslint_finds_the_same_steps(trace: str):
    checks = pytest.importorskip("losslint.checks")
    parsing = pytest.importorskip("losslint.parsing")
    loss, _ = TRACES[trace]
    for multiple in (10.0, 1.5):
        log = parsing.RunLog(list(range(len(loss))), {"loss": loss.tolist()}, Path("log"))
        found = checks.check_loss_spike(log, checks.CheckOptions(spike_factor=multiple))
        theirs = found[0].details if found else {"steps": [], "count": 0}
        values, median, _ = LosslintSpike().prepare("loss", loss[:, None])
        ours = np.flatnonzero(values > multiple * median).tolist()
        assert ours[: len(theirs["steps"])] == theirs["steps"]
        assert len(ours) == theirs["count"]
