"""A model that is not watched, or no more, costs nothing, and an eager program compiles nothing."""

import gc
import subprocess
import sys
import weakref

import torch

from foreshock import taps
from foreshock.watching import Watch
from tests.watching.trainings import LENGTH, VOCABULARY, everything, gpt, traces_of

PROGRAM = """
import sys
import torch

assert "torch._dynamo" not in sys.modules, "torch imports it by itself: this test says nothing"
from foreshock.watching import watch
from foreshock.recipes import watching

recipe = watching("full")
assert "torch._dynamo" not in sys.modules, "importing `watch` imports the compiler"
from foreshock.lab.gpt import GPT, GPTConfig

model = GPT(GPTConfig(vocab=17, width=16, depth=2, heads=2, context=12))
optimizer = torch.optim.AdamW(model.parameters())  # imports the compiler by itself, as of 2.13
by_torch = {name for name in sys.modules if name.startswith(("torch._dynamo", "torch._inductor"))}
with watch(model, optimizer, recipe=recipe, with_loss=False) as watched:
    for _ in range(3):
        model(torch.randint(17, (2, 12))).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
now = {name for name in sys.modules if name.startswith(("torch._dynamo", "torch._inductor"))}
assert now == by_torch, sorted(now - by_torch)
if by_torch:
    frames = torch._dynamo.utils.counters["frames"]
    assert not frames, frames
print("ok")
"""


def test_an_eager_program_imports_and_runs_no_compiler_because_of_us() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "ok\n"


def steps(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for _ in range(3):
        model(torch.randint(VOCABULARY, (2, LENGTH))).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_a_closed_watch_is_forgotten_by_everybody() -> None:
    model = gpt()
    optimizer = torch.optim.AdamW(model.parameters())
    optimizer_before = {name: str(value) for name, value in vars(optimizer).items()}
    before, seen_before = traces_of(model), dict(taps._taps)
    watched = Watch(model, optimizer, recipe=everything(), with_loss=False)
    assert traces_of(model) != before and len(taps._taps) > len(seen_before)
    steps(model, optimizer)
    watched.close()
    assert traces_of(model) == before and taps._taps == seen_before
    hooks = [name for name in optimizer_before if "hooks" in name]
    assert hooks
    assert all(str(vars(optimizer)[name]) == optimizer_before[name] for name in hooks)
    assert vars(optimizer).keys() == optimizer_before.keys()
    gone = weakref.ref(watched)
    del watched
    gc.collect()
    assert gone() is None
    steps(model, optimizer)


def test_an_attachment_that_fails_leaves_nothing() -> None:
    """Even after the first signals have put their hooks on."""
    model = gpt()
    optimizer = torch.optim.AdamW(model.parameters())
    before, seen_before = traces_of(model), dict(taps._taps)
    try:
        Watch(model, optimizer, recipe=everything(), run_dir=__file__)
    except Exception as error:
        assert "test_no_traces" in str(error)
    else:
        raise AssertionError("a file was taken for a run directory")
    assert traces_of(model) == before and taps._taps == seen_before
    assert not optimizer._optimizer_step_pre_hooks
