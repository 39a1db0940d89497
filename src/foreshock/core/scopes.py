"""What a series' scope is of: the embedding, the head, which block."""

import re
from collections.abc import Mapping
from typing import Any, Final

from foreshock.core.names import GLOBAL

ROLES: Final = "roles"
"""The fact of a case that says what its scopes are for, by scope; names decide without it."""

_EMBEDDING: Final = re.compile(r"(^|[._])(w[tp]e|\w*embed(ding)?s?|\w*embed_tokens)($|[._])")
_HEAD: Final = re.compile(r"(^|[._])(\w*head|output|unembed(ding)?|embed_out|classifier)$")
_BLOCK: Final = re.compile(r"(?:^|\.)(\d+)(?:\.|$)")


def role_of(scope: str, facts: Mapping[str, Any]) -> str:
    """What a module group is for: "embedding", "head", or whatever `facts["roles"]` says.

    Without that fact its name decides, outside numbered blocks; "other" where it says nothing.

    >>> role_of("transformer.wte", {}), role_of("lm_head", {}), role_of("blocks.0.head", {})
    ('embedding', 'head', 'other')
    >>> role_of("first", {"roles": {"first": "embedding"}})
    'embedding'
    """
    roles = facts.get(ROLES)
    if isinstance(roles, Mapping) and scope in roles:
        return str(roles[scope])  # pyright: ignore[reportUnknownArgumentType]
    name = scope.lower()
    if scope == GLOBAL or _BLOCK.search(name):
        return "other"
    if _HEAD.search(name):
        return "head"
    return "embedding" if _EMBEDDING.search(name) else "other"


def block_of(scope: str) -> int | None:
    """Number of the block that a module group stands in; None outside of blocks.

    >>> block_of("transformer.h.11.mlp"), block_of("lm_head")
    (11, None)
    """
    found = _BLOCK.search(scope)
    return None if found is None else int(found.group(1))
