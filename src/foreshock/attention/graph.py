"""Reading a fused kernel's node in the autograd graph, at no cost to the forward pass."""

from collections import deque
from typing import Any

from torch import Tensor

from foreshock.attention.call import Call, local

_MOST_NODES = 256
_NEAR = 4

# The CUDA nodes' names are read from torch's derivatives, not run.
_LOGSUMEXP = ("_saved_logsumexp", "_saved_log_sumexp")
_MASK = ("_saved_attn_mask", "_saved_attn_bias")
_known: dict[type, tuple[str | None, str | None]] = {}

Path = tuple[int, ...]


def _names(node: Any) -> tuple[str | None, str | None]:
    """Names of the saved log-sum-exp and mask of a kind of node; None where it has none."""
    kind = type(node)
    if kind not in _known:
        fused = node.name().startswith("ScaledDotProduct")
        found = [
            next((n for n in names if hasattr(kind, n)), None) for names in (_LOGSUMEXP, _MASK)
        ]
        _known[kind] = (found[0], found[1]) if fused else (None, None)
    return _known[kind]


def is_fused(node: Any) -> bool:
    """Whether a node belongs to an attention kernel that keeps its log-sum-exp."""
    return _names(node)[0] is not None


def fused_node(output: Tensor) -> Any | None:
    """The node of the kernel that `output` came from; a slice of padded channels may follow it."""
    node = output.grad_fn
    for _ in range(_NEAR):
        if node is None or is_fused(node):
            return node
        node = node.next_functions[0][0] if node.next_functions else None
    return None


def first_tensor(output: Any) -> Tensor | None:
    """The first tensor with a graph in what a module returned."""
    if isinstance(output, Tensor):
        return output if output.grad_fn is not None else None
    values = output.values() if isinstance(output, dict) else output
    if not isinstance(output, (tuple, list, dict)):
        return None
    return next((one for one in map(first_tensor, values) if one is not None), None)


def path_to(output: Any, node: Any) -> Path | None:
    """Way from a module's output to `node`, as places in `next_functions`; breadth first."""
    start = first_tensor(output)
    queue: deque[tuple[Any, Path]] = deque([(start.grad_fn, ())] if start is not None else [])
    met = set()
    while queue and len(met) < _MOST_NODES:
        here, path = queue.popleft()
        if here is node:
            return path
        if here is None or here in met:
            continue
        met.add(here)
        queue.extend((one, (*path, place)) for place, (one, _) in enumerate(here.next_functions))
    return None


def follow(node: Any, path: Path) -> Any | None:
    """The node at the end of `path` from `node`, if it is an attention kernel's."""
    for place in path:
        following = () if node is None else node.next_functions
        node = following[place][0] if place < len(following) else None
    return node if node is not None and is_fused(node) else None


def read(node: Any) -> tuple[Call, Tensor]:
    """The call and the log-sum-exp of a fused node.

    Raises:
        RuntimeError: a saved tensor was overwritten in place (backward would fail as well),
            or the graph is already freed.
    """
    logsumexp, mask = _names(node)
    assert logsumexp is not None
    given = getattr(node, mask) if mask is not None else None
    call = Call(
        local(node._saved_query),
        local(node._saved_key),
        None if given is None else local(given),
        bool(node._saved_is_causal),
        node._saved_scale,
    )
    return call, local(getattr(node, logsumexp))


# What every forward calls.
HOT = (_names, is_fused, follow, read, first_tensor, local)
