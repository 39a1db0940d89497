"""One watched attention module: its hooks, and how its forward is seen."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, final

import torch
from torch import Tensor, nn
from torch._C._functorch import peek_interpreter_stack
from torch._compile import _disable_dynamo
from torch.utils.hooks import RemovableHandle

from foreshock.attention import compiled, graph, rows
from foreshock.attention.burst import Burst
from foreshock.attention.call import Call, is_plain, local, saved_tensor_hooks
from foreshock.attention.interception import Interception, remove
from foreshock.attention.logsumexp import FEW_KEYS, per_row, with_hidden_nan
from foreshock.attention.record import Record
from foreshock.taps import apart, is_paused

_UNSEEN = (
    "not observed: no forward in training reached it (if it is compiled, watch it before, or "
    "call torch._dynamo.reset() after)"
)
_TRANSFORMED = "not observed: inside a function transform (torch.func: vmap, grad, ...)"
_NO_CALL = "not observed: its forward calls neither attention nor softmax over the last dimension"
_COMPILED = (
    "not observed: inside a compiled graph only scaled_dot_product_attention with a fused kernel "
    "and FlexAttention are, and not in regions that the graph itself checkpoints"
)


class _Unwatched:
    """What stands in for a tap in copies and pickles of a watched module: its hooks do nothing."""

    live = False
    _path = None
    enter: Any
    leave: Any
    unwind: Any


_hooks = torch._C._autograd._top_saved_tensors_default_hooks  # pyright: ignore


def _is_recomputation(hooks: Any) -> bool:
    """Whether these hooks are those with which non-reentrant checkpointing runs a forward again."""
    return getattr(hooks[0], "__qualname__", "").startswith("_recomputation_hook")


@final
class ModuleTap:
    """Hooks on one module; hands what it sees to the record.

    The first forward is intercepted: each torch function that the module calls passes by. If
    that shows one fused kernel, later ones are left alone, and the same way is followed through
    the graph from the output to its node. Under saved-tensor hooks (checkpointing, offloading)
    reading the graph would recompute or copy back: there every forward is intercepted.
    """

    def __init__(
        self,
        module: nn.Module,
        place: int,
        heads: int | None,
        record: Record,
        burst: Burst,
        *,
        exact_rows: int,
        sampled_rows: int,
    ) -> None:
        self.want_exact = False
        self.fused = True
        self.num_measured = 0
        self._module, self._place, self._heads = module, place, heads
        self._record, self._burst = record, burst
        self._exact_rows, self._sampled_rows = exact_rows, sampled_rows
        self._mode = Interception(self, record.rows[place])
        self._intercepted = False
        self._path: graph.Path | None = None
        self._unwinding: RemovableHandle | None = None
        self._kinds: set[str] = set()
        self._failure: str | None = None
        self._num_entered = 0
        self._transformed = False
        # Whether the last forward outside backward had gradients: then one that checkpointing
        # runs again was measured. Reentrant checkpointing runs the first without.
        self._measured_before = False
        # No call was seen: perhaps all of them are in a compiled graph, that belongs to the mode
        # and has to be the same when checkpointing runs it again.
        self._silent = False
        self._hooks = (
            module.register_forward_pre_hook(self.enter),
            module.register_forward_hook(self.leave),
        )

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return (_Unwatched, ())

    live = True

    def enter(self, module: nn.Module, args: Any) -> None:
        """Before the forward."""
        if self._path is not None and not torch.compiler.is_compiling() and not _hooks(True):
            return  # all that has to be done can be done after it
        if not (self.live and module.training):
            return
        if not torch.compiler.is_compiling():
            if is_paused():
                return
            if peek_interpreter_stack() is not None:
                self._transformed = True
            elif torch.is_grad_enabled():
                self._begin(module)
            else:
                self._measured_before = False
        elif not torch.is_grad_enabled():
            return
        elif compiled.in_subgraph():
            compiled.record_unmeasured(self._mode.row)
        else:
            self._mode.__enter__()

    def leave(self, module: nn.Module, args: Any, output: Any) -> None:
        """After the forward, unless it raised."""
        if not self.live:
            return
        if torch.compiler.is_compiling():
            if module.training and torch.is_grad_enabled() and not compiled.in_subgraph():
                self._mode.__exit__(None, None, None)
        elif self._intercepted:
            self._end(output)
        elif (
            self._path is not None
            and module.training
            and module is self._module
            and not _hooks(True)
            and not is_paused()
            and peek_interpreter_stack() is None
        ):
            start = output if type(output) is Tensor else graph.first_tensor(output)
            node = None if start is None else start.grad_fn
            if node is not None:
                self._burst.add(self._place, self._from_graph, node)
            elif torch.is_grad_enabled():
                self._path = None  # frozen since: the next forward is intercepted
            else:
                self._measured_before = False

    @_disable_dynamo
    def unwind(self, module: nn.Module, args: Any, output: Any) -> None:
        """After an intercepted forward, also one that raised (but not an interrupt)."""
        if not self.live:
            return
        self._intercepted, self._mode.node = False, None
        remove(self._mode)
        if output is not None and self._unwinding is not None:
            # torch walks over its hooks after an exception: then this one has to stay.
            self._unwinding.remove()
            self._unwinding = None

    def _begin(self, module: nn.Module) -> None:
        if self._intercepted:  # an interrupt came through the last forward
            remove(self._mode)
        self._intercepted = False
        if module is not self._module or self._failure is not None:
            return
        hooks = saved_tensor_hooks()
        if torch._C._current_graph_task_id() != -1:  # inside backward
            if hooks is not None and (self._measured_before or _is_recomputation(hooks)):
                if self._silent:
                    self._intercept(module)
                return
        else:
            self._measured_before = True
        self._num_entered += 1
        self._intercept(module)

    @_disable_dynamo
    def _intercept(self, module: nn.Module) -> None:
        if self._unwinding is not None:
            self._unwinding.remove()
        self._unwinding = module.register_forward_hook(self.unwind, always_call=True)
        self._intercepted = True
        self._mode.start()
        self._mode.__enter__()

    def _end(self, output: Any) -> None:
        mode = self._mode
        self._silent = mode.num_calls == 0
        if mode.num_calls == 1 and mode.node is not None:
            self._path = graph.path_to(output, mode.node)

    def _from_graph(self, start: Any) -> bool:
        """Keep the log-sum-exp of the node that the way from `start` leads to; False if freed."""
        node = None if self._path is None else graph.follow(start, self._path)
        if node is None:
            self._path = None  # the module took another way: the next forward is intercepted
            return True
        try:
            call, lse = graph.read(node)
        except RuntimeError:
            return False
        (num_rows, num_keys), shape = (call.query.shape[-2], call.key.shape[-2]), lse.shape
        plain = type(lse) is Tensor and len(shape) == 3 and shape[2] == num_rows and lse.numel()
        if self.want_exact or not plain or num_keys < FEW_KEYS:
            self.take_logsumexp(call, lse)
            return True
        masked = call.mask is not None and lse.is_cpu
        self._record.add_logsumexp(
            self._place, lse, num_keys, causal=call.causal, zero_is_masked=masked
        )
        if not self._kinds:
            self._kinds.add("log-sum-exp")
        self.num_measured += 1
        return True

    # What runs in every forward, as it is where dynamo compiles what is around it.
    HOT = (enter, leave, _begin, _end, _from_graph, saved_tensor_hooks, _is_recomputation)

    @_disable_dynamo
    def take_logsumexp(self, call: Call, lse: Tensor) -> None:
        """A fused kernel ran; `lse` as the kernel gives it."""
        with self._measuring("log-sum-exp", call.query) as begun:
            if not begun:
                return
            call, lse = _localised(call), local(lse).detach()
            num_rows, num_keys = call.query.shape[-2], call.key.shape[-2]
            lse = with_hidden_nan(per_row(lse, num_rows), call)
            masked = call.mask is not None and lse.is_cpu
            self._record.add_logsumexp(
                self._place, lse, num_keys, causal=call.causal, zero_is_masked=masked
            )
            if self.want_exact:
                self._exact(call, lse)

    @_disable_dynamo
    def take_call(self, call: Call) -> None:
        """Attention ran without a fused kernel."""
        with self._measuring("sampled", call.query) as begun:
            if not begun:
                return
            self.fused = False
            call = rows.four_dimensional(_localised(call), self._heads)
            logits = rows.sampled_logits(call, self._sampled_rows)
            self._sample(logits, rows.largest(logits), math.inf)

    @_disable_dynamo
    def take_scores(self, scores: Tensor) -> None:
        """Softmax was taken over the last dimension of `[.., T_q, T_k]`."""
        with self._measuring("sampled", scores) as begun:
            if not begun:
                return
            scores = rows.with_heads(local(scores), self._heads)
            logits = scores[:, :, rows.sampled_rows(scores.shape[2], self._sampled_rows)]
            largest = rows.largest(scores if self.want_exact else logits)
            self._sample(logits, largest, -math.inf)

    def _sample(self, logits: Tensor, largest: Tensor, rest: float) -> None:
        self._record.add_sample(self._place, largest)
        if self.want_exact:
            above = torch.full_like(largest, rest)
            self._record.add_exact(self._place, largest, above)
            self._record.add_entropy(self._place, *rows.entropy(logits))

    @contextmanager
    def _measuring(self, kind: str, tensor: Tensor) -> Iterator[bool]:
        """Measure apart from the program, and never break it; False where there is nothing."""
        try:
            with apart(tensor.device.type):
                begun = is_plain(local(tensor)) and tensor.numel() > 0
                yield begun
            if begun:
                self._kinds.add(kind)
                self.num_measured += 1
        except Exception as error:
            self._fail(error)

    def _exact(self, call: Call, lse: Tensor) -> None:
        call = rows.four_dimensional(call, self._heads)
        if self._exact_rows:
            self._record.add_exact(self._place, *rows.exact_rows(call, lse, self._exact_rows))
        logits = rows.sampled_logits(call, self._sampled_rows)
        self._record.add_entropy(self._place, *rows.entropy(logits))

    def _fail(self, error: Exception) -> None:
        """Never break training: measure this module no more, and say why."""
        first = str(error).strip().partition("\n")[0]
        self._path = None
        self._failure = f"not observed: measuring failed with {type(error).__name__}: {first}"

    def status(self) -> str:
        """See `AttentionTap.status`."""
        if self._failure is not None:
            return self._failure
        measured, missed = self._record.num_compiled(self._place)
        if "sampled" in self._kinds:
            return "sampled"
        if self._kinds or measured:
            return "log-sum-exp"
        if missed:
            return _COMPILED
        if self._num_entered:
            return _NO_CALL
        return _TRANSFORMED if self._transformed else _UNSEEN

    def close(self) -> None:
        """Take the hooks off."""
        for hook in self._hooks:
            hook.remove()
        if self._unwinding is not None:
            self._unwinding.remove()
            self._unwinding = None
        if self._intercepted:
            remove(self._mode)
            self._intercepted = False


def _localised(call: Call) -> Call:
    """This rank's part of a call."""
    mask = None if call.mask is None else local(call.mask)
    return call._replace(query=local(call.query), key=local(call.key), mask=mask)


# A copied hook is the function below bound to the copy of its tap; a pickled one is looked up.
_Unwatched.enter, _Unwatched.leave = ModuleTap.enter, ModuleTap.leave
_Unwatched.unwind = ModuleTap.unwind
