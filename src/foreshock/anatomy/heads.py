"""The shape of an attention module: heads, key-value heads, width of a head."""

import re
from typing import Any, NamedTuple

from torch import nn

from foreshock.anatomy.kinds import KV_HEADS, QUERY_HEADS, is_convolution, matrix_of, number
from foreshock.anatomy.parts import AttentionPart
from foreshock.anatomy.tree import Node, Tree

_HEAD_DIMS = ("qk_head_dim", "head_dim", "head_size", "attention_head_size", "d_kv")
_OTHER_HEAD_DIMS = ("key_value_proj_dim", "dim_head", "dim_per_head", "d_head")
_QUERY = re.compile(r"^(w_?)?q(uery)?(_?proj|_?lin)?$|^to_q$")
_KEY = re.compile(r"^(w_?)?k(ey)?(_?proj|_?lin)?$|^to_k$")
_FUSED = re.compile(r"qkv|c_attn|query_key_value")


class _Widths(NamedTuple):
    """Output widths of the projections that a module has."""

    query: int | None
    key: int | None
    fused: int | None


def attention_part(tree: Tree, node: Node, path: str) -> AttentionPart:
    """Read the shape from the module's attributes, else its layers', else its configuration's.

    What contradicts the layers' widths, or cannot be told, is None.
    """
    core = next((one for one in tree.inside(node) if number(one, *QUERY_HEADS)), node)
    config = _config_of(tree, node)
    widths = _widths_of(tree, node)
    heads = number(core, *QUERY_HEADS) or _in_config(config, *QUERY_HEADS)
    head_dim = number(core, *_HEAD_DIMS, *_OTHER_HEAD_DIMS)
    if heads is None and widths.query and head_dim:
        heads = widths.query // head_dim
    if heads is None or (widths.query and widths.query % heads):
        return AttentionPart(path=path, head_dim=head_dim)
    if head_dim is None:
        head_dim = widths.query // heads if widths.query else _in_config(config, *_HEAD_DIMS)
    shared = _key_value_heads(core, config, heads, head_dim, widths.key)
    if widths.fused:
        head_dim, shared = _of_fused(widths.fused, heads, head_dim, shared)
    if shared is not None and heads % shared:
        shared = None
    return AttentionPart(path=path, num_heads=heads, num_key_value_heads=shared, head_dim=head_dim)


def _widths_of(tree: Tree, node: Node) -> _Widths:
    if isinstance(node.module, nn.MultiheadAttention):
        return _Widths(node.module.embed_dim, node.module.embed_dim, None)
    layers = [(one.name.lower(), matrix) for one in tree.inside(node) if (matrix := matrix_of(one))]
    query = next((matrix.out for name, matrix in layers if _QUERY.match(name)), None)
    key = next((matrix.out for name, matrix in layers if _KEY.match(name)), None)
    fused = next((matrix.out for name, matrix in layers if _FUSED.search(name)), None)
    return _Widths(query, key, fused)


def _key_value_heads(
    core: Node, config: Any, heads: int, head_dim: int | None, key: int | None
) -> int | None:
    if (said := number(core, *KV_HEADS)) is not None:
        return said
    if (groups := number(core, "num_key_value_groups")) is not None:
        return max(heads // groups, 1)
    if key and head_dim and key % head_dim == 0:
        return key // head_dim
    return _in_config(config, *KV_HEADS)


def _of_fused(
    width: int, heads: int, head_dim: int | None, shared: int | None
) -> tuple[int | None, int | None]:
    """Complete the shape from the width of a layer that gives queries, keys and values."""
    if head_dim is not None:
        return head_dim, shared or max((width // head_dim - heads) // 2, 0) or None
    if shared is not None:
        return width // (heads + 2 * shared), shared
    return (width // (3 * heads), heads) if width % (3 * heads) == 0 else (None, None)


def _config_of(tree: Tree, node: Node) -> Any:
    """The nearest configuration; none for linear attention, whose heads it counts apart."""
    if any(is_convolution(one) for one in tree.inside(node)):
        return None
    held = (one.attribute("config") for one in tree.above(node))
    return next((config for config in held if config is not None), None)


def _in_config(config: Any, *names: str) -> int | None:
    held = config if isinstance(config, dict) else getattr(config, "__dict__", {})
    for name in names:
        value = held.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None
