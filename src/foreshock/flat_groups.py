"""Flat groups of weights of which each rank trains a part, as the Guard sees them.

Optimizers that are sharded by hand (ZeRO) train flat fp32 groups in the place of a model's
weights. Here each group is one DTensor, sharded over the ranks and on the same memory, and so
are its gradient and its moments. What is captured and restored are those; the weights that the
model computes with follow from them.
"""

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from foreshock.core.errors import SnapshotError
from foreshock.ranks.placement import layout_of, own_data, spread


class Groups(Protocol):
    """An optimizer that is sharded by hand.

    Attributes:
        flat: this rank's part `[n]` of each group; a group's parts are of one length.
        setting_of: of each, the place of its settings among the optimizer's `param_groups`.
        members: of each, the weights of the model that it stands for, in their order.
        optimizer: trains the parts: it has the settings, and the state of each.
    """

    flat: Sequence[torch.Tensor]
    setting_of: Sequence[int]
    members: Sequence[Sequence[torch.Tensor]]
    optimizer: torch.optim.Optimizer

    def gradient(self, place: int) -> torch.Tensor:
        """This rank's part `[n]` of a group's gradient, joined over ranks."""
        ...

    def step(self, gradients: Sequence[torch.Tensor]) -> None:
        """Make the update from these, and let the weights follow; collective."""
        ...

    def discard(self) -> None:
        """Forget what was gathered of a step."""
        ...

    def follow(self) -> None:
        """Let the weights that the model computes with follow the parts; collective."""
        ...


class FlatGroups:
    """A model and an optimizer for the Guard in the place of those that were sharded by hand.

    Args:
        module: with the weights that the forward pass computes with.
        groups: what is trained.
    """

    def __init__(self, module: torch.nn.Module, groups: Groups) -> None:
        self._groups = groups
        mesh = init_device_mesh(groups.flat[0].device.type, (dist.get_world_size(),))
        self._parts = [
            torch.nn.Parameter(DTensor.from_local(one.detach(), mesh, [Shard(0)], run_check=False))
            for one in groups.flat
        ]
        self.model = _Model(module, self._parts, groups.members, groups.follow)
        self.optimizer = _Optimizer(groups, self._parts)

    @property
    def took_step(self) -> bool:
        """Whether the update of the present step was made."""
        return self.optimizer.took_step

    def begin_micro_step(self) -> None:
        """A step is being gathered, whose update was not made."""
        self.optimizer.took_step = False

    def take_gradients(self) -> None:
        """Give each group its gradient, once all micro-steps of a step are gathered."""
        for place, part in enumerate(self._parts):
            part.grad = spread(self._groups.gradient(place).to(part.dtype), layout_of(part))

    def follow(self) -> None:
        """Let the model follow, where weights were changed other than by an update; collective."""
        self._groups.follow()


class _Model(torch.nn.Module):
    """The user's module beside the groups; its state is theirs, and of what is not trained."""

    def __init__(
        self,
        module: torch.nn.Module,
        parts: list[torch.nn.Parameter],
        members: Sequence[Sequence[torch.Tensor]],
        follow: Callable[[], None],
    ) -> None:
        super().__init__()
        self.module = module
        self.groups = torch.nn.ParameterList(parts)
        trained = {id(one) for group in members for one in group}
        named = module.named_parameters()
        self._fixed = {f"module.{name}": one for name, one in named if id(one) not in trained}
        self._follow = follow

    def forward(self, *args: Any, **named: Any) -> Any:
        return self.module(*args, **named)

    def state_dict(self, *_args: Any, **_named: Any) -> dict[str, Any]:
        parts = {f"groups.{place}": one.detach() for place, one in enumerate(self.groups)}
        return parts | {name: one.detach() for name, one in self._fixed.items()}

    def load_state_dict(self, state_dict: Mapping[str, Any], *_args: Any, **_named: Any) -> Any:
        now = self.state_dict()
        if now.keys() != state_dict.keys():
            raise SnapshotError("the snapshot holds other groups of weights than are trained")
        with torch.no_grad():
            for name, one in now.items():
                own_data(one).copy_(own_data(state_dict[name]))
        self._follow()


