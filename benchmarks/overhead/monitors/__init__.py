"""What Foreshock is compared with: a naive monitor of our own, and other tools as installed.

One a file; a file that is added joins by itself.
"""

import pkgutil
from importlib import import_module

from benchmarks.overhead.monitor import Monitor


def all_monitors() -> dict[str, type[Monitor]]:
    """Every monitor of this folder, by name."""
    found: dict[str, type[Monitor]] = {}
    for info in pkgutil.iter_modules(__path__):
        module = import_module(f"{__name__}.{info.name}")
        for member in vars(module).values():
            own = isinstance(member, type) and member.__module__ == module.__name__
            if own and issubclass(member, Monitor):
                found[member.name] = member
    return dict(sorted(found.items()))
