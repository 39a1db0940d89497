"""The cost benchmark: time goes to whom it belongs, and looking on changes no training."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from benchmarks import paper_cost
from benchmarks.overhead import peers_env
from benchmarks.overhead.clock import Clock, Spent
from benchmarks.overhead.figures import figures
from benchmarks.overhead.loops import CLIPPING, UPDATE, Loop, shares
from benchmarks.overhead.measure import Measured, Pair, measure
from benchmarks.overhead.monitor import MONITOR, SHARED, Monitor, Plain
from benchmarks.overhead.monitors import all_monitors
from benchmarks.overhead.monitors.composer import Composer
from benchmarks.overhead.monitors.naive import Naive
from benchmarks.overhead.monitors.naive_everything import NaiveEverything
from benchmarks.overhead.ours import ClockMeter, WatchMonitor, exactly
from benchmarks.overhead.training import SIZES, Training
from foreshock.lab import gpt
from foreshock.signals.schedule import ScheduleSignal

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")
TINY = SIZES["tiny"]


class Ticks:
    """A clock that moves by one whenever it is looked at."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def test_time_belongs_to_the_innermost_label():
    clock = Clock(CPU, Ticks())
    clock.begin()  # 1
    clock.enter("training.backward")  # 2
    clock.enter(MONITOR)  # 3
    with clock.part("training.update"):  # 4, 5
        pass
    clock.leave()  # 6
    clock.leave()  # 7
    spent = clock.end()  # 8
    assert spent.whole == 7
    assert spent.parts == {"training.backward": 2, MONITOR: 2, "training.update": 1}
    assert spent.monitor == 2


def test_a_label_is_left_when_its_code_raises():
    clock = Clock(CPU, Ticks())
    clock.begin()

    def fail() -> None:
        raise ValueError

    with pytest.raises(ValueError):
        clock.timed(MONITOR, fail)()
    assert clock.label == ""
    assert clock.end().parts == {MONITOR: 1}


