"""A model's modules as a tree in which wrappers are looked through."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy

WRAPPERS = frozenset({"_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module"})
"""Segments of torch.compile, the checkpoint wrapper and FSDP: never a user's own names."""

_ADAPTED = ("base_layer", "original_module")  # PEFT: beside it stand the adapter's own weights


@dataclass(eq=False, slots=True, kw_only=True)
class Node:
    """One module with what wraps it.

    Attributes:
        path: of the outermost wrapper, as `named_modules` gives it.
        plain: the path without wrappers.
        module: the innermost module.
        place: the node's number in the order of `named_modules`.
        end: the number after that of its last descendant.
        own: parameters that the module itself holds.
        size: elements of all parameters in it.
        holds_twice: one of its children stands in it more than once.
    """

    path: str
    plain: str
    module: nn.Module
    place: int
    parent: "Node | None"
    end: int = 0
    children: list["Node"] = field(default_factory=list["Node"])
    own: list[tuple[str, nn.Parameter]] = field(default_factory=list[tuple[str, nn.Parameter]])
    size: int = 0
    holds_twice: bool = False

    @property
    def name(self) -> str:
        """The last segment of the plain path."""
        return self.plain.rpartition(".")[2]

    @property
    def kids(self) -> list["Node"]:
        """The children that hold parameters."""
        return [child for child in self.children if child.size]

    def attribute(self, name: str) -> Any:
        """What the module stores under a name; properties are not evaluated."""
        return vars(self.module).get(name)


@dataclass(frozen=True, slots=True)
class Tree:
    """All nodes in the order of `named_modules`, and the paths that only wrap."""

    nodes: tuple[Node, ...]
    wrappers: frozenset[str]

    @property
    def root(self) -> Node:
        return self.nodes[0]

    def inside(self, node: Node) -> tuple[Node, ...]:
        """The node and everything below it."""
        return self.nodes[node.place : node.end]

    def above(self, node: Node) -> Iterator[Node]:
        """The node and everything above it."""
        at: Node | None = node
        while at is not None:
            yield at
            at = at.parent


def tree_of(model: nn.Module) -> Tree:
    """Read the tree of a model; a module that stands at several places counts at the first."""
    nodes: list[Node] = []
    wrappers: set[str] = set()
    seen: dict[int, Node] = {}
    waiting: list[tuple[str, str, nn.Module, Node | None]] = [("", "", model, None)]
    while waiting:
        path, plain, outer, parent = waiting.pop()
        chain = list(_chain(outer))
        module = chain[-1][1]
        known = seen.get(id(module))
        if known is not None:
            if parent is not None and known.parent is parent:
                parent.holds_twice = True
            continue
        node = Node(path=path, plain=plain, module=module, place=len(nodes), parent=parent)
        nodes.append(node)
        seen[id(module)] = node
        if parent is not None:
            parent.children.append(node)
        inner, extra, holder = path, list[nn.Module](), outer
        for name, wrapped in chain[1:]:
            inner = _join(inner, name)
            wrappers.add(inner)
            extra += [kid for kid in _children(holder).values() if kid is not wrapped]
            holder = wrapped
        kids = _children(node.module)
        if (computed := kids.pop("parametrizations", None)) is not None:
            extra.append(computed)
        node.own = [(key, one) for key, one in node.module._parameters.items() if one is not None]
        held = [one for _, one in node.own] + [one for kid in extra for one in kid.parameters()]
        node.size = sum(1 if is_lazy(one) else one.numel() for one in held)
        for key, kid in reversed(kids.items()):
            waiting.append((_join(inner, key), _join(plain, key), kid, node))
    for node in reversed(nodes):
        node.end = node.children[-1].end if node.children else node.place + 1
        if node.parent is not None:
            node.parent.size += node.size
    return Tree(tuple(nodes), frozenset(wrappers))


def origin(module: nn.Module) -> type:
    """The class that a module was written in, where FSDP2 or a parametrization changed it."""
    found = type(module)
    while found.__name__ in {
        prefix + found.__bases__[-1].__name__ for prefix in ("FSDP", "Replicate", "Parametrized")
    }:
        found = found.__bases__[-1]
    return found


def _children(module: nn.Module) -> dict[str, nn.Module]:
    return {name: child for name, child in module._modules.items() if child is not None}


def _chain(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The module, and what it wraps down to the one that does the work, each with its name."""
    name: str | None = ""
    while name is not None:
        yield name, module
        name = _wrapped(module, name)
        module = module if name is None else _children(module)[name]


def _wrapped(module: nn.Module, last: str) -> str | None:
    """Name of the child that `module` only wraps; `last` is the wrapper's own name."""
    kids = _children(module)
    for name in (*WRAPPERS, *_ADAPTED):
        if name in kids:
            return name
    if {"base_model", "prompt_encoder"} <= kids.keys():
        return "base_model"
    if len(kids) != 1 or module._parameters:
        return None
    name, child = next(iter(kids.items()))
    if name == "module" or (name == "model" and last == "base_model"):
        return name
    if name == "base_model" and list(_children(child)) == ["model"] and not child._parameters:
        return name
    return None


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
