"""Finds a model's parts: the one function that puts them together."""

from collections.abc import Mapping, Sequence

from torch import nn

from foreshock.anatomy.dissection import Dissected, dissect
from foreshock.anatomy.ends import (
    Outside,
    around_head,
    find_embeddings,
    find_head,
    find_last_norm,
    is_embedding_parameter,
    outside_of,
)
from foreshock.anatomy.heads import attention_part
from foreshock.anatomy.kinds import facts_of, is_convolution, is_norm, matrix_of
from foreshock.anatomy.overrides import named_nodes
from foreshock.anatomy.parts import Anatomy, AttentionPart, Block, Role
from foreshock.anatomy.stacks import find_blocks
from foreshock.anatomy.tree import Node, Tree, tree_of
from foreshock.core.names import module_group
from foreshock.core.signal import Site

_NOTHING: Mapping[str, str | Sequence[str]] = {}


def anatomy_of(
    model: nn.Module, overrides: Mapping[str, str | Sequence[str]] = _NOTHING
) -> Anatomy:
    """Find a model's embeddings, blocks, attention, FFN, norms and head, by structure.

    Blocks are the repeated modules that hold most parameters; attention is told by its head
    count and the shapes of its projections, an FFN by a way out of the block's width and
    back. Names decide where structure leaves it open. The model may be compiled, wrapped,
    sharded or have adapters; nothing of it is executed. Every rank finds the same.

    Args:
        model: the model as it is trained.
        overrides: patterns on plain paths (`*`, `?`, `[…]`; `*` crosses dots), each with
            "embedding", "block", "attention", "ffn", "norm", "last_norm" or "head". Modules
            that match replace what is found; for attention, ffn and norm in those blocks only
            in which there is a match. No pattern at all (`[]`) says that there is none.

    Raises:
        ConfigError: an unknown key, or a pattern that matches nothing.

    >>> layer = nn.TransformerEncoderLayer(16, 4, 32)
    >>> found = anatomy_of(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False))
    >>> found.blocks[1]  # doctest: +NORMALIZE_WHITESPACE
    Block(path='layers.1', attention=('layers.1.self_attn',),
          ffn=('layers.1.linear1', 'layers.1.linear2'), norms=('layers.1.norm1', 'layers.1.norm2'))
    >>> found.group_of("layers.1.linear1.weight"), found.role_of("layers.1.norm1.bias")
    ('layers.1.ffn', 'norm')
    """
    tree = tree_of(model)
    named = named_nodes(tree, overrides)
    facts = facts_of(tree)
    blocks = named["block"] if "block" in named else find_blocks(tree, facts)
    out = outside_of(tree, facts, blocks)
    embeddings = named["embedding"] if "embedding" in named else find_embeddings(out)
    head = _single(named, "head") if "head" in named else find_head(out, embeddings)
    last = _single(named, "last_norm") if "last_norm" in named else find_last_norm(out)
    dissected = [dissect(tree, facts, block, named) for block in blocks]
    parts: dict[str, tuple[str, Role]] = {}
    _place_ends(out, embeddings, head, parts)
    for one in dissected:
        _place_block(one, parts)
    for role in ("attention", "ffn", "norm"):
        parts |= {node.plain: (node.plain, role) for node in named.get(role, ())}
    if last is not None:
        parts[last.plain] = (last.plain, "norm")
    inside = {node.place for one in dissected for node in one.attention}
    beyond = [node for node in named.get("attention", ()) if node.place not in inside]
    return Anatomy(
        embeddings=tuple(node.path for node in embeddings),
        blocks=tuple(_block_of(one) for one in dissected),
        last_norm=None if last is None else last.path,
        head=None if head is None else head.path,
        attention_parts=(
            *(part for one in dissected for part in _attention_of(tree, one)),
            *(attention_part(tree, node, node.path) for node in beyond),
        ),
        _wrappers=tree.wrappers,
        _parts=parts,
        _tied=_tied_to(tree, embeddings),
        _blocks=frozenset(block.plain for block in blocks),
    )


def anatomy_at(site: Site) -> Anatomy:
    """The parts of the model that signals are attached to, found if they are not yet."""
    return site.anatomy if site.anatomy is not None else anatomy_of(site.model)


def _single(named: Mapping[str, Sequence[Node]], key: str) -> Node | None:
    return next(iter(named[key]), None)


def _block_of(one: Dissected) -> Block:
    def paths(role: str) -> tuple[str, ...]:
        nodes = [node for nodes in one.of(role) for node in nodes]
        return tuple(node.path for node in sorted(nodes, key=lambda node: node.place))

    return Block(
        path=one.block.path, attention=paths("attention"), ffn=paths("ffn"), norms=paths("norm")
    )


def _attention_of(tree: Tree, one: Dissected) -> list[AttentionPart]:
    found = [attention_part(tree, node, node.path) for node in one.attention]
    if one.loose_attention:
        found.append(attention_part(tree, one.block, one.block.path))
    return found


def _place_ends(
    out: Outside, embeddings: list[Node], head: Node | None, parts: dict[str, tuple[str, Role]]
) -> None:
    """Say where parameters outside the blocks belong."""
    around = None if head is None else around_head(out, head, embeddings)
    cut = {place for node in embeddings for place in range(node.place, node.end)}
    for node in out.nodes:
        role: Role = "other"
        if around is not None and around.place <= node.place < around.end:
            role = "head"
        if is_norm(node):
            parts[node.plain] = (node.plain, "norm")
        elif node.place in cut:
            continue
        elif node.plain and (is_convolution(node) or matrix_of(node)):
            # With what adapters and parametrizations have put inside it.
            parts[node.plain] = (module_group(f"{node.plain}.weight"), role)
        for name, _ in node.own:
            path = f"{node.plain}.{name}".lstrip(".")
            own: Role = "embedding" if is_embedding_parameter(node, name) else role
            if role == "head" or own != "other":
                parts.setdefault(path, (module_group(path), role if role == "head" else own))
    parts |= {node.plain: (node.plain, "embedding") for node in embeddings}


def _place_block(one: Dissected, parts: dict[str, tuple[str, Role]]) -> None:
    block = one.block.plain
    roles: tuple[tuple[Role, str], ...] = (("attention", "attn"), ("ffn", "ffn"), ("norm", ""))
    for role, short in roles:
        whole, loose = one.of(role)
        parts |= {node.plain: (node.plain, role) for node in whole}
        joined = f"{block}.{short}".lstrip(".")
        parts |= {node.plain: (joined, role) for node in loose}


def _tied_to(tree: Tree, embeddings: list[Node]) -> dict[str, str]:
    """Plain paths of weights that are an embedding's as well, to that embedding's path."""
    first: dict[int, str] = {}
    for node in embeddings:
        for inner in tree.inside(node):
            for name, one in inner.own:
                first.setdefault(id(one), f"{inner.plain}.{name}".lstrip("."))
    return {
        path: first[id(one)]
        for node in tree.nodes
        for name, one in node.own
        if id(one) in first and (path := f"{node.plain}.{name}".lstrip(".")) != first[id(one)]
    }
