"""Seeing the calls of attention that a module's forward makes, without changing them."""

import math
from types import FunctionType
from typing import Any, Protocol, final

import torch
from torch import Tensor
from torch._higher_order_ops.flex_attention import flex_attention as flex_attention_operator
from torch.nn.functional import multi_head_attention_forward, scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

from foreshock.attention import graph
from foreshock.attention.call import Call, LogSumExpCapture, call_of, saved_tensor_hooks
from foreshock.attention.compiled import attend, record_logsumexp, record_unmeasured

_SOFTMAX = (torch.nn.functional.softmax, torch.softmax, Tensor.softmax, torch.special.softmax)


def _never(*_: Any) -> bool:
    return False


def _multi_head_attention(*args: Any, **kwargs: Any) -> Any:
    """The same code as torch's, which hands itself to a mode as a whole and so hides its calls.

    This copy does not ask for modes, so that its own calls of softmax and attention are seen.
    """
    torchs = multi_head_attention_forward
    names = {**torchs.__globals__, "has_torch_function": _never}
    return FunctionType(torchs.__code__, names, torchs.__name__, torchs.__defaults__)(
        *args, **kwargs
    )


class Sink(Protocol):
    """Takes in what one module's calls of attention give."""

    fused: bool

    def take_logsumexp(self, call: Call, lse: Tensor) -> None:
        """A fused kernel ran and returned this log-sum-exp."""
        ...

    def take_call(self, call: Call) -> None:
        """Attention ran without a fused kernel."""
        ...

    def take_scores(self, scores: Tensor) -> None:
        """Softmax was taken over the last dimension of these."""
        ...


def _last_dimension(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """What softmax is taken of, if it looks like attention: the last of at least three."""
    scores = args[0] if args else kwargs.get("input")
    dim = args[1] if len(args) > 1 else kwargs.get("dim")
    if not isinstance(scores, Tensor) or scores.ndim < 3 or dim not in (-1, scores.ndim - 1):
        return None
    return scores


@final
class Interception(TorchFunctionMode):
    """Active within one module's forward; hands calls of attention to `sink`.

    Attributes:
        row: where a compiled graph records, see `compiled`.
        num_calls: calls of attention seen since `start`.
        node: autograd node of the last fused call, or None.
    """

    def __init__(self, sink: Sink, row: Tensor) -> None:
        super().__init__()
        self.sink, self.row = sink, row
        self.num_calls = 0
        self.node: Any = None

    def start(self) -> None:
        """Forget the calls of the last forward."""
        self.num_calls, self.node = 0, None

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = {} if kwargs is None else kwargs
        if torch.compiler.is_compiling():
            return self._traced(func, args, kwargs)
        if func is scaled_dot_product_attention:
            return self._attention(func, args, kwargs)
        if func in _SOFTMAX:
            scores = _last_dimension(func, args, kwargs)
            if scores is not None:
                self.num_calls += 1
                self.sink.take_scores(scores)
        elif func is multi_head_attention_forward:
            with self:
                return _multi_head_attention(*args, **kwargs)
        return func(*args, **kwargs)

    def _attention(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        self.num_calls += 1
        call = call_of(*args, **kwargs)
        if not self.sink.fused:
            output = func(*args, **kwargs)
            self.sink.take_call(call)
            return output
        with LogSumExpCapture() as capture:
            output = func(*args, **kwargs)
        if capture.logsumexp is None:
            self.sink.take_call(call)
        else:
            self.sink.take_logsumexp(call, capture.logsumexp)
            if saved_tensor_hooks() is None:
                self.node = graph.fused_node(output)
        return output

    def _traced(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The same while a graph is traced: no state but the row, which the graph updates."""
        if func is scaled_dot_product_attention:
            return self._traced_attention(*args, **kwargs)
        result = func(*args, **kwargs)
        if func is flex_attention_operator:
            query, key, options = args[0], args[1], args[6]
            if options["OUTPUT_LOGSUMEXP"]:
                lengths = (query.shape[-2], key.shape[-2])
                record_logsumexp(
                    self.row, result[1].detach(), 2.0, *lengths, causal=False, masked=True
                )
            else:
                record_unmeasured(self.row)
        elif func is multi_head_attention_forward or (
            func in _SOFTMAX and _last_dimension(func, args, kwargs) is not None
        ):
            record_unmeasured(self.row)
        return result

    def _traced_attention(  # noqa: PLR0917 - the order of torch's arguments
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        output, lse = attend(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
        lengths = (query.shape[-2], key.shape[-2])
        masked = attn_mask is not None
        record_logsumexp(self.row, lse, math.e, *lengths, causal=is_causal, masked=masked)
        return output

    # What Python may call as a frame of its own.
    HOT = (__torch_function__, _attention, _traced, _traced_attention)


def remove(mode: TorchFunctionMode) -> None:
    """Take a mode off the stack wherever it lies; an interrupted forward leaves it there."""
    above = []
    for _ in range(torch._C._len_torch_function_stack()):
        top = torch.overrides._pop_mode()
        if top is mode:
            break
        above.append(top)
    for one in reversed(above):
        torch.overrides._push_mode(one)