def test_hooks_are_timed_for_the_monitor_that_registered_them_and_for_no_other():
    clock = Clock(CPU, Ticks())
    linear = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(linear.parameters(), lr=0.1)
    register = torch.nn.Module.register_forward_hook
    calls: list[str] = []
    clock.begin()
    with clock.catching_hooks():
        linear.register_forward_hook(lambda *_: calls.append("own"))
        with clock.part("looks on"):
            linear.register_forward_hook(lambda *_: calls.append("forward"))
            linear.register_forward_pre_hook(lambda *_: calls.append("before"))
            linear.weight.register_hook(lambda _: calls.append("gradient"))
            linear.weight.register_post_accumulate_grad_hook(lambda _: calls.append("ready"))
            optimizer.register_step_pre_hook(hook=lambda *_: calls.append("step"))
    assert torch.nn.Module.register_forward_hook is register
    clock.begin()
    linear(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    spent = clock.end()
    assert sorted(calls) == ["before", "forward", "gradient", "own", "ready", "step"]
    assert spent.parts == {"looks on": 5}  # one tick inside each of five hooks


class WatchBesideTheClip(WatchMonitor):
    """`watch` that leaves the clip to the loop: its own rounds in another order."""

    def attach(self, training: Training, folder: Path) -> None:
        super().attach(training, folder)
        self.clips = False


@pytest.mark.parametrize("monitor", [Naive(), NaiveEverything(), WatchBesideTheClip("full")])
def test_looking_on_leaves_the_training_bit_identical(monitor: Monitor, tmp_path: Path):
    weights = []
    for looking_on in (Plain(), monitor):
        training = Training(TINY, CPU, looking_on.optimizer_class())
        loop = Loop(training, looking_on, Clock(CPU), tmp_path)
        attend = gpt.scaled_dot_product_attention
        for _ in range(4):
            loop.step()
        loop.close()
        assert gpt.scaled_dot_product_attention is attend
        weights.append([parameter.detach().clone() for parameter in training.model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*weights, strict=True))


def test_the_naive_monitor_measures_what_it_says(tmp_path: Path):
    training, naive = Training(TINY, CPU), NaiveEverything()
    loop = Loop(training, naive, Clock(CPU), tmp_path)
    name, parameter = "blocks.0.attn.qkv.weight", training.model.blocks[0].attn.qkv.weight
    grads: list[torch.Tensor] = []
    training.optimizer.register_step_pre_hook(lambda *_: grads.append(parameter.grad.clone()))
    before = parameter.detach().clone()
    loop.step()
    values = naive._naive.values
    moved = (parameter.detach() - before).double().norm().item()
    assert values[f"update_norm/{name}"] == pytest.approx(moved, rel=1e-5)
    v = training.optimizer.state[parameter]["exp_avg_sq"].double().norm().item()
    assert values[f"v_norm/{name}"] == pytest.approx(v, rel=1e-5)
    # The optimizer saw the gradient after the clip, the monitor before it.
    norms = [value for key, value in values.items() if key.startswith("grad_norm/")]
    total = sum(norm**2 for norm in norms) ** 0.5
    clipped = values[f"grad_norm/{name}"] / max(1.0, total)
    assert grads[0].norm().item() == pytest.approx(clipped, rel=1e-4)
    assert sum(key.startswith("max_attention_logit/") for key in naive._seen) == TINY.depth
    assert len([key for key in values if key.startswith("num_nan/")]) == len(
        list(training.model.parameters())
    )


def test_a_tiny_run_gives_every_figure(tmp_path: Path):
    class Broken(Monitor):
        name = "broken"

        def before_forward(self) -> None:
            raise RuntimeError("no such thing")

    monitors = [WatchMonitor("full"), WatchMonitor("full", exact=True), Naive(), Broken()]
    measured = measure(TINY, monitors, guard=True, device=CPU, rounds=2, secs=0, folder=tmp_path)
    found = figures(measured)
    assert measured.reasons == {"broken": "failed: RuntimeError: no such thing"}
    assert set(measured.pairs) == {"plain", "full", "exact", "naive", "guard"}
    assert all(len(measured.pairs[name]) == 4 for name in ("full", "exact", "naive", "guard"))
    assert found["full_direct_pct"] > 0
    assert found["exact_direct_pct"] > 0
    assert found["full_net_pct"] is not None
    assert found["ratio_to_naive"] > 0
    assert found["variants"]["full"]["signals"]
    assert found["variants"]["guard"]["detectors"]
    assert found["num_parameters"] == Training(TINY, CPU).num_parameters
    # The Guard's backward and update are the training's: some of both, and not its own.
    guard = measured.pairs["guard"][0].watched
    assert guard.parts["training.backward"] > 0
    assert guard.parts[UPDATE] > 0
    json.dumps(found)


def test_by_signal_the_parts_are_the_signals(tmp_path: Path):
    measured = measure(
        TINY,
        [WatchMonitor("full", by_signal=True)],
        guard=False,
        device=CPU,
        rounds=1,
        secs=0,
        folder=tmp_path,
    )
    parts = figures(measured)["variants"]["full"]["parts_pct"]
    assert {"gradients", "update_ratio", "activation_norm", MONITOR} <= set(parts)
    assert any(label.startswith("detectors") for label in parts)


def pair(monitor: float, shared: float, clip: float) -> Pair:
    """A step of which a monitor spent so much, and the plain one that took 100 seconds."""
    watched = Spent(100 + monitor + shared, {MONITOR: monitor, SHARED: shared, UPDATE: 6.0})
    return Pair(watched, Spent(100, {CLIPPING: clip, UPDATE: 5.0}))


def test_a_shared_clip_counts_only_as_far_as_it_exceeds_the_plain_one():
    def of(one: Pair) -> dict:
        pairs = {"plain": [Pair(one.plain, one.plain)], "full": [one], "guard": [one]}
        pairs["slow"] = [pair(8, 0, 2)]
        return figures(Measured(pairs, {}, {}, 1, {}))

    cheaper, dearer = of(pair(0.4, 1.5, 2)), of(pair(0.4, 3.0, 2))
    assert cheaper["full_direct_pct"] == pytest.approx(0.4)
    assert cheaper["full_direct_with_norms_pct"] == pytest.approx(1.9)
    assert cheaper["full_net_pct"] == pytest.approx(0.4 + 1.5 - 2)
    assert cheaper["ratio_to_slow"] == pytest.approx(20)
    assert dearer["full_direct_pct"] == pytest.approx(1.4)
    assert dearer["guard_update_change_pct"] == pytest.approx(1)


@dataclass(frozen=True, kw_only=True)
class Sampled:
    """A signal that samples, and can look at everything."""

    exactness: str = "sampled"
    exact: bool = False
    interval_steps: int = 10


def test_a_meter_within_the_shared_clip_leaves_its_time_there():
    clock = Clock(CPU, Ticks())
    norms = ClockMeter(clock).wrap("norms", lambda: 7)
    clock.begin()
    with clock.part(SHARED):
        assert norms() == 7
    with clock.part(MONITOR):
        assert norms() == 7
    assert clock.end().parts == {SHARED: 1, MONITOR: 2, "norms": 1}


def test_exact_asks_for_everything_and_says_where_it_cannot():
    assert exactly(Sampled()) == (Sampled(exact=True), "exact=True")
    signal, how = exactly(ScheduleSignal())
    assert (signal, how) == (ScheduleSignal(), "exact")


def test_what_is_measured_every_tenth_step_counts_a_tenth():
    plain = Spent(100, {CLIPPING: 2, UPDATE: 5.0})
    pairs = [Pair(Spent(101, {MONITOR: 1.0}), plain) for _ in range(3)]
    rare = [Pair(Spent(111, {MONITOR: 11.0}), plain, "param_norm")]
    often = {"full": {"": 0.9, "param_norm": 0.1}}
    alike = [Pair(plain, plain)]
    both = figures(Measured({"plain": alike, "full": pairs + rare}, {}, {}, 1, often))
    assert both["full_direct_pct"] == pytest.approx(0.9 * 1 + 0.1 * 11)
    assert "never_due" not in both["variants"]["full"]
    missed = figures(Measured({"plain": alike, "full": pairs}, {}, {}, 1, often))
    assert missed["full_direct_pct"] == pytest.approx(1)
    assert missed["variants"]["full"]["never_due"] == ["param_norm"]


def test_a_kind_of_step_that_was_not_met_counts_as_one_that_measures_more():
    plain = Spent(100, {CLIPPING: 2, UPDATE: 5.0})
    usual = [Pair(Spent(101, {MONITOR: 1.0}), plain)]
    all_due = [Pair(Spent(150, {MONITOR: 50.0}), plain, "digest, norms")]
    often = {"full": {"": 0.9, "norms": 0.09, "digest, norms": 0.01}}
    pairs = {"plain": [Pair(plain, plain)], "full": usual + all_due}
    both = figures(Measured(pairs, {}, {}, 1, often))
    assert both["full_direct_pct"] == pytest.approx(0.9 * 1 + 0.1 * 50)
    assert "never_due" not in both["variants"]["full"]
    pairs["full"] = usual
    alone = figures(Measured(pairs, {}, {}, 1, often))
    assert alone["variants"]["full"]["never_due"] == ["digest, norms", "norms"]


def test_shares_are_those_of_one_period():
    found = shares(lambda step: "rare" if step % 4 == 0 else "", 4)
    assert found == {"": 0.75, "rare": 0.25}


def test_a_tool_that_is_not_installed_is_named_with_the_reason(tmp_path: Path):
    if "mosaicml" in {name.lower() for name in _installed()}:
        pytest.skip("mosaicml is installed here")
    measured = measure(
        TINY, [Composer()], guard=False, device=CPU, rounds=1, secs=0, folder=tmp_path
    )
    assert measured.reasons == {"composer": "not installed here: mosaicml"}
    assert "composer" not in measured.pairs


def _installed() -> set[str]:
    import importlib.metadata  # noqa: PLC0415 - a look at the environment, in one test

    return {found.metadata["Name"] for found in importlib.metadata.distributions()}


def test_every_peer_says_how_it_was_run():
    found = all_monitors()
    assert set(found) == {
        "cockpit",
        "composer",
        "naive",
        "naive_everything",
        "nvdlfw_inspect",
        "wandb_watch",
    }
    assert all(kind.notes for kind in found.values())


def test_the_peers_environment_is_pinned_and_without_torchvision():
    lines = peers_env.CONSTRAINTS.read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if "==" in line)
    own = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    assert f"torch=={pins['torch']}\n" in own
    assert "torchvision<0" in lines
    names = {name.lower().replace("_", "-") for name in pins}
    assert {tool.lower().replace("_", "-") for tool in peers_env.TOOLS + peers_env.NEEDED} <= names


