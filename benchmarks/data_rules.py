"""What the online data rules cost: per 1,024 bytes, a batch at once against one by one.

python -m benchmarks.data_rules [--json] [--rounds 30] [--width 96]

CPU time of this process, variants interleaved, medians. A step is one of the lab's small GPT
on the same batch, so its ratio is that of a small model: a larger one makes it smaller.
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

from foreshock.catalog import members
from foreshock.core.program import Settings
from foreshock.core.rule import Rule, Sample
from foreshock.data.judging import Judging
from foreshock.driver import build
from foreshock.lab.programs import BATCH_SIZE, CONTEXT, text_program, to_text
from foreshock.rules.non_text_share import NonTextShare
from foreshock.rules.replacement_share import ReplacementShare

_UNIT_BYTES = 1024
_BATCH = 16


def rules() -> dict[str, Rule]:
    """Every rule, as a byte-level model has them."""
    found: dict[str, Rule] = {name: kind() for name, kind in members("rules").items()}
    for kind in (NonTextShare, ReplacementShare):
        found[kind.name] = kind(tokens_are_bytes=True)
    return found


def samples(data: bytes, size: int) -> list[Sample]:
    """A batch of windows of real text."""
    cut = [data[at : at + size] for at in range(0, _BATCH * size, size)]
    tokens = [np.frombuffer(one, np.uint8).astype(np.int64) for one in cut]
    return [Sample(one, to_text(torch.from_numpy(one)), one) for one in tokens]


def cpu_secs(act: Callable[[], object]) -> float:
    begun = time.process_time_ns()
    act()
    return (time.process_time_ns() - begun) / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--width", type=int, default=96)
    options = parser.parse_args()
    torch.set_num_threads(1)
    program = build(text_program, Settings(max_steps=1000, overrides={"width": options.width}))
    order = [program.stream.sample(place) for place in range(9 * BATCH_SIZE)]
    data = b"".join(one.to(torch.uint8).numpy().tobytes() for one in order)
    known = rules()
    acts: dict[str, Callable[[], object]] = {}
    for size in (CONTEXT, _UNIT_BYTES):
        batch = samples(data, size)
        for name, rule in known.items():
            acts[f"{name}/{size}/batch"] = lambda rule=rule, batch=batch: rule.judge_batch(batch)
            acts[f"{name}/{size}/single"] = lambda rule=rule, batch=batch: [
                rule.judge_batch([one]) for one in batch
            ]
    judging = Judging(
        tuple(known.values()), program.stream.order, lambda keys: [order[0]] * len(keys), to_text
    )
    batch = order[:BATCH_SIZE]
    acts["all/step"] = lambda: judging.judge(batch)
    model, optimizer = program.model, program.optimizer

    def step() -> None:
        program.loss(model, torch.stack(batch)).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    acts["step"] = step
    found: dict[str, list[float]] = {name: [] for name in acts}
    for round_number in range(options.rounds + 2):
        for name, act in acts.items():
            spent = cpu_secs(act)
            if round_number > 1:  # the first ones warm up
                found[name].append(spent)
    medians = {name: statistics.median(times) for name, times in found.items()}
    told = {
        "machine": platform.machine(),
        "num_rounds": options.rounds,
        "us_per_1024_bytes": {
            f"{name}/{size}": round(
                medians[f"{name}/{size}/batch"] / _BATCH / size * _UNIT_BYTES * 1e6, 2
            )
            for size in (CONTEXT, _UNIT_BYTES)
            for name in known
        },
        "batch_to_single": {
            f"{name}/{size}": round(
                medians[f"{name}/{size}/batch"] / medians[f"{name}/{size}/single"], 3
            )
            for size in (CONTEXT, _UNIT_BYTES)
            for name in known
        },
        "all_rules_pct_of_step": round(100 * medians["all/step"] / medians["step"], 2),
        "step_is": f"GPT of width {options.width}, {BATCH_SIZE} x {CONTEXT} bytes, one thread",
    }
    if options.json:
        print(json.dumps(told, indent=1))
        return
    for name, value in told.items():
        print(f"{name}: {value}")


if __name__ == "__main__":
    main()
