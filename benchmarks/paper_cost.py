"""What watching costs on paper: a 7B model on one H200, its state over eight ranks.

    python -m benchmarks.paper_cost [--json]

`passes` declares for each signal of level full what it reads and writes. A kernel takes its
bytes over the bandwidth, but never less than a floor. The share is of the shortest step that the
hardware allows: a real, longer step has a smaller one.
"""

import argparse
import json
import math
from dataclasses import dataclass
from typing import Any

from foreshock.catalog import members

LIMITS = {"unfused_pct": 0.3, "fused_pct": 0.15, "copy_bytes": 16_384}

_USUAL_STEPS = 10
"""What is due more seldom is not in the usual copy."""

ASSUMPTIONS = (
    "Llama-7B: 6.74e9 parameters in 291 tensors, 32 layers, width 4096, 32 heads, context 4096",
    "16,384 tokens a step on the one GPU; bf16 activations, 128,256 logits each",
    "fp32 gradients, master weights and moments, sharded over 8 ranks",
    "the step is 6 * parameters * tokens plus causal attention at 790 TFLOP/s, no idle time; "
    "memory at 4.3 TB/s; nothing overlaps",
    "gradient norms are the clip's own pass, which the plain loop makes too",
    "a sample is 256 runs of 16 fp32 neighbours a tensor, read from the tensor and written to a "
    "buffer; what is made of it reads the buffer",
    "what is due every ten steps counts a tenth; its values are in that step's copy",
    "a kernel takes at least 3 microseconds, and they queue without gaps (our choice: a small "
    "kernel's duration; launching is hidden as long as the host runs ahead); if_floor_adds has "
    "the floor on top of each kernel's bytes",
    "foreach operations take one kernel for 100 tensors (our choice: about what torch packs)",
    "fused: one kernel reads each tensor once, and samples of the update and norms of the weights "
    "are taken inside the optimizer's kernel; such kernels are not written yet",
    "every parameter is sharded, so that no replicas are compared",
    "norms and samples travel by parameter tensor, as measured; upper attention bounds by head, "
    "lower ones by layer; what is due every hundred steps or less is not in the usual copy",
    "the collective over ranks is not counted; the host's own work, detectors and storage, runs "
    "beside the device and is not in the share",
)


@dataclass(frozen=True, kw_only=True)
class Run:
    """The model, its step and the hardware."""

    parameters: float = 6.74e9
    tensors: int = 291
    layers: int = 32
    width: int = 4096
    heads: int = 32
    context: int = 4096
    tokens: int = 16_384
    vocab: int = 128_256
    ranks: int = 8
    flops_per_sec: float = 790e12
    bytes_per_sec: float = 4.3e12
    kernel_secs: float = 3e-6

    @property
    def step_secs(self) -> float:
        """The shortest step: matrix products and causal attention, forward and backward."""
        products = 6 * self.parameters * self.tokens
        attention = 6 * self.layers * self.width * self.context * self.tokens
        return (products + attention) / self.flops_per_sec

    @property
    def state_bytes(self) -> float:
        """One fp32 tensor of each parameter's shape, this rank's shard."""
        return 4 * self.parameters / self.ranks

    @property
    def sample_bytes(self) -> float:
        """A sample of every tensor, fp32."""
        return 4 * 256 * 16 * self.tensors

    @property
    def block_bytes(self) -> float:
        """Every block's output, bf16."""
        return 2 * self.tokens * self.width * self.layers

    @property
    def logit_bytes(self) -> float:
        """The logits of all tokens, bf16."""
        return 2 * self.tokens * self.vocab

    @property
    def lse_bytes(self) -> float:
        """The log-sum-exp of every layer, head and token, fp32."""
        return 4 * self.tokens * self.heads * self.layers

    @property
    def foreach_kernels(self) -> int:
        """Kernels of one foreach operation over all tensors."""
        return math.ceil(self.tensors / 100)


