"""Which modules are the numbered blocks: lists of alike modules, the largest ones."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from foreshock.anatomy.kinds import CONTAINERS, Facts, is_embedding
from foreshock.anatomy.tree import Node, Tree, origin

_ALIKE = 0.3  # share of parameter names that two alike modules have in common, at the least
_STAGE = 0.5  # share of its parameters that a stage has in lists of blocks, at the least
_NUMBERED = re.compile(r"(.*?)\d+$")


@dataclass(slots=True)
class _List:
    """Candidates for blocks in one container, and whether they repeat."""

    blocks: list[Node]
    repeats: bool


def find_blocks(tree: Tree, facts: list[Facts]) -> list[Node]:
    """Return a model's blocks in order, or nothing.

    A list of at least two alike modules, each with a norm or with attention and FFN; a list
    of lists of them (stages of a CNN) is looked through, and lists inside a block (experts)
    are not seen. Of several lists the largest counts, and with it those of the same kind
    (decoder and encoder). Failing that, a list of one, a lone module with attention and
    FFN, or a list of alike modules without norms.
    """
    lists = {node.place: found for node in tree.nodes if (found := _list_in(tree, node, facts))}
    stacks = _outermost(tree, facts, lists, alone=False)
    if stacks:
        main = max(stacks, key=_size)
        stacks = [stack for stack in stacks if _akin(stack[0], main[0], facts)]
        taken = _covered(tree, [block for stack in stacks for block in stack])
        above = {node.place for stack in stacks for node in tree.above(stack[0])}
        for at, one in lists.items():
            free = at not in above and not taken[at] and not one.repeats
            first = one.blocks[0]
            if free and facts[first.place].kind == "block" and _akin(first, main[0], facts):
                stacks.append(one.blocks)
                taken = _covered(tree, [block for stack in stacks for block in stack])
    else:
        stacks = _outermost(tree, facts, lists, alone=True) or [_lone(tree, facts)]
    found = [block for stack in stacks for block in stack] or _without_norms(tree, facts)
    return sorted(found, key=lambda node: node.place)


def _list_in(tree: Tree, node: Node, facts: list[Facts]) -> _List | None:
    held = [kid for kid in node.kids if _may_be_block(facts[kid.place])]
    if not held or _is_in_attention(node, facts):
        return None
    if isinstance(node.module, CONTAINERS):
        groups = _alike(tree, held)
    else:
        groups = [group for part in _numbered(held) for group in _alike(tree, part)]
        if max(map(len, groups), default=0) < 2:
            return None
    many = [group for group in groups if len(group) > 1]
    if many and isinstance(node.module, nn.ModuleList):
        classes = {origin(block.module) for group in many for block in group}
        return _List(
            [kid for kid in node.kids if kid in held or origin(kid.module) in classes], True
        )
    if many:
        return _List([block for group in many for block in group], True)
    if len(held) == 1 and (node.holds_twice or len(node.kids) == 1):
        return _List(held, node.holds_twice)
    return None


def _may_be_block(fact: Facts) -> bool:
    return fact.num_weights > 1 and (fact.has_norm or fact.kind == "block")


def _is_in_attention(node: Node, facts: list[Facts]) -> bool:
    """Whether an attention module beside an FFN holds it: a list of heads."""
    above = node.parent
    if above is None or above.parent is None or facts[above.place].kind != "attention":
        return False
    return any(facts[kid.place].kind == "ffn" for kid in above.parent.kids)


def _numbered(nodes: list[Node]) -> Iterator[list[Node]]:
    """Children whose names differ in their number only."""
    parts: dict[str, list[Node]] = {}
    for node in nodes:
        if found := _NUMBERED.match(node.name):
            parts.setdefault(found[1], []).append(node)
    yield from parts.values()


def _alike(tree: Tree, nodes: list[Node]) -> list[list[Node]]:
    """Group modules of one class, and of much the same parameters."""
    groups: list[tuple[type, frozenset[str], list[Node]]] = []
    for node in nodes:
        kind, names = origin(node.module), _parameter_names(tree, node)
        for other, theirs, group in groups:
            common = len(names & theirs) / max(len(names | theirs), 1)
            needed = 1.0 if kind in CONTAINERS else _ALIKE
            if kind is other and common >= needed:
                group.append(node)
                break
        else:
            groups.append((kind, names, [node]))
    return [group for _, _, group in groups]


def _parameter_names(tree: Tree, node: Node) -> frozenset[str]:
    return frozenset(
        f"{one.plain[len(node.plain) :]}.{name}" for one in tree.inside(node) for name, _ in one.own
    )


def _outermost(
    tree: Tree, facts: list[Facts], lists: dict[int, _List], *, alone: bool
) -> list[list[Node]]:
    """The lists that lie in no block; lists of one only if `alone`, or as a stage."""
    found: list[list[Node]] = []
    at, in_stage = 0, 0
    while at < len(tree.nodes):
        node = tree.nodes[at]
        at += 1
        one = lists.get(node.place)
        if one is None or not (one.repeats or alone or node.place < in_stage):
            continue
        if _are_stages(tree, facts, lists, one):
            in_stage = max(in_stage, node.end)
            continue
        found.append(one.blocks)
        at = node.end if isinstance(node.module, CONTAINERS) else max(b.end for b in one.blocks)
    return found


def _are_stages(tree: Tree, facts: list[Facts], lists: dict[int, _List], one: _List) -> bool:
    """Whether modules hold most of their parameters in lists, and no attention beside them."""
    return any(_is_stage(tree, facts, lists, block) for block in one.blocks)


def _is_stage(tree: Tree, facts: list[Facts], lists: dict[int, _List], block: Node) -> bool:
    size, at = 0, block.place
    while at < block.end:
        node = tree.nodes[at]
        if at in lists:
            size += sum(inner.size for inner in lists[at].blocks)
            at = node.end
            continue
        below = any(place in lists for place in range(node.place + 1, node.end))
        if facts[at].kind == "attention" and not below:
            return False
        at += 1
    return size >= _STAGE * block.size


def _akin(one: Node, main: Node, facts: list[Facts]) -> bool:
    same = facts[one.place].has_attention == facts[main.place].has_attention
    return same or origin(one.module) is origin(main.module)


def _covered(tree: Tree, blocks: list[Node]) -> list[bool]:
    covered = [False] * len(tree.nodes)
    for block in blocks:
        covered[block.place : block.end] = [True] * (block.end - block.place)
    return covered


def _lone(tree: Tree, facts: list[Facts]) -> list[Node]:
    """Modules with attention and FFN that hold no such module, and no embedding."""
    found: list[Node] = []
    for node in tree.nodes:
        if facts[node.place].kind != "block":
            continue
        inside = tree.inside(node)
        if any(facts[one.place].kind == "block" for one in inside[1:]):
            continue
        if not any(is_embedding(one) for one in inside):
            found.append(node)
    return found


def _without_norms(tree: Tree, facts: list[Facts]) -> list[Node]:
    """The largest list of alike modules of several layers each."""
    stacks: list[list[Node]] = []
    for node in tree.nodes:
        if isinstance(node.module, CONTAINERS):
            held = [kid for kid in node.kids if kid.kids and facts[kid.place].num_weights > 1]
            stacks += [group for group in _alike(tree, held) if len(group) > 1 or node.holds_twice]
    return max(stacks, key=_size, default=[])


def _size(blocks: list[Node]) -> int:
    return sum(block.size for block in blocks)