class _View(MutableMapping[str, Any]):
    """A dict with some of its values shown otherwise."""

    def __init__(self, of: dict[str, Any], shown: Callable[[str, Any], Any]) -> None:
        self.of = of
        self._shown = shown

    def __getitem__(self, key: str) -> Any:
        return self._shown(key, self.of[key])

    def __setitem__(self, key: str, value: Any) -> None:
        self.of[key] = value

    def __delitem__(self, key: str) -> None:
        del self.of[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.of)

    def __len__(self) -> int:
        return len(self.of)


class _States(Mapping[torch.Tensor, MutableMapping[str, Any]]):
    """The optimizer's state of each group; what is as long as a part is sharded like it."""

    def __init__(self, groups: Groups, parts: list[torch.nn.Parameter]) -> None:
        self._groups = groups
        self._flat: dict[torch.Tensor, Any] = dict(zip(parts, groups.flat, strict=True))
        self._views: dict[torch.Tensor, _View] = {}
        self._spread: dict[tuple[int, str], tuple[torch.Tensor, torch.Tensor]] = {}

    def __getitem__(self, part: torch.Tensor) -> MutableMapping[str, Any]:
        of = self._groups.optimizer.state.get(self._flat[part])
        if of is None:
            raise KeyError(part)
        view = self._views.get(part)
        if view is None or view.of is not of:
            view = self._views[part] = _View(of, lambda key, value: self._shown(part, key, value))
        return view

    def __iter__(self) -> Iterator[torch.Tensor]:
        held = self._groups.optimizer.state
        return (part for part, flat in self._flat.items() if flat in held)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _shown(self, part: torch.Tensor, key: str, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.shape != self._flat[part].shape:
            return value
        known = self._spread.get((id(part), key))
        if known is None or known[0] is not value:
            known = self._spread[id(part), key] = (value, spread(value, layout_of(part)))
        return known[1]


class _Optimizer(torch.optim.Optimizer):
    """The same settings and state, over the groups."""

    def __init__(self, groups: Groups, parts: list[torch.nn.Parameter]) -> None:
        super().__init__(parts, {})
        self.took_step = True
        self._groups = groups
        self._parts = parts

        def view_of(number: int, setting: dict[str, Any]) -> _View:
            members = [
                part for part, of in zip(parts, groups.setting_of, strict=True) if of == number
            ]
            return _View(setting, lambda key, value: members if key == "params" else value)

        settings = enumerate(groups.optimizer.param_groups)
        self.param_groups: Any = [view_of(number, setting) for number, setting in settings]
        self.state: Any = _States(groups, parts)

    def step(self, closure: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        self._groups.step([own_data(part.grad) for part in self._parts if part.grad is not None])
        self.took_step = True

    def zero_grad(self, set_to_none: bool = True) -> None:
        if not self.took_step:
            self._groups.discard()
        for part in self._parts:
            part.grad = None

    def state_dict(self) -> dict[str, Any]:
        number = {id(part): place for place, part in enumerate(self._parts)}
        return {
            "state": {number[id(part)]: dict(state) for part, state in self.state.items()},
            "param_groups": [
                {**group, "params": [number[id(part)] for part in group["params"]]}
                for group in self.param_groups
            ],
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        held, settings = self._groups.optimizer.state, self._groups.optimizer.param_groups
        with torch.no_grad():
            for place, flat in enumerate(self._groups.flat):
                if (saved := state_dict["state"].get(place)) is None:
                    held.pop(flat, None)
                    continue
                before = held.get(flat, {})
                held[flat] = {
                    name: _into(before.get(name), value, flat) for name, value in saved.items()
                }
            for group, saved in zip(settings, state_dict["param_groups"], strict=True):
                for name in saved.keys() - {"params"}:
                    group[name] = _into(group.get(name), saved[name], None)


def _into(live: Any, saved: Any, like: torch.Tensor | None) -> Any:
    """A saved value, in the live one's memory where it fits, and else where `like` is."""
    if not isinstance(saved, torch.Tensor):
        return saved
    own = own_data(saved)
    if isinstance(live, torch.Tensor) and (live.shape, live.dtype) == (own.shape, own.dtype):
        return live.copy_(own)
    if like is not None and own.shape == like.shape:
        own = own.to(like.device)
    return own.clone()
