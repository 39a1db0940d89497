"""What stands in one block: its attention, its FFN, its norms."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from foreshock.anatomy.kinds import (
    CONTAINERS,
    HEAD_COUNTS,
    Facts,
    Matrix,
    is_ffn_chain,
    is_norm,
    is_of_queries_or_keys,
    is_qkv_name,
    looks_like_qkv,
    matrix_of,
    named_kind,
    number,
    width_of,
)
from foreshock.anatomy.tree import Node, Tree

BLOCK_ROLES = ("attention", "ffn", "norm")


@dataclass(slots=True)
class Dissected:
    """The parts of a block; what is loose is one matrix of a part that has no module."""

    block: Node
    attention: list[Node] = field(default_factory=list[Node])
    ffn: list[Node] = field(default_factory=list[Node])
    norms: list[Node] = field(default_factory=list[Node])
    loose_attention: list[Node] = field(default_factory=list[Node])
    loose_ffn: list[Node] = field(default_factory=list[Node])
    others: list[Node] = field(default_factory=list[Node])

    def of(self, role: str) -> tuple[list[Node], list[Node]]:
        """The whole parts and the loose matrices of a role."""
        if role == "norm":
            return self.norms, []
        if role == "ffn":
            return self.ffn, self.loose_ffn
        return self.attention, self.loose_attention


def dissect(
    tree: Tree, facts: list[Facts], block: Node, named: Mapping[str, Sequence[Node]]
) -> Dissected:
    """Return the parts of a block.

    `named` holds the nodes that the user gave, by role: in a block in which there are some
    (or if there are none at all) they replace what is found for that role.
    """
    parts = Dissected(block)
    given: dict[int, str] = {}
    settled: set[str] = set()
    for role in BLOCK_ROLES:
        if (nodes := named.get(role)) is not None:
            here = [node for node in nodes if block.place <= node.place < block.end]
            given |= {node.place: role for node in here}
            if here or not nodes:
                settled.add(role)
    loose = _walk(tree, facts, parts, given)
    _sort_loose(facts, parts, loose)
    _add_inner_norms(tree, parts, given)
    for role in settled:
        whole, alone = parts.of(role)
        whole[:] = [tree.nodes[place] for place, its in sorted(given.items()) if its == role]
        alone.clear()
    for role in BLOCK_ROLES:
        for nodes in parts.of(role):
            kept = [one for one in nodes if given.get(one.place, role) == role]
            nodes[:] = sorted(kept, key=lambda node: node.place)
    return parts


def _walk(tree: Tree, facts: list[Facts], parts: Dissected, given: dict[int, str]) -> list[Node]:
    """Gather a block's whole parts and norms; return what holds one matrix, in order."""
    loose: list[Node] = []
    waiting = list(reversed(parts.block.children))
    while waiting:
        node = waiting.pop()
        fact = facts[node.place]
        if node.place in given:
            parts.of(given[node.place])[0].append(node)
        elif is_norm(node):
            parts.norms.append(node)
        elif _is_shell(node, facts, given):
            waiting += reversed(node.children)
        elif fact.num_matrices == 1 and not fact.has_convolution and fact.num_weights == 1:
            loose.append(node)
            parts.norms += [one for one in tree.inside(node) if is_norm(one)]
        elif fact.kind == "attention":
            parts.attention.append(node)
        elif fact.kind == "ffn":
            parts.ffn.append(node)
        else:
            parts.others.append(node)
    return loose


def _is_shell(node: Node, facts: list[Facts], given: dict[int, str]) -> bool:
    """Whether parts are to be looked for inside it: it is more than one, or less than a whole."""
    fact = facts[node.place]
    if fact.kind == "block" or fact.is_wrapper:
        return True
    if any(node.place < place < node.end for place in given):
        return True
    if not isinstance(node.module, CONTAINERS) or fact.kind != "attention":
        return False
    held = [kid for kid in node.kids if facts[kid.place].kind == "attention"]
    return any(facts[kid.place].num_matrices > 3 or number(kid, *HEAD_COUNTS) for kid in held)


def _sort_loose(facts: list[Facts], parts: Dissected, loose: list[Node]) -> None:
    """Tell the loose matrices of an FFN from those of attention."""
    shapes = [(node, facts[node.place].matrices[0]) for node in loose]
    names = {node.name.lower() for node in loose}
    own_attention = not parts.attention and looks_like_qkv(names)
    rest = [one for one in shapes if not (own_attention and is_qkv_name(one[0].name))]
    chain = _chain_in([matrix for _, matrix in rest])
    for node, matrix in shapes:
        if own_attention and is_qkv_name(node.name):
            parts.loose_attention.append(node)
        elif chain is not None and (matrix.out, matrix.into) in _shapes_of(chain):
            parts.loose_ffn.append(node)
        elif own_attention and matrix.out == shapes[0][1].into:
            parts.loose_attention.append(node)
        elif named_kind(node) == "attention" and matrix_of(node) is None:
            parts.attention.append(node)
        elif named_kind(node) == "ffn":
            parts.loose_ffn.append(node)


def _chain_in(matrices: list[Matrix]) -> Matrix | None:
    """The first matrix of the widest pair that leads out of the block's width and back."""
    firsts = [
        first
        for place, first in enumerate(matrices)
        for last in matrices[place + 1 :]
        if is_ffn_chain(first, last)
    ]
    return max(firsts, key=lambda first: first.out, default=None)


def _shapes_of(first: Matrix) -> set[tuple[int, int]]:
    inner, width = first.out, first.into
    return {(inner, width), (width, inner), (width, inner // 2), (inner // 2, width)}


def _add_inner_norms(tree: Tree, parts: Dissected, given: dict[int, str]) -> None:
    """Norms of the block's width that stand inside its parts, but for those of q and k."""
    widths = [width for norm in parts.norms if (width := width_of(norm)) is not None]
    for part in [*parts.attention, *parts.ffn, *parts.others]:
        for norm in tree.inside(part)[1:]:
            if not is_norm(norm) or norm.place in given or is_of_queries_or_keys(norm):
                continue
            if not widths or width_of(norm) in (None, *widths):
                parts.norms.append(norm)
