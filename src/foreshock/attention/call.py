"""One call of attention, and the kernels that keep its log-sum-exp."""

from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

_KERNELS = frozenset(
    {
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
        torch.ops.aten._scaled_dot_product_flash_attention.default,
        torch.ops.aten._scaled_dot_product_efficient_attention.default,
        torch.ops.aten._scaled_dot_product_cudnn_attention.default,
        torch.ops.aten._scaled_dot_product_fused_attention_overrideable.default,
    }
)


class Call(NamedTuple):
    """What one call of `scaled_dot_product_attention` computed.

    Attributes:
        query: `[B, H, T_q, D]`.
        key: `[B, H_k, T_k, D]`; head h of the query reads key head h // (H / H_k).
        mask: broadcasts to `[B, H, T_q, T_k]`; bool (True takes part), added, or None.
        causal: row i sees keys 0 to i (aligned at the top left, as in torch).
        scale: factor on the products; None is 1 / sqrt(D).
    """

    query: Tensor
    key: Tensor
    mask: Tensor | None = None
    causal: bool = False
    scale: float | None = None


def call_of(  # noqa: PLR0917 - the order of torch's arguments
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Call:
    """Read the arguments of `scaled_dot_product_attention`."""
    return Call(query, key, attn_mask, is_causal, scale)


def saved_tensor_hooks() -> Any | None:
    """The hooks (pack, unpack) that tensors saved for backward pass now, or None."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True)  # pyright: ignore


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a distributed tensor; others as they are."""
    to_local = getattr(tensor, "to_local", None)
    return tensor if to_local is None else to_local()


def is_plain(tensor: Tensor) -> bool:
    """Whether it holds values here: not a fake tensor, nor another subclass."""
    return type(tensor) in (Tensor, nn.Parameter)


@final
class LogSumExpCapture(TorchDispatchMode):
    """Keeps the log-sum-exp that the fused kernel run under it returned.

    Sees the kernel below autograd, so it works without a graph, under saved-tensor hooks
    (where reading the graph would recompute) and while a graph is traced; the call itself
    is not changed.

    Attributes:
        logsumexp: `[B, H, >= T_q]` as the kernel gives it, or None if no fused kernel ran.
    """

    def __init__(self) -> None:
        super().__init__()
        self.logsumexp: Tensor | None = None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in _KERNELS:
            self.logsumexp = result[1]
        return result
