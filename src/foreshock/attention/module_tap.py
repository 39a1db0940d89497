"""One watched attention module: its hooks, and how its forward is seen."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any, final

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo
from torch.utils.hooks import RemovableHandle

from foreshock.attention import compiled, graph, rows
from foreshock.attention.call import Call, is_plain, local, saved_tensor_hooks, unseen
from foreshock.attention.interception import Interception, remove
from foreshock.attention.logsumexp import log_keys, per_row, with_hidden_nan
from foreshock.attention.record import Record

_UNSEEN = (
    "not observed: no forward in training reached it (if it is compiled, watch it before, or "
    "call torch._dynamo.reset() after)"
)
_NO_CALL = "not observed: its forward calls neither attention nor softmax over the last dimension"
_COMPILED = (
    "not observed: inside a compiled graph only fused kernels are, and not where that graph "
    "checkpoints"
)


class _Way(Enum):
    """How the forward that runs now is seen."""

    NOT = 0
    GRAPH = 1
    INTERCEPTED = 2


class _Unwatched:
    """What stands in for a tap in copies and pickles of a watched module: its hooks do nothing."""

    live = False
    enter: Any
    leave: Any
    unwind: Any


def _in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1


def _is_recomputation(hooks: Any) -> bool:
    """Whether these hooks are those with which non-reentrant checkpointing runs a forward again."""
    return getattr(hooks[0], "__qualname__", "").startswith("_recomputation_hook")


@final
class ModuleTap:
    """Hooks on one module; hands what it sees to the record.

    The first forward is intercepted: each torch function that the module calls passes by. If
    that shows one fused kernel, later forwards only follow the same way through the graph from
    the output to its node. Under saved-tensor hooks (checkpointing, offloading) reading the
    graph would recompute or copy back: there every forward is intercepted.
    """

    def __init__(
        self,
        module: nn.Module,
        place: int,
        heads: int | None,
        record: Record,
        *,
        exact_rows: int,
        sampled_rows: int,
    ) -> None:
        self.want_exact = False
        self.fused = True
        self.num_measured = 0
        self._module, self._place, self._heads, self._record = module, place, heads, record
        self._exact_rows, self._sampled_rows = exact_rows, sampled_rows
        self._mode = Interception(self, record.rows[place])
        self._way, self._path = _Way.NOT, None
        self._unwinding: RemovableHandle | None = None
        self._kinds: set[str] = set()
        self._failure: str | None = None
        self._num_entered = 0
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
        if not (self.live and module.training):
            return
        if not torch.compiler.is_compiling():
            if torch.is_grad_enabled():
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
        elif self._way is not _Way.NOT:
            self._end(output)

    @_disable_dynamo
    def unwind(self, module: nn.Module, args: Any, output: Any) -> None:
        """After an intercepted forward, also one that raised (but not an interrupt)."""
        if not self.live:
            return
        self._way = _Way.NOT
        remove(self._mode)
        if output is not None and self._unwinding is not None:
            # torch walks over its hooks after an exception: then this one has to stay.
            self._unwinding.remove()
            self._unwinding = None

    @_disable_dynamo
    def _begin(self, module: nn.Module) -> None:
        if self._way is _Way.INTERCEPTED:  # an interrupt came through the last forward
            remove(self._mode)
        self._way = _Way.NOT
        if module is not self._module or self._failure is not None:
            return
        hooks = saved_tensor_hooks()
        if _in_backward():
            if hooks is not None and (self._measured_before or _is_recomputation(hooks)):
                if self._silent:
                    self._intercept(module)
                return
        else:
            self._measured_before = True
        self._num_entered += 1
        if self._path is not None and hooks is None:
            self._way = _Way.GRAPH
        else:
            self._intercept(module)

    def _intercept(self, module: nn.Module) -> None:
        if self._unwinding is not None:
            self._unwinding.remove()
        self._unwinding = module.register_forward_hook(self.unwind, always_call=True)
        self._way = _Way.INTERCEPTED
        self._mode.start()
        self._mode.__enter__()

    @_disable_dynamo
    def _end(self, output: Any) -> None:
        way, mode = self._way, self._mode
        if way is _Way.GRAPH:
            self._way = _Way.NOT
            node = graph.follow(output, self._path or ())
            if node is None:
                self._path = None  # the module took another way: the next forward is intercepted
            else:
                self._from_graph(node)
            return
        self._silent = mode.num_calls == 0
        if mode.num_calls == 1 and mode.node is not None:
            self._path = graph.path_to(output, mode.node)
        mode.node = None

    def _from_graph(self, node: Any) -> None:
        try:
            call, lse = graph.read(node)
        except RuntimeError as error:
            self._fail(error)
            return
        self.take_logsumexp(call, lse)

    def take_logsumexp(self, call: Call, lse: Tensor) -> None:
        """A fused kernel ran; `lse` as the kernel gives it."""
        with self._measuring("log-sum-exp", call.query) as begun:
            if not begun:
                return
            call, lse = _localised(call), local(lse).detach()
            num_rows, num_keys = call.query.shape[-2], call.key.shape[-2]
            lse = with_hidden_nan(per_row(lse, num_rows), call)
            keys = log_keys(num_rows, num_keys, call.causal, lse.device)
            masked = call.mask is not None and lse.is_cpu
            self._record.add_logsumexp(self._place, lse, keys, zero_is_masked=masked)
            if self.want_exact:
                self._exact(call, lse)

    def take_call(self, call: Call) -> None:
        """Attention ran without a fused kernel."""
        with self._measuring("sampled", call.query) as begun:
            if not begun:
                return
            self.fused = False
            call = rows.four_dimensional(_localised(call), self._heads)
            logits = rows.sampled_logits(call, self._sampled_rows)
            self._sample(logits, rows.largest(logits), math.inf)

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
            with unseen(tensor.device.type):
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
        return _NO_CALL if self._num_entered else _UNSEEN

    def close(self) -> None:
        """Take the hooks off."""
        for hook in self._hooks:
            hook.remove()
        if self._unwinding is not None:
            self._unwinding.remove()
            self._unwinding = None
        if self._way is _Way.INTERCEPTED:
            remove(self._mode)
            self._way = _Way.NOT


def _localised(call: Call) -> Call:
    """This rank's part of a call."""
    mask = None if call.mask is None else local(call.mask)
    return call._replace(query=local(call.query), key=local(call.key), mask=mask)


# A copied hook is the function below bound to the copy of its tap; a pickled one is looked up.
_Unwatched.enter, _Unwatched.leave = ModuleTap.enter, ModuleTap.leave
_Unwatched.unwind = ModuleTap.unwind
