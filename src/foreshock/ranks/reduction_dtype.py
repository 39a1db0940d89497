"""The dtype in which gradients are really reduced, read off the collectives as they run.

What a configuration says is not what happens: a communication hook compresses, a policy is
overridden by a nested one, a framework reduces in the dtype of its buffers. Here a dispatch
mode sees each collective of one step with its tensors.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_REDUCING = {
    "allreduce_": "all_reduce",
    "allreduce_coalesced_": "all_reduce",
    "reduce_": "reduce",
    "reduce_scatter_": "reduce_scatter",
    "_reduce_scatter_base_": "reduce_scatter",
    "reduce_scatter_tensor_coalesced_": "reduce_scatter",
    "alltoall_": "all_to_all",
    "alltoall_base_": "all_to_all",
    "all_reduce": "all_reduce",
    "all_reduce_": "all_reduce",
    "all_reduce_coalesced": "all_reduce",
    "all_reduce_coalesced_": "all_reduce",
    "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_tensor_out": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "all_to_all_single": "all_to_all",
}
_NAMESPACES = ("c10d", "_c10d_functional", "c10d_functional")


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """What was reduced in one dtype.

    Attributes:
        num_calls: collectives.
        num_bytes: bytes that this rank put in.
    """

    num_calls: int
    num_bytes: int


class ReductionWatch(TorchDispatchMode):
    """Sees the reductions started inside it: `with ReductionWatch() as watch: loss.backward()`.

    For one step on request, since every operation of the step takes a detour through Python.
    The values are not touched. Seen are all reductions that PyTorch starts through its
    dispatcher, from Python or from C++: DDP with and without communication hooks, FSDP2, HSDP,
    DTensor and functional collectives. Not seen are collectives of a compiled graph that was
    compiled before (the first run inside compiles anew or falls back to eager), and those of
    libraries that call NCCL themselves.

    Attributes:
        seen: by collective (`all_reduce`, `reduce_scatter`, `reduce`, `all_to_all`) and dtype
            what was reduced. `all_to_all` is listed since some compress through it.
    """

    def __init__(self, *, floating_only: bool = True) -> None:
        super().__init__()
        self._floating_only = floating_only
        self.seen: dict[str, dict[torch.dtype, Traffic]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func.namespace in _NAMESPACES:
            collective = _REDUCING.get(func._schema.name.split("::")[1])
            if collective is not None:
                self._count(collective, func, args, kwargs or {})
        return func(*args, **(kwargs or {}))

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        """Dtypes in which anything was reduced, by bytes, the most first."""
        total: dict[torch.dtype, int] = {}
        for kinds in self.seen.values():
            for dtype, traffic in kinds.items():
                total[dtype] = total.get(dtype, 0) + traffic.num_bytes
        return tuple(sorted(total, key=lambda dtype: -total[dtype]))

    def __str__(self) -> str:
        if not self.seen:
            return "no reduction was seen"
        return "; ".join(
            f"{collective} in {str(dtype).removeprefix('torch.')}: {traffic.num_calls} calls, "
            f"{traffic.num_bytes} bytes"
            for collective, kinds in self.seen.items()
            for dtype, traffic in kinds.items()
        )

    def _count(self, collective: str, func: Any, args: tuple[Any, ...], kwargs: Any) -> None:
        for dtype, num_bytes in _put_in(func, args, kwargs).items():
            if self._floating_only and not (dtype.is_floating_point or dtype.is_complex):
                continue
            kinds = self.seen.setdefault(collective, {})
            before = kinds.get(dtype, Traffic(num_calls=0, num_bytes=0))
            kinds[dtype] = Traffic(
                num_calls=before.num_calls + 1, num_bytes=before.num_bytes + num_bytes
            )


def _put_in(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[torch.dtype, int]:
    """Bytes that go in, by dtype: the arguments called input or tensors, else the first."""
    names = [argument.name for argument in func._schema.arguments]
    given = dict(zip(names, args, strict=False)) | kwargs
    inputs = next(
        (
            given[name]
            for name in ("input_tensor", "input_tensors", "input", "inputs", "tensors")
            if name in given
        ),
        args[:1],
    )
    found: dict[torch.dtype, int] = {}
    for tensor in tree_leaves(inputs):
        if isinstance(tensor, torch.Tensor):
            found[tensor.dtype] = found.get(tensor.dtype, 0) + tensor.nbytes
    return found
