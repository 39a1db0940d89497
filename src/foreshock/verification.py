"""Is the model whole? Probes measured, compared, and what to do about what fell."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from foreshock.catalog import members
from foreshock.core.comparison import Comparison, Measured, compare
from foreshock.core.errors import ConfigError, ProgramError
from foreshock.core.language import Scored
from foreshock.core.probe import Probe

if TYPE_CHECKING:
    import torch

__all__ = [
    "Comparison",
    "Measured",
    "compare",
    "data_to_strengthen",
    "measure",
    "score_tokens",
    "shares_exact",
]

_ROWS_AT_ONCE = 16


def measure(model: Any, probes: Sequence[Probe]) -> dict[str, list[float]]:
    """Run the probes on a model without leaving a trace: mode, gradients and RNG are kept.

    Returns:
        The values by capability.

    Raises:
        ConfigError: two probes measure the same capability.
    """
    known = [probe.capability for probe in probes]
    twice = sorted({name for name in known if known.count(name) > 1})
    if twice:
        raise ConfigError(
            f"two probes measure {twice[0]!r}; each capability is measured once: give them "
            "different texts, or names of their own"
        )
    return _looked_at(model, lambda: {one.capability: one.measure(model) for one in probes})


def shares_exact(model: Any, probes: Sequence[Probe]) -> dict[str, float | None]:
    """The second figure of each capability, where it has one; leaves no trace either."""
    return _looked_at(model, lambda: {one.capability: one.exact_share(model) for one in probes})


def score_tokens(model: Any, rows: Sequence[Sequence[int]]) -> list[Scored]:
    """Score rows of token ids on a causal language model.

    Args:
        model: a module that maps int64 `[B, T]` to logits `[B, T, V]`, or to an object whose
            attribute `logits` they are. Rows are padded on the right, where no token of a
            causal model looks.
        rows: token ids, two at least in each.

    Raises:
        ProgramError: what the model returns is not of that kind.
    """
    import torch  # noqa: PLC0415 - comparing works without torch

    device = next((one.device for one in model.parameters()), torch.device("cpu"))
    scored: list[Scored] = []
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        some = rows[start : start + _ROWS_AT_ONCE]
        tokens = torch.zeros(len(some), max(map(len, some)), dtype=torch.int64)
        for place, row in enumerate(some):
            tokens[place, : len(row)] = torch.tensor(row, dtype=torch.int64)
        tokens = tokens.to(device)
        logits = _logits(model(tokens[:, :-1]), tokens.shape[0], tokens.shape[1] - 1)
        wanted = tokens[:, 1:]
        losses = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1).float(), wanted.flatten(), reduction="none"
        )
        per_token = losses.view_as(wanted).double().cpu().numpy()
        hits = (logits.argmax(-1) == wanted).cpu().numpy()
        for place, row in enumerate(some):
            size = len(row) - 1
            scored.append(Scored(per_token[place, :size].copy(), hits[place, :size].copy()))
    return scored


def data_to_strengthen(capabilities: Sequence[str]) -> str:
    """Which data teaches what has fallen, in words.

    >>> data_to_strengthen(["held_out_loss/code", "taste"])
    'code text; data that exercises taste'
    """
    known = members("probes")
    told: list[str] = []
    for capability in capabilities:
        name, _, text = capability.partition("/")
        given: str = known[name].strengthened_by if name in known else ""
        if text and name in known:
            told.append(f"{text} text")
        else:
            told.append(given or f"data that exercises {capability}")
    return "; ".join(dict.fromkeys(told))


def _logits(output: Any, num_rows: int, length: int) -> "torch.Tensor":
    logits = getattr(output, "logits", output)
    shape = tuple(getattr(logits, "shape", ()))
    if len(shape) != 3 or shape[:2] != (num_rows, length):
        raise ProgramError(
            f"the model returned {type(output).__name__} of shape {shape}, not logits of shape "
            f"({num_rows}, {length}, vocabulary): give LanguageModel a score function of your own"
        )
    return logits


def _looked_at(model: Any, look: Callable[[], Any]) -> Any:
    """Look at a model in evaluation mode; its modes and all generators are put back."""
    import torch  # noqa: PLC0415

    from foreshock.snapshots.parts import GlobalRandomPart, clone_tree  # noqa: PLC0415

    modes = [(module, module.training) for module in model.modules()]
    generators = GlobalRandomPart()
    before = clone_tree(generators.capture())
    try:
        model.eval()
        with torch.no_grad():
            return look()
    finally:
        generators.restore(before)
        for module, training in modes:
            module.training = training