def test_making_an_environment_overwrites_nothing(tmp_path: Path):
    (tmp_path / "kept").write_text("mine", encoding="utf-8")
    with pytest.raises(SystemExit, match="exists already"):
        peers_env.make(tmp_path, None)
    assert (tmp_path / "kept").read_text(encoding="utf-8") == "mine"


def test_paper_agrees_with_figures_computed_by_hand():
    run = paper_cost.Run()
    bandwidth = run.bytes_per_sec
    assert 1e3 * run.step_secs == pytest.approx(906, abs=1)
    assert 1e3 * run.state_bytes / bandwidth == pytest.approx(0.78, abs=0.01)
    assert 1e3 * run.block_bytes / bandwidth == pytest.approx(1.0, abs=0.01)
    assert 1e3 * run.logit_bytes / bandwidth == pytest.approx(0.98, abs=0.01)
    assert 1e3 * 2 * run.lse_bytes / bandwidth == pytest.approx(0.03, abs=0.002)


def test_paper_kernels_have_a_floor_and_nothing_is_free_when_unfused():
    run = paper_cost.Run()
    assert paper_cost.secs(run, 0, 0) == 0
    assert paper_cost.secs(run, 0, 10) == pytest.approx(10 * run.kernel_secs)
    assert paper_cost.secs(run, run.bytes_per_sec, 10) == pytest.approx(1)
    for one in paper_cost.passes(run):
        assert one.unfused_kernels > 0
        assert one.fused_bytes <= one.unfused_bytes
        assert one.fused_kernels > 0 or one.fused_bytes == 0
    found = paper_cost.result(run)
    rows = found["signals"].values()
    usual = [row["values"] for row in rows if row["every_steps"] <= 10]
    assert found["copy_bytes"] == 4 * sum(usual) < found["largest_copy_bytes"]
    assert found["largest_copy_bytes"] == 4 * sum(row["values"] for row in rows)
    assert found["not_in_the_table"] == ["replicas"]
    assert found["if_floor_adds"]["fused_pct"] >= found["fused_pct"]


@pytest.mark.slow
def test_the_command_prints_json_on_stdout_and_progress_on_stderr():
    command = [sys.executable, "-m", "benchmarks.overhead", "--json", "--sizes", "tiny"]
    ran = subprocess.run(
        [*command, "--rounds", "2", "--only", "full,naive,guard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    result = json.loads(ran.stdout)
    assert {"full", "naive", "guard", "plain"} == set(result["sizes"]["tiny"]["variants"])
    assert "round 2" in ran.stderr
