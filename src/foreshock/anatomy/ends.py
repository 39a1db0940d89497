"""What stands before and behind the blocks: embeddings, the last norm, the head."""

import re
from dataclasses import dataclass

from torch import nn

from foreshock.anatomy.kinds import (
    Facts,
    Matrix,
    is_convolution,
    is_embedding,
    is_norm,
    matrix_of,
)
from foreshock.anatomy.tree import Node, Tree

_EMBEDDING_NAME = re.compile(r"emb|patch")
_TOKEN_NAME = re.compile(r"emb|(^|_)(pos|cls|token|tokens|register|class|mask)(_|$)")
_NOT_LAST_NORM = re.compile(r"emb|(^|_)(pre|in|input|stem)(_|$)")
_LAST_NORM = re.compile(r"final|last|(^|_)(post|out|norm_?f|ln_?f)(_|$)|^(ln|norm|layer_?norm)$")
_NO_WORDS = re.compile(r"pos|wpe|type|segment")
_HEAD_NAME = re.compile(r"head|classif|score|logits|vocab|unembed|^output$|^decoder$|^fc$")


@dataclass(frozen=True, slots=True)
class Outside:
    """A tree with its blocks, and what is not in them."""

    tree: Tree
    facts: list[Facts]
    blocks: list[Node]
    nodes: list[Node]
    above_blocks: frozenset[int]

    @property
    def behind(self) -> int:
        """Place behind the last block; 0 if there is none."""
        return max((block.end for block in self.blocks), default=0)


def outside_of(tree: Tree, facts: list[Facts], blocks: list[Node]) -> Outside:
    """Split a tree at its blocks."""
    nodes: list[Node] = []
    at = 0
    ends = {block.place: block.end for block in blocks}
    while at < len(tree.nodes):
        if at in ends:
            at = ends[at]
        else:
            nodes.append(tree.nodes[at])
            at += 1
    above = frozenset(one.place for block in blocks for one in tree.above(block))
    return Outside(tree, facts, blocks, nodes, above)


def find_embeddings(out: Outside) -> list[Node]:
    """Tables that are looked up, and what cuts an input into patches."""
    found = [node for node in out.nodes if is_embedding(node) and node.size]
    if not any(out.facts[block.place].has_attention for block in out.blocks):
        return found
    before = [node for node in out.nodes if node.place < out.behind]
    patches = [node for node in before if is_convolution(node) and _cuts(node)]
    if not found and not patches:
        patches = [
            node
            for node in before
            if node.place < out.blocks[0].place and matrix_of(node)
            if _EMBEDDING_NAME.search(node.plain)
        ][:1]
    whole = dict.fromkeys([*found, *(_whole(out, node) for node in patches)])
    return sorted(whole, key=lambda node: node.place)


def _cuts(convolution: Node) -> bool:
    """Whether patches do not overlap; where nobody says, whether a name tells of patches."""
    module = convolution.module
    assert isinstance(module, nn.modules.conv._ConvNd)
    tiled = module.kernel_size == module.stride and max(module.stride) > 1
    return tiled or bool(_EMBEDDING_NAME.search(convolution.plain))


def _whole(out: Outside, node: Node) -> Node:
    """The outermost module that holds nothing but `node` and norms."""
    while (above := node.parent) is not None and above is not out.tree.root:
        beside = [kid for kid in above.kids if kid is not node and not is_norm(kid)]
        if beside or above.own or above.place in out.above_blocks:
            break
        node = above
    return node


def is_embedding_parameter(node: Node, name: str) -> bool:
    """Whether a bare parameter outside the blocks belongs to the embedding, by its name."""
    if is_norm(node) or is_convolution(node) or matrix_of(node):
        return False
    if not node.plain:
        return bool(_TOKEN_NAME.search(name))
    names = [node.name.lower(), *(own for own, _ in node.own)]
    return any(_EMBEDDING_NAME.search(one) or _TOKEN_NAME.search(one) for one in names)


def find_last_norm(out: Outside) -> Node | None:
    """The last norm behind the blocks; else one that is named so; else the last inside them."""
    norms = [node for node in out.nodes if is_norm(node)]
    free = [
        node
        for node in norms
        if not _NOT_LAST_NORM.search(node.name.lower()) and not _beside_embedding(out, node)
    ]
    behind = [node for node in free if node.place >= out.behind]
    named = [node for node in free if _LAST_NORM.search(node.name.lower())]
    inside = [node for block in out.blocks[-1:] for node in out.tree.inside(block) if is_norm(node)]
    for nodes in ([node for node in behind if node in named], behind, named, inside):
        if nodes:
            return nodes[-1]
    return norms[-1] if norms and not out.blocks else None


def _beside_embedding(out: Outside, norm: Node) -> bool:
    above = norm.parent
    if above is None or above.place in out.above_blocks or above is out.tree.root:
        return False
    return any(is_embedding(one) or is_convolution(one) for one in out.tree.inside(above))


def find_head(out: Outside, embeddings: list[Node]) -> Node | None:
    """The last matrix outside the blocks that gives as many values as there are classes."""
    layers = [
        (node, matrix)
        for node in out.nodes
        if node.plain and node not in embeddings and (matrix := matrix_of(node))
        if node.parent is None or not isinstance(node.parent.module, nn.MultiheadAttention)
    ]
    weights = {id(one) for node in embeddings for _, one in node.own}
    tied = [node for node, _ in layers if any(id(one) in weights for _, one in node.own)]
    vocabulary, classes, configured = _sizes(out, embeddings)
    for found in (
        tied,
        [node for node, matrix in layers if matrix.out in vocabulary and not _square(matrix)],
        [node for node, matrix in layers if matrix.out in classes and not _square(matrix)],
        [node for node, _ in layers if node.place >= out.behind and _named_head(node)],
    ):
        if found:
            return found[-1]
    if configured or not layers:
        return None
    last, matrix = layers[-1]
    if not out.blocks:
        return last if out.facts[0].num_weights > 1 else None
    return last if last.place >= out.behind and not _square(matrix) else None


def _sizes(out: Outside, embeddings: list[Node]) -> tuple[set[int], set[int], bool]:
    """Sizes of vocabularies, numbers of classes, and whether a configuration says them."""
    config = out.tree.root.attribute("config")
    configured = hasattr(config, "num_labels") or hasattr(config, "vocab_size")
    said = [getattr(one, "vocab_size", None) for one in (config, getattr(config, "text_config", 0))]
    vocabulary = {size for size in said if isinstance(size, int)}
    if not vocabulary:
        tables = [node for node in embeddings if is_embedding(node)]
        words = [node for node in tables if not _NO_WORDS.search(node.plain.lower())]
        vocabulary = {one.shape[0] for node in words for _, one in node.own}
    known = (getattr(config, "num_labels", None), out.tree.root.attribute("num_classes"))
    return vocabulary, {size for size in known if isinstance(size, int)}, configured


def _named_head(node: Node) -> bool:
    return bool(_HEAD_NAME.search(node.name.lower()))


def _square(matrix: Matrix) -> bool:
    return matrix.out == matrix.into


def around_head(out: Outside, head: Node, embeddings: list[Node]) -> Node:
    """The outermost module around the head that holds neither blocks nor embeddings."""
    places = {one.place for node in embeddings for one in out.tree.above(node)}
    while out.blocks and (above := head.parent) is not None:
        if above.place in out.above_blocks or above.place in places or above is out.tree.root:
            break
        head = above
    return head
