"""Samples err as little as the docstrings say, and bounds are never above the truth."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from foreshock.core.signal import Exactness
from foreshock.lab.gpt import GPT, GPTConfig
from foreshock.lab.text import load_text
from foreshock.signals.activations import ActivationsSignal
from foreshock.signals.grad_extremes import GradExtremesSignal
from foreshock.signals.loss import LossSignal
from foreshock.signals.moments import MomentsSignal
from foreshock.signals.output_logits import OutputLogitsSignal
from foreshock.signals.precision import PrecisionSignal
from foreshock.signals.update_ratio import UpdateRatioSignal
from tests.signals.recording import Recording

LENGTH, BATCH = 64, 8
OPTIMIZERS = {
    "adam": lambda p: torch.optim.AdamW(p, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-3),
}
SAMPLED = (
    LossSignal(),
    GradExtremesSignal(),
    UpdateRatioSignal(),
    MomentsSignal(),
    ActivationsSignal(),
    OutputLogitsSignal(),
    PrecisionSignal(),
)

# What the docstrings say, for 95 % of values: by series, then by what it is measured of.
# "ends" are embedding and head, each for a vocabulary of up to 256 and of up to 4,096.
SMALL_UPDATE = {"block": 0.04, "ends 256": 0.05, "ends 4096": 0.11, "global": 0.015}
LARGE_UPDATE = {"block": 0.08, "ends 256": 0.18, "ends 4096": 0.65, "global": 0.08,
                "global 4096": 0.35}  # fmt: skip
FIRST = {"block": 0.08, "ends 256": 0.19, "ends 4096": 0.95, "global": 0.16, "global 4096": 0.78}
STATED: Mapping[str, Mapping[str, Mapping[str, float]]] = {
    "adam": {
        "update_norm": SMALL_UPDATE,
        "update_ratio": SMALL_UPDATE,
        "first_moment_norm": FIRST,
        "second_moment_rms": {"block": 0.04, "ends 256": 0.17, "ends 4096": 0.65, "global": 0.16,
                              "global 4096": 0.43},
        "rms_t": {"block": 0.04, "ends 256": 0.08, "ends 4096": 0.36, "global": 0.02,
                  "global 4096": 0.10},
    },
    "sgd": {
        "update_norm": LARGE_UPDATE, "update_ratio": LARGE_UPDATE, "first_moment_norm": FIRST,
    },
    "rmsprop": {
        "update_norm": LARGE_UPDATE,
        "update_ratio": LARGE_UPDATE,
        "second_moment_rms": {"block": 0.04, "ends 256": 0.35, "global": 0.16},
        "rms_t": {"block": 0.08, "ends 256": 0.19, "global": 0.08},
    },
}  # fmt: skip
ABSOLUTE_ZERO_SHARE = 0.01


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def tokens_of(vocabulary: int) -> torch.Tensor:
    """Real text: bytes, or pairs of bytes by their frequency, the rarest as one."""
    raw = np.frombuffer(load_text("english", limit_bytes=400_000, seed=0).train, np.uint8)
    if vocabulary <= 256:
        return torch.from_numpy(raw.astype(np.int64))
    pairs = raw[:-1:2].astype(np.int64) * 256 + raw[1::2]
    known, place, counts = np.unique(pairs, return_inverse=True, return_counts=True)
    rank = np.empty(len(known), np.int64)
    rank[np.argsort(-counts, kind="stable")] = np.arange(len(known))
    return torch.from_numpy(np.minimum(rank, vocabulary - 1)[place])


def run(width: int, vocabulary: int, optimizer: str, *, steps: int, seed: int, every: int = 3):
    """Train; errors of each series (relative; of shares, absolute), and measured over true."""
    tokens, generator = tokens_of(vocabulary), torch.Generator().manual_seed(seed)
    config = GPTConfig(vocab=vocabulary, width=width, depth=2, heads=4, context=LENGTH)
    model = GPT(config, generator)
    model.train()

    def feed() -> torch.Tensor:
        at = torch.randint(len(tokens) - LENGTH - 1, (BATCH,), generator=generator).tolist()
        batch = torch.stack([tokens[one : one + LENGTH + 1] for one in at])
        return F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())

    recording = Recording(model, OPTIMIZERS[optimizer](model.parameters()), feed, signals=SAMPLED)
    groups = recording.groups
    large = {g for path, g in groups.items() if recording.paths[path].numel() > 4096}
    errors: dict[tuple[str, str], list[float]] = defaultdict(list)
    ratios: dict[str, list[float]] = defaultdict(list)
    for step in range(1, steps + 1):
        measured, truth = recording.step(full=step > 2 and step % every == 0)
        if not truth:
            continue
        rows = recording.logits[0].reshape(-1, vocabulary)
        for name, value in measured.items():
            signal, scope = name.split("/")
            true = truth[name]
            if signal in STATED[optimizer]:
                size = " 4096" if vocabulary > 256 else ""
                if scope == "global":
                    kind = (
                        f"global{size}"
                        if f"global{size}" in STATED[optimizer][signal]
                        else "global"
                    )
                elif scope not in large:
                    assert value == pytest.approx(true, rel=1e-5, abs=1e-12), name
                    continue
                elif scope in ("embed", "head"):
                    kind = f"ends{size or ' 256'}"
                else:
                    kind = "block"
                errors[signal, kind].append(value / true - 1)
            elif signal in ("grad_absmax", "activation_absmax", "max_output_logit"):
                assert value <= true * (1 + 1e-6), name
                ratios[signal].append(value / true)
            elif signal == "grad_zero_share":
                errors[signal, "global"].append(value - true)
            elif signal in ("log_z", "output_entropy"):
                spread = _spread(rows)[signal] / math.sqrt(len(rows) / 8)
                errors[signal, "global"].append((value - true) / spread)
    recording.close()
    return errors, ratios


def _spread(rows: np.ndarray) -> dict[str, float]:
    """Standard deviation over rows `[R, V]` of log Z and of the entropy."""
    log_z = np.log(np.exp(rows - rows.max(1, keepdims=True)).sum(1)) + rows.max(1)
    entropy = log_z - (np.exp(rows - log_z[:, None]) * rows).sum(1)
    return {"log_z": float(log_z.std()), "output_entropy": float(entropy.std())}


def check(runs: list[tuple[str, dict[tuple[str, str], list[float]]]]) -> None:
    """Pool what was measured under each optimizer, and hold it against what is stated."""
    pooled: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for optimizer, errors in runs:
        for (signal, kind), found in errors.items():
            pooled[optimizer if signal in STATED[optimizer] else "", signal, kind] += found
    for (optimizer, signal, kind), found in pooled.items():
        if signal == "grad_zero_share":
            stated = ABSOLUTE_ZERO_SHARE
        elif signal in ("log_z", "output_entropy"):
            stated = 2.0
        else:
            stated = STATED[optimizer][signal][kind]
        beyond, count = int(np.sum(np.abs(found) > stated)), len(found)
        assert count >= 8
        # One in twenty, and what chance adds to that at three standard deviations.
        allowed = 0.05 * count + 3 * math.sqrt(0.05 * 0.95 * count)
        at = np.quantile(np.abs(found), 0.95)
        assert beyond <= allowed, (optimizer, signal, kind, stated, beyond, count, at)
        assert max(map(abs, found)) > 0, (signal, kind)  # else nothing was sampled


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_samples_of_a_small_model_err_as_little_as_they_say(optimizer: str, way: str) -> None:
    errors, ratios = run(128, 256, optimizer, steps=26, seed=0)
    check([(optimizer, errors)])
    if way == "fused":  # which take them along
        assert max(abs(one - 1) for one in ratios["grad_absmax"]) < 1e-5
    else:
        assert min(ratios["grad_absmax"]) < 0.9
    assert max(abs(one - 1) for one in ratios["activation_absmax"]) < 1e-5


@pytest.mark.slow
def test_samples_of_many_matrices_err_as_little_as_they_say() -> None:
    """Embedding, qkv, out, up, down and head at widths 96 to 512 and four vocabularies."""
    runs = []
    for width, vocabulary, optimizer, seed in (
        (96, 256, "adam", 1), (192, 256, "adam", 2), (384, 256, "adam", 3), (512, 256, "adam", 4),
        (96, 256, "sgd", 1), (192, 256, "sgd", 2), (384, 256, "sgd", 3), (512, 256, "sgd", 4),
        (192, 256, "rmsprop", 1), (384, 256, "rmsprop", 2),
        (128, 4096, "adam", 1), (384, 4096, "adam", 2), (128, 4096, "sgd", 1),
        (384, 4096, "sgd", 2),
    ):  # fmt: skip
        errors, _ = run(width, vocabulary, optimizer, steps=26, seed=seed, every=5)
        runs.append((optimizer, errors))
    check(runs)


def test_what_is_a_sample_or_a_bound_says_so() -> None:
    told = {signal.name: signal.exactness for signal in SAMPLED}
    assert told == {
        "loss": Exactness.EXACT,
        "grad_extremes": Exactness.BOUND,
        "update_ratio": Exactness.SAMPLED,
        "moments": Exactness.SAMPLED,
        "activations": Exactness.BOUND,
        "output_logits": Exactness.SAMPLED,
        "precision": Exactness.SAMPLED,
    }
    assert GradExtremesSignal(exact=True).exactness is Exactness.EXACT
    assert ActivationsSignal(exact=True).exactness is Exactness.EXACT
    assert OutputLogitsSignal(exact=True).exactness is Exactness.EXACT
