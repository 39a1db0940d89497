"""Whether states fit: a snapshot's to the run that reads it, and those of the ranks."""

from typing import Any

from foreshock.core.errors import SnapshotError
from foreshock.snapshots.codec import decode
from foreshock.snapshots.sharded_manifest import Manifest
from foreshock.snapshots.sharded_state import ShardedState, path_of, sharded_state


def fitted(manifest: Manifest, live: ShardedState) -> dict[str, Any]:
    """The snapshot's tree with the live tensors in it, if they are the ones it needs.

    Raises:
        SnapshotError: the run has other tensors, or the structure is damaged.
    """
    name = f"snapshot {manifest.ref.id}"
    stored, wanted = manifest.tensors, live.parts
    for one in sorted(stored.keys() ^ wanted.keys()):
        there, here = ("holds", "has not") if one in stored else ("does not hold", "has")
        raise SnapshotError(f"{name} {there} {one:.200}, which this run {here}")
    for one, part in wanted.items():
        given, needed = stored[one], (part.tensor.dtype, tuple(part.shape))
        if given[:2] != needed:
            raise SnapshotError(
                f"{name} holds {one} as {given.dtype} of shape {given.shape}, where this run has "
                f"{needed[0]} of shape {needed[1]}"
            )
    try:
        tree = decode(manifest.structure, live.tensors)
        again = sharded_state(tree).structure
    except SnapshotError as error:
        raise SnapshotError(f"{name}: {error}") from error
    if not isinstance(tree, dict) or again != manifest.structure:
        raise SnapshotError(f"{name}: its structure is damaged")
    return tree


def difference(outlines: list[Any]) -> str:
    """What is not the same on every rank, from each one's `outline`."""
    for rank, (structure, rows) in enumerate(outlines):
        first_structure, first_rows = outlines[0]
        odd = [row for row in rows if row not in first_rows] or [
            row for row in first_rows if row not in rows
        ]
        if odd:
            return f"ranks 0 and {rank} differ in what they hold: {odd[0]!s:.200}"
        if structure != first_structure:
            place = _first_difference(first_structure, structure, "")
            return f"ranks 0 and {rank} hold different values of {place:.200}"
    return "the ranks hold different states"


def _first_difference(one: Any, two: Any, path: str) -> str:
    """Where two structures with sorted keys differ."""
    ((kind, content),), ((other_kind, other),) = one.items(), two.items()
    if kind == other_kind and kind in ("l", "u", "d") and len(content) == len(other):
        for index, (left, right) in enumerate(zip(content, other, strict=True)):
            if left == right:
                continue
            if kind != "d":
                return _first_difference(left, right, f"{path}/{index}")
            if left[0] == right[0]:
                return _first_difference(left[1], right[1], path_of(path, left[0]))
    return path or "/"
