"""What a module is: norm, embedding, matrix, convolution, attention, FFN, block.

By type, attributes and shapes first; names decide only where these leave it open.
"""

import re
from dataclasses import dataclass
from typing import Literal, NamedTuple

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from foreshock.anatomy.tree import Node, Tree, origin

Kind = Literal["attention", "ffn", "block", "other"]
CONTAINERS = (nn.ModuleList, nn.Sequential, nn.ModuleDict)

QUERY_HEADS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "nhead", "heads")
KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_kv_heads", "n_kv_head", "kv_heads")
HEAD_COUNTS = (*QUERY_HEADS, *KV_HEADS)
_NORMS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
_NORM_NAME = re.compile(r"(^|_)(ln|norm)(_|\d|$)")
_ATTENTION_NAME = re.compile(r"attn|attention")
_FFN_NAME = re.compile(r"mlp|ffn|feed_?forward|moe|expert|(^|_)ff(_|\d|$)")
_QKV_NAME = re.compile(r"qkv|kqv|c_attn|query_key_value")
_AROUND = re.compile(r"_?proj(ection)?$|_?lin(ear)?$|^to_|^w_?(?=[qkv]$)")
_QK_NORM = re.compile(r"(^|_)(q|k|v|qk|kv|query|key|value)(_|$|norm|ln|layernorm)")
_MOST_MATRICES = 8  # a part with more of them is told apart by what it is made of


class Matrix(NamedTuple):
    """A linear layer's shape and name."""

    out: int
    into: int
    name: str


@dataclass(slots=True)
class Facts:
    """What a node's subtree holds, and what it is.

    Attributes:
        matrices: linear layers in order; the first few.
        num_matrices: how many there are.
        num_weights: linear layers, convolutions and bare matrices.
    """

    kind: Kind = "other"
    matrices: tuple[Matrix, ...] = ()
    num_matrices: int = 0
    num_weights: int = 0
    has_norm: bool = False
    has_convolution: bool = False
    has_heads: bool = False
    has_attention: bool = False
    is_wrapper: bool = False


