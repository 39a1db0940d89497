"""Rules that other tools apply to a loss or a gradient norm, re-implemented to compare with.

One rule a file, each written from its published description; none of their code is here.
"""

import pkgutil
from importlib import import_module

from benchmarks.peers.peer import Peer


def all_peers() -> dict[str, Peer]:
    """Every peer's rule with its own default, by name; a new file joins by itself."""
    found: dict[str, Peer] = {}
    for info in pkgutil.iter_modules(__path__):
        module = import_module(f"{__name__}.{info.name}")
        for member in vars(module).values():
            if (
                isinstance(member, type)
                and issubclass(member, Peer)
                and member is not Peer
                and member.__module__ == module.__name__
            ):
                found[member.name] = member()
    return dict(sorted(found.items()))
