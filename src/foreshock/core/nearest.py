"""The name that was probably meant."""

import difflib
from collections.abc import Iterable


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """A clause that names the nearest known name; empty if none is near.

    >>> did_you_mean("rolback", ["rollback", "halt"])
    "; did you mean 'rollback'?"
    >>> did_you_mean("x", ["rollback", "halt"])
    ''
    """
    near = difflib.get_close_matches(str(name)[:80], list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
