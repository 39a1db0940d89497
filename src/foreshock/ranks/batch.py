"""One rank's micro-batch for all: its structure as JSON, its tensors by broadcast."""

import math
from typing import Any

import torch
import torch.distributed as dist

from foreshock.core.errors import ConfigError, ProgramError
from foreshock.ranks.exchange import Group, exchange, global_ranks, num_ranks, own_index

_DTYPES = {
    str(one).removeprefix("torch."): one
    for one in vars(torch).values()
    if isinstance(one, torch.dtype)
}
_SPECIAL = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def share_batch(batch: Any, device: torch.device, group: Group = None) -> Any:
    """The first rank's batch, on every rank; the other ranks' argument is not looked at.

    Nothing is pickled. Dicts, lists, tuples, dense tensors, None, bool, int, float and str come
    through as such; tensors arrive on `device`.

    Args:
        batch: what the loss function takes, in plain containers.
        device: where the group's backend wants its tensors, and the model its input.
        group: the ranks; all of them must call.

    Raises:
        ConfigError: the first rank's batch holds something else (raised there).
        ProgramError: the same, on the other ranks.
    """
    tensors: list[torch.Tensor] = []
    structure: Any = None
    refusal: ConfigError | None = None
    if own_index(group) == 0:
        try:
            structure = _encode(batch, "batch", tensors)
        except ConfigError as error:
            refusal = error
    told = exchange([structure, None if refusal is None else str(refusal)], device, group)
    structure, reason = told[0]
    if refusal is not None:
        raise refusal
    if reason is not None:
        raise ProgramError(f"the first rank cannot share its batch: {reason}")
    sent = iter(tensors)

    def receive(shape: list[int], dtype: torch.dtype) -> torch.Tensor:
        mine = next(sent, None)
        tensor = torch.empty(shape, dtype=dtype, device=device)
        if mine is not None:
            tensor.copy_(mine)
        if num_ranks(group) > 1 and tensor.numel():
            data = tensor.reshape(-1).view(torch.uint8)  # every backend moves bytes
            dist.broadcast(data, src=global_ranks(group)[0], group=group)
        return tensor

    return _decode(structure, receive)


def _encode(node: Any, path: str, tensors: list[torch.Tensor]) -> Any:
    if isinstance(node, torch.Tensor):
        if node.layout != torch.strided or node.is_nested or type(node) is not torch.Tensor:
            raise ConfigError(
                f"{path} is a {type(node).__name__} of layout {node.layout}; a shared batch holds "
                "plain dense tensors only"
            )
        tensors.append(node.detach())
        return {"t": [list(node.shape), str(node.dtype).removeprefix("torch.")]}
    if node is None or type(node) in (bool, int, str):
        return {"v": node}
    if type(node) is float:
        return {"v": node} if math.isfinite(node) else {"f": str(node)}
    if type(node) in (list, tuple):
        kind = "l" if type(node) is list else "u"
        return {kind: [_encode(one, f"{path}[{i}]", tensors) for i, one in enumerate(node)]}
    if isinstance(node, dict):
        for key in node:
            if type(key) is not str:
                raise ConfigError(f"{path} has the key {key!r}; keys of a shared batch are strings")
        return {"d": {key: _encode(one, f"{path}.{key}", tensors) for key, one in node.items()}}
    raise ConfigError(
        f"{path} is a {type(node).__name__}, which cannot be shared over ranks; give dicts, lists, "
        "tuples, tensors, numbers and strings, and build the rest in the loss function"
    )


def _decode(node: Any, receive: Any) -> Any:
    ((kind, content),) = node.items()
    match kind:
        case "t":
            return receive(content[0], _DTYPES[content[1]])
        case "v":
            return content
        case "f":
            return _SPECIAL[content]
        case "l":
            return [_decode(one, receive) for one in content]
        case "u":
            return tuple(_decode(one, receive) for one in content)
        case "d":
            return {key: _decode(one, receive) for key, one in content.items()}
        case _:
            raise ProgramError(f"a shared batch holds an unknown node {kind!r}")
