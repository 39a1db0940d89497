"""What watching attention costs: bounds, exact rows, and the full products, side by side.

python -m benchmarks.attention [--json] [--lengths 256 512 1024] [--steps 12]

Direct cost: CPU time inside the hooks and the reading, over CPU time of the plain step of the
same model, interleaved in one process. Full products are what is commonly done: after each
attention, all of QK^T again and its maximum.
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


class FullProducts:
    """After each attention: QK^T again, masked, and its maximum for each head."""

    def __init__(self, modules: list[tuple[str, nn.Module]], clock: Clock) -> None:
        self.found: dict[str, Tensor] = {}
        self.hooks = [
            module.register_forward_hook(clock.around(self.hook(path))) for path, module in modules
        ]

    def hook(self, path: str) -> Callable[..., None]:
        @torch.no_grad()
        def measure(module: nn.Module, args: Any, output: Tensor) -> None:
            node = output.grad_fn
            while not graph.is_fused(node):
                node = node.next_functions[0][0]
            call, _ = graph.read(node)
            logits = call.query @ call.key.mT * call.query.shape[-1] ** -0.5
            future = torch.ones(logits.shape[-2:], dtype=torch.bool).triu_(1)
            self.found[path] = logits.masked_fill_(future, -math.inf).amax((0, 2, 3))

        return measure

    def read(self) -> Tensor:
        return torch.stack(list(self.found.values()))

    def close(self) -> None:
        for hook in self.hooks:
            hook.remove()


class Watched:
    """A tap whose hooks and readings run under the clock."""

    def __init__(self, modules: list[tuple[str, nn.Module]], clock: Clock, exact: int) -> None:
        self.tap = AttentionTap(modules, _CPU, exact_rows=exact)
        self.tap.want_exact = exact > 0
        for (_, module), one in zip(modules, self.tap._taps, strict=True):
            before, after = one._hooks
            module._forward_pre_hooks[before.id] = clock.around(one.enter)
            module._forward_hooks[after.id] = clock.around(one.leave)

    def read(self) -> Tensor:
        taken = self.tap.read_and_reset()
        if self.tap.want_exact:
            self.tap.read_exact()
        return taken

    def close(self) -> None:
        self.tap.close()


class Nothing:
    """Hooks that do nothing, under the clock: what the clock itself costs."""

    def __init__(self, modules: list[tuple[str, nn.Module]], clock: Clock) -> None:
        self.hooks = [
            hook
            for _, module in modules
            for hook in (
                module.register_forward_pre_hook(clock.around(lambda *_: None)),
                module.register_forward_hook(clock.around(lambda *_: None)),
            )
        ]

    def read(self) -> None:
        return None

    def close(self) -> None:
        for hook in self.hooks:
            hook.remove()


def variants() -> dict[str, Callable[[list[tuple[str, nn.Module]], Clock], Any]]:
    return {
        "clock": Nothing,
        "bounds": lambda modules, clock: Watched(modules, clock, 0),
        "exact_rows": lambda modules, clock: Watched(modules, clock, 4),
        "full_products": FullProducts,
    }


def measure(length: int, steps: int, width: int, depth: int, batch: int) -> dict[str, Any]:
    """Direct cost of each variant over the plain step, medians, at one length."""
    torch.manual_seed(0)
    model = GPT(GPTConfig(width=width, heads=width // 64, depth=depth, context=length))
    modules: list[tuple[str, nn.Module]] = [
        (path, one) for path, one in model.named_modules() if isinstance(one, Attention)
    ]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens = torch.randint(0, 256, (batch, length))

    def step() -> None:
        logits = model(tokens)
        nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()

    direct: dict[str, list[float]] = {name: [] for name in variants()}
    step()
    for _ in range(steps):
        start = time.process_time()
        step()
        plain = time.process_time() - start
        for name, build in variants().items():
            clock = Clock()
            watched = build(modules, clock)
            read = clock.around(watched.read)
            for warm in (True, False):
                clock.taken()
                step()
                read()
                if not warm:
                    direct[name].append(clock.taken() / plain)
            watched.close()
    cost = {name: statistics.median(values) for name, values in direct.items()}
    return {
        "length": length,
        "direct_pct": {name: round(100 * value, 4) for name, value in cost.items()},
        "full_over_bounds": round(cost["full_products"] / cost["bounds"], 1),
        "full_over_exact_rows": round(cost["full_products"] / cost["exact_rows"], 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--lengths", type=int, nargs="+", default=[256, 512, 1024])
    parser.add_argument("--steps", type=int, default=8)
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
        "lengths": found,
    }
    if options.json:
        print(json.dumps(result))
        return
    for one in found:
        print(
            f"T={one['length']:<5} full products cost {one['full_over_bounds']} times the bounds; "
            f"of a plain step: {one['direct_pct']} %"
        )


if __name__ == "__main__":
    main()
