"""What watching attention costs: bounds, exact rows, and the full products, side by side.

python -m benchmarks.attention [--json] [--lengths 256 512 1024] [--steps 9]

Direct cost: CPU time inside the hooks and the reading, over CPU time of the rest of the step,
medians of models that take turns in one process. "clock" is what the clock's own calls cost.
Full products are what is commonly done: after each attention all of QK^T again, masked, and
its maximum.
"""

import argparse
import json
import math
import platform
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from foreshock.attention import graph
from foreshock.attention.tap import AttentionTap
from foreshock.lab.gpt import GPT, Attention, GPTConfig

_CPU = torch.device("cpu")
_EXACT_ROWS = 4

Modules = list[tuple[str, nn.Module]]


class Clock:
    """CPU time spent inside what it wraps."""

    def __init__(self) -> None:
        self.nanoseconds = 0

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.process_time_ns()
            try:
                return function(*args, **kwargs)
            finally:
                self.nanoseconds += time.process_time_ns() - start

        return timed

    def taken(self) -> float:
        seconds, self.nanoseconds = self.nanoseconds / 1e9, 0
        return seconds


def nothing(modules: Modules, clock: Clock) -> Callable[[], Any]:
    """Hooks that do nothing."""
    for _, module in modules:
        module.register_forward_pre_hook(clock.around(lambda *_: None))
        module.register_forward_hook(clock.around(lambda *_: None))
    return lambda: None


def full_products(modules: Modules, clock: Clock) -> Callable[[], Any]:
    """After each attention: QK^T again, masked, and its maximum for each head."""
    found: list[Tensor] = []

    @torch.no_grad()
    def measure(module: nn.Module, args: Any, output: Tensor) -> None:
        node = output.grad_fn
        while not graph.is_fused(node):
            node = node.next_functions[0][0]
        call, _ = graph.read(node)
        logits = call.query @ call.key.mT * call.query.shape[-1] ** -0.5
        future = torch.ones(logits.shape[-2:], dtype=torch.bool).triu_(1)
        found.append(logits.masked_fill_(future, -math.inf).amax((0, 2, 3)))

    def read() -> Tensor:
        taken = torch.stack(found)
        found.clear()
        return taken

    for _, module in modules:
        module.register_forward_hook(clock.around(measure))
    return read


def tapped(exact_rows: int) -> Callable[[Modules, Clock], Callable[[], Any]]:
    """The tap, its hooks under the clock."""

    def attach(modules: Modules, clock: Clock) -> Callable[[], Any]:
        tap = AttentionTap(modules, _CPU, exact_rows=exact_rows)
        tap.want_exact = exact_rows > 0
        for (_, module), one in zip(modules, tap._taps, strict=True):
            before, after = one._hooks
            module._forward_pre_hooks[before.id] = clock.around(one.enter)
            module._forward_hooks[after.id] = clock.around(one.leave)

        def read() -> None:
            tap.read_and_reset()
            if tap.want_exact:
                tap.read_exact()

        return read

    return attach


VARIANTS: dict[str, Callable[[Modules, Clock], Callable[[], Any]]] = {
    "clock": nothing,
    "bounds": tapped(0),
    "exact_rows": tapped(_EXACT_ROWS),
    "full_products": full_products,
}


class Run:
    """A model of its own, and what watches it."""

    def __init__(self, name: str, length: int, width: int, depth: int, batch: int) -> None:
        torch.manual_seed(0)
        heads = max(1, width // 64)
        self.model = GPT(GPTConfig(width=width, heads=heads, depth=depth, context=length))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.tokens = torch.randint(0, 256, (batch, length))
        self.clock = Clock()
        modules: Modules = [
            (path, one) for path, one in self.model.named_modules() if isinstance(one, Attention)
        ]
        self.read = self.clock.around(VARIANTS[name](modules, self.clock))

    def step(self) -> tuple[float, float]:
        """CPU seconds of one step without the measurement, and of the measurement."""
        self.clock.taken()
        start = time.process_time()
        logits = self.model(self.tokens)
        nn.functional.cross_entropy(logits.flatten(0, 1), self.tokens.flatten()).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.read()
        whole, direct = time.process_time() - start, self.clock.taken()
        return whole - direct, direct


def measure(length: int, steps: int, width: int, depth: int, batch: int) -> dict[str, Any]:
    """Direct cost of each variant at one length."""
    runs = {name: Run(name, length, width, depth, batch) for name in VARIANTS}
    for _ in range(2):  # the first forward is intercepted, the second the first of the usual kind
        for run in runs.values():
            run.step()
    seconds = [{name: run.step() for name, run in runs.items()} for _ in range(steps)]
    step = statistics.median(plain for one in seconds for plain, _ in one.values())
    cost = {name: statistics.median(one[name][1] for one in seconds) for name in runs}
    net = max(cost["bounds"] - cost["clock"], 1e-9)
    return {
        "length": length,
        "direct_pct": {name: round(100 * value / step, 4) for name, value in cost.items()},
        "full_over_bounds": round(cost["full_products"] / cost["bounds"], 1),
        "full_over_bounds_net_of_clock": round(cost["full_products"] / net, 1),
        "full_over_exact_rows": round(cost["full_products"] / cost["exact_rows"], 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--lengths", type=int, nargs="+", default=[256, 512, 1024])
    parser.add_argument("--steps", type=int, default=9)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--depth", type=int, default=6)
    parser.add_argument("--batch", type=int, default=4)
    options = parser.parse_args()
    found = [
        measure(length, options.steps, options.width, options.depth, options.batch)
        for length in options.lengths
    ]
    result = {
        "model": {"width": options.width, "depth": options.depth, "batch": options.batch},
        "machine": {"processor": platform.machine(), "threads": torch.get_num_threads()},
        "steps": options.steps,
        "exact_rows": _EXACT_ROWS,
        "lengths": found,
    }
    if options.json:
        print(json.dumps(result))
        return
    for one in found:
        print(
            f"T={one['length']:<5} full products cost {one['full_over_bounds']} times the bounds "
            f"({one['full_over_bounds_net_of_clock']} net of the clock); "
            f"of the rest of a step: {one['direct_pct']} %"
        )


if __name__ == "__main__":
    main()