def number(node: Node, *names: str) -> int | None:
    """The first of a module's attributes that is a whole number above 0."""
    for name in names:
        value = node.attribute(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None


def is_norm(node: Node) -> bool:
    """Whether it is a norm layer; one without parameters too."""
    if node.kids or any(one.ndim > 1 for _, one in node.own):
        return False
    if isinstance(node.module, _NORMS):
        return True
    if node.children and not node.own:
        return False
    if "norm" in origin(node.module).__name__.lower():
        return True
    return 1 <= len(node.own) <= 2 and bool(_NORM_NAME.search(node.name.lower()))


def width_of(node: Node) -> int | None:
    """Elements that a norm layer scales, or None if it does not say."""
    if node.own:
        return node.own[0][1].numel()
    shape = node.attribute("normalized_shape")
    return shape[-1] if isinstance(shape, tuple) and shape else number(node, "num_features")


def is_of_queries_or_keys(norm: Node) -> bool:
    """Whether a norm layer stands inside attention, by its name."""
    return bool(_QK_NORM.search(norm.name.lower()))


def is_embedding(node: Node) -> bool:
    """Whether it is a table that is looked up by number."""
    if isinstance(node.module, nn.Embedding | nn.EmbeddingBag):
        return True
    named = "embedding" in origin(node.module).__name__.lower()
    return named and not node.kids and len(node.own) == 1 and node.own[0][1].ndim > 1


def matrix_of(node: Node) -> Matrix | None:
    """Shape of a linear layer, or None if it is none."""
    if node.kids or is_embedding(node):
        return None
    into, out = number(node, "in_features", "nx"), number(node, "out_features", "nf")
    if into and out:
        return Matrix(out, into, node.name)
    shapes = [one.shape for name, one in node.own if name == "weight" and one.ndim == 2]
    if len(shapes) == 1 and len(node.own) <= 2 and all(one.ndim <= 2 for _, one in node.own):
        return Matrix(shapes[0][0], shapes[0][1], node.name)
    return None


def is_convolution(node: Node) -> bool:
    return isinstance(node.module, _ConvNd)


def looks_like_qkv(names: set[str]) -> bool:
    """Whether names of linear layers are those of queries, keys and values."""
    if any(_QKV_NAME.search(name) for name in names):
        return True
    short = {_AROUND.sub("", name) for name in names}
    return bool(short & {"q", "query"}) and bool(short & {"k", "key"})


def is_qkv_name(name: str) -> bool:
    """Whether a linear layer's name is one of queries, keys or values."""
    return bool(_QKV_NAME.search(name)) or _AROUND.sub("", name.lower()) in {
        *("q", "query", "k", "key", "v", "value", "kv")
    }


def named_kind(node: Node) -> Kind:
    """What the name says: first the attribute's, then that of the class."""
    for name in (node.name.lower(), origin(node.module).__name__.lower()):
        if _ATTENTION_NAME.search(name):
            return "attention"
        if _FFN_NAME.search(name):
            return "ffn"
    return "other"


def is_ffn_chain(first: Matrix, last: Matrix) -> bool:
    """Whether `last` takes what `first` gives (half of it, if gated) back to its width."""
    return first.out in (last.into, 2 * last.into) and first.into == last.out


def facts_of(tree: Tree) -> list[Facts]:
    """The facts of every node, in the tree's order; one pass from the leaves up."""
    facts = [Facts() for _ in tree.nodes]
    for node in reversed(tree.nodes):
        mine = facts[node.place]
        below = [facts[child.place] for child in node.children]
        matrix = matrix_of(node)
        if matrix is not None:
            mine.matrices, mine.num_matrices, mine.num_weights = (matrix,), 1, 1
            continue
        for one in below:
            mine.matrices += one.matrices[: _MOST_MATRICES - len(mine.matrices)]
            mine.num_matrices += one.num_matrices
            mine.num_weights += one.num_weights
            mine.has_norm |= one.has_norm
            mine.has_convolution |= one.has_convolution
            mine.has_heads |= one.has_heads
            mine.has_attention |= one.has_attention
        mine.has_norm |= is_norm(node)
        mine.has_convolution |= is_convolution(node)
        mine.num_weights += sum(one.ndim > 1 for _, one in node.own)
        mine.has_heads |= number(node, *HEAD_COUNTS, "num_key_value_groups") is not None
        mine.is_wrapper = _is_wrapper(node, facts)
        if not is_norm(node) and not is_embedding(node) and not is_convolution(node):
            mine.kind = _kind_of(node, mine, facts)
        mine.has_attention |= mine.kind == "attention"
    return facts


def _is_wrapper(node: Node, facts: list[Facts]) -> bool:
    """Whether it only adds a norm (and a residual) to the one part inside it."""
    kids = [child for child in node.children if child.size or is_norm(child)]
    inner = [child for child in kids if not is_norm(child)]
    if len(inner) != 1 or facts[inner[0].place].kind == "other":
        return False
    return len(kids) > 1 or facts[inner[0].place].is_wrapper


def _kind_of(node: Node, mine: Facts, facts: list[Facts]) -> Kind:
    kinds = {facts[kid.place].kind for kid in node.kids}
    if "block" in kinds or {"attention", "ffn"} <= kinds:
        return "block"
    if "attention" in kinds:
        beside = [
            matrix
            for kid in node.kids
            if facts[kid.place].kind != "attention"
            for matrix in facts[kid.place].matrices
        ]
        chained = any(
            is_ffn_chain(first, last) and first.out != first.into
            for place, first in enumerate(beside)
            for last in beside[place + 1 :]
        )
        return "block" if chained else "attention"
    if isinstance(node.module, nn.MultiheadAttention) or "in_proj_weight" in dict(node.own):
        return "attention"
    if not node.kids:
        return named_kind(node) if any(one.ndim > 1 for _, one in node.own) else "other"
    if mine.has_heads and not mine.has_convolution and mine.num_weights > 1:
        return "attention"
    if looks_like_qkv({matrix.name.lower() for matrix in mine.matrices}):
        return "attention"
    if "ffn" in kinds:
        return "ffn"
    shaped = _kind_by_shape(mine) if not node.own and not mine.has_convolution else None
    return shaped or named_kind(node)


def _kind_by_shape(mine: Facts) -> Kind | None:
    shapes = [(matrix.out, matrix.into) for matrix in mine.matrices]
    if mine.num_matrices != len(shapes):
        return None
    if len(shapes) == 2:
        first, last = mine.matrices
        if first.out == 3 * last.into and first.into == last.out:
            return "attention"
        return "ffn" if is_ffn_chain(first, last) and first.out != first.into else None
    if len(shapes) == 3:
        back = [(out, into) for out, into in shapes if shapes.count((into, out)) == 2]
        return "ffn" if len(back) == 1 else None
    if len(shapes) == 4:
        q, k, v, o = shapes
        reads_alike = q[1] == k[1] == v[1]
        return "attention" if reads_alike and k == v and o == (q[1], q[0]) else None
    return None