@dataclass(frozen=True, kw_only=True)
class Pass:
    """What a signal costs: bytes moved and kernels launched, as it is and fused; its values.

    Bytes and kernels are those of an average step. `values` is how many fp32 numbers of it
    are in the step's one copy when it is due, which is every `every` steps.
    """

    signal: str
    what: str
    unfused_bytes: float = 0.0
    fused_bytes: float = 0.0
    unfused_kernels: float = 0
    fused_kernels: float = 0
    values: int = 0
    every: int = 1


def passes(run: Run) -> list[Pass]:
    """The table: every signal of level full, with its own interval."""
    each, sample = run.foreach_kernels, run.sample_bytes
    return [
        Pass(
            signal="gradients",
            what="the clip's own pass, joined by group",
            unfused_kernels=4,
            fused_kernels=2,
            values=run.tensors + 1,
        ),
        Pass(
            signal="grad_extremes",
            what="sample of the gradients; its largest magnitudes",
            unfused_bytes=3 * sample,
            fused_bytes=sample,
            unfused_kernels=each + 4,
            fused_kernels=each,
            values=run.tensors,
        ),
        Pass(
            signal="precision",
            what="the same sample, compared with Adam's epsilon",
            unfused_bytes=2 * sample,
            unfused_kernels=4,
            values=2,
        ),
        Pass(
            signal="update_ratio",
            what="sample of the weights before and after; difference, two norms",
            unfused_bytes=9 * sample,
            fused_bytes=2 * sample,
            unfused_kernels=2 * each + 8,
            fused_kernels=each,
            values=2 * run.tensors,
        ),
        Pass(
            signal="moments",
            what="samples of both moments; their norms, and g^2 / v",
            unfused_bytes=10 * sample,
            fused_bytes=2 * sample,
            unfused_kernels=2 * each + 12,
            fused_kernels=each,
            values=3 * run.tensors + 2,
        ),
        Pass(
            signal="param_norm",
            what="one read of this rank's weights, every ten steps; fused: in the optimizer's",
            unfused_bytes=run.state_bytes / 10,
            unfused_kernels=2 * each / 10,
            values=run.tensors,
        ),
        Pass(
            signal="activations",
            what="block outputs read once, an eighth again for the magnitude; fused: once",
            unfused_bytes=(1 + 1 / 8) * run.block_bytes,
            fused_bytes=run.block_bytes,
            unfused_kernels=3 * run.layers,
            fused_kernels=run.layers,
            values=3 * run.layers + 3,
        ),
        Pass(
            signal="activation_norm",
            what="what enters the last norm, read once; fused: the last block's",
            unfused_bytes=run.block_bytes / run.layers,
            unfused_kernels=2,
            values=2,
        ),
        Pass(
            signal="output_logits",
            what="an eighth of the rows read four times; fused: once",
            unfused_bytes=4 / 8 * run.logit_bytes,
            fused_bytes=1 / 8 * run.logit_bytes,
            unfused_kernels=8,
            fused_kernels=1,
            values=5,
        ),
        Pass(
            signal="attention_logits",
            what="the saved log-sum-exp read for the upper and the lower bound; fused: once",
            unfused_bytes=2 * run.lse_bytes,
            fused_bytes=run.lse_bytes,
            unfused_kernels=4 * run.layers,
            fused_kernels=run.layers,
            values=run.layers * run.heads + run.layers,
        ),
        Pass(
            signal="optimizer_state",
            what="both moments read in full, every 100 steps",
            unfused_bytes=2 * run.state_bytes / 100,
            fused_bytes=2 * run.state_bytes / 100,
            unfused_kernels=4 * each / 100,
            fused_kernels=2 * each / 100,
            values=2 * run.tensors,
            every=100,
        ),
        Pass(
            signal="state_digest",
            what="weights and moments read in full, some six times unfused, every 1,000 steps",
            unfused_bytes=6 * 3 * run.state_bytes / 1000,
            fused_bytes=3 * run.state_bytes / 1000,
            unfused_kernels=20 * run.tensors / 1000,
            fused_kernels=3 * each / 1000,
            values=16,
            every=1000,
        ),
        Pass(
            signal="sealed_shards",
            what="this rank's weights digested after every 100th step and before the next update",
            unfused_bytes=2 * 6 * run.state_bytes / 100,
            fused_bytes=2 * run.state_bytes / 100,
            unfused_kernels=2 * 8 * run.tensors / 100,
            fused_kernels=2 * each / 100,
            values=2,
        ),
        Pass(signal="rank_spread", what="a scalar", unfused_kernels=1, values=1),
        Pass(signal="loss", what="a scalar", unfused_kernels=2, values=1),
        Pass(signal="schedule", what="scalars", unfused_kernels=2, values=2),
        Pass(
            signal="the one copy",
            what="verdict and values packed, and sent to the host without waiting",
            unfused_kernels=2,
            fused_kernels=2,
            values=1,
        ),
    ]


