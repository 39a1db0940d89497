"""What the user says of a model's parts, by patterns on plain paths."""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase

from foreshock.anatomy.tree import Node, Tree
from foreshock.core.errors import ConfigError

KEYS = ("embedding", "block", "attention", "ffn", "norm", "last_norm", "head")
_SINGLE = ("last_norm", "head")


def named_nodes(tree: Tree, overrides: Mapping[str, str | Sequence[str]]) -> dict[str, list[Node]]:
    """Return the nodes that match each key's patterns, in the model's order.

    `*` crosses dots. Of a module and one inside it that both match, the outer one counts.

    Raises:
        ConfigError: an unknown key; a pattern that matches nothing; several modules for
            `last_norm` or `head`.
    """
    found: dict[str, list[Node]] = {}
    for key, given in overrides.items():
        if key not in KEYS:
            allowed = ", ".join(KEYS)
            raise ConfigError(f"parts: unknown key {key!r}; allowed are {allowed}.")
        patterns = [given] if isinstance(given, str) else list(given)
        matched = {node.place: node for one in patterns for node in _matching(tree, key, one)}
        nodes = [matched[place] for place in sorted(matched)]
        found[key] = [
            node
            for node in nodes
            if not any(above.place in matched for above in tree.above(node) if above is not node)
        ]
        if key in _SINGLE and len(found[key]) > 1:
            several = ", ".join(repr(node.plain) for node in found[key][:5])
            raise ConfigError(
                f"parts: {key}={given!r} matches {len(found[key])} modules ({several}, …); "
                "name one."
            )
    return found


def _matching(tree: Tree, key: str, pattern: str) -> list[Node]:
    if not isinstance(pattern, str):
        raise ConfigError(f"parts: {key}={pattern!r} is no pattern; give module paths, as text.")
    nodes = [
        node
        for node in tree.nodes
        if (fnmatchcase(node.plain, pattern) if node.plain else not pattern)
    ]
    if not nodes:
        paths = [node.plain for node in tree.nodes[1:]]
        near = get_close_matches(pattern, paths, n=5, cutoff=0.4) or paths[:5]
        known = ", ".join(map(repr, near)) or "none: the model has no submodules"
        raise ConfigError(
            f"parts: {key}={pattern!r} matches no module; paths without wrappers are meant, "
            f"near ones are {known}."
        )
    return nodes