def secs(run: Run, moved: float, kernels: int, *, floor_adds: bool = False) -> float:
    """Seconds of `kernels` kernels that move so many bytes between them.

    Each takes the longer of its share of the bytes and the floor; with `floor_adds` their sum.
    """
    if not kernels:
        return 0.0
    streaming = moved / run.bytes_per_sec / kernels
    one = streaming + run.kernel_secs if floor_adds else max(streaming, run.kernel_secs)
    return kernels * one


def result(run: Run) -> dict[str, Any]:
    """Shares of the step, bytes of the copy, and whether the limits are held."""
    table = passes(run)

    def share(one: Pass, kind: str, *, floor_adds: bool = False) -> float:
        moved, kernels = getattr(one, f"{kind}_bytes"), getattr(one, f"{kind}_kernels")
        return 100 * secs(run, moved, kernels, floor_adds=floor_adds) / run.step_secs

    kinds = ("unfused", "fused")
    rows = {
        one.signal: {
            "what": one.what,
            "values": one.values,
            "every_steps": one.every,
            **{f"{kind}_pct": round(share(one, kind), 5) for kind in kinds},
        }
        for one in table
    }
    totals: dict[str, Any] = {
        f"{kind}_pct": round(sum(share(one, kind) for one in table), 4) for kind in kinds
    }
    totals["copy_bytes"] = 4 * sum(one.values for one in table if one.every <= _USUAL_STEPS)
    held = {key: totals[key] <= limit for key, limit in LIMITS.items()}
    if_floor_adds = {
        f"{kind}_pct": round(sum(share(one, kind, floor_adds=True) for one in table), 4)
        for kind in kinds
    }
    return {
        "step_ms": round(1e3 * run.step_secs, 1),
        **totals,
        "largest_copy_bytes": 4 * sum(one.values for one in table),
        "limits": LIMITS,
        "held": held,
        "if_floor_adds": if_floor_adds,
        "signals": rows,
        "not_in_the_table": sorted(set(members("signals")) - set(rows)),
        "assumptions": ASSUMPTIONS,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true")
    found = result(Run())
    if parser.parse_args().json:
        print(json.dumps(found, indent=1))
        return
    print(f"a step takes at least {found['step_ms']} ms\n")
    print(f"{'':<20}{'unfused':>10}{'fused':>10}{'values':>8}")
    for signal, row in found["signals"].items():
        print(f"{signal:<20}{row['unfused_pct']:>9.4f}%{row['fused_pct']:>9.4f}%{row['values']:>8}")
    print(f"{'together':<20}{found['unfused_pct']:>9.4f}%{found['fused_pct']:>9.4f}%")
    print(f"\none copy of {found['copy_bytes']:,} bytes a step")
    print(f"{found['largest_copy_bytes']:,} bytes in a step in which every signal is due")
    for key, limit in LIMITS.items():
        print(f"{key} {found[key]} (limit {limit}): {'held' if found['held'][key] else 'NOT HELD'}")
    if found["not_in_the_table"]:
        print("not in the table:", ", ".join(found["not_in_the_table"]))
    adds = found["if_floor_adds"]
    print(f"if the floor adds: unfused {adds['unfused_pct']} %, fused {adds['fused_pct']} %")
    print("\nassumed:", *(f"- {one}" for one in ASSUMPTIONS), sep="\n")


if __name__ == "__main__":
    main()
