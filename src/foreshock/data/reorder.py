"""The rest of a stage in another order, from a position of the run on."""

from dataclasses import dataclass

from foreshock.data.feistel import feistel, feistel_inverse, mix64


@dataclass(frozen=True, kw_only=True)
class Reorder:
    """A permutation of raw positions that leaves all before `position` where they are.

    What is left of the repeat under way is permuted among itself, and so is every later
    repeat of the same stage, each afresh. Nothing crosses the end of a repeat or of the
    stage, so a repeat still visits what it visited, as often.

    Args:
        position: first raw position that may change.
        seed: any integer; chooses the permutation.
        stage_start: raw position at which the stage under way began.
        stage_stop: where it ends; None if it is endless.
        num_per_repeat: positions in one repeat of it.

    >>> one = Reorder(position=3, seed=1, stage_start=0, stage_stop=20, num_per_repeat=10)
    >>> [one.forward(p) for p in (0, 1, 2, 20)], sorted(one.forward(p) for p in range(3, 10))
    ([0, 1, 2, 20], [3, 4, 5, 6, 7, 8, 9])
    """

    position: int
    seed: int
    stage_start: int
    stage_stop: int | None
    num_per_repeat: int

    def forward(self, position: int) -> int:
        """Return the position whose sample stands at `position` from now on."""
        start, size = self._stretch(position)
        return start + feistel(position - start, size, self._key(start)) if size else position

    def backward(self, position: int) -> int:
        """Undo `forward`."""
        start, size = self._stretch(position)
        return (
            start + feistel_inverse(position - start, size, self._key(start)) if size else position
        )

    def _stretch(self, position: int) -> tuple[int, int]:
        """Where the permuted stretch with this position begins, and its size; 0 for none."""
        beyond = self.stage_stop is not None and position >= self.stage_stop
        if position < self.position or beyond:
            return position, 0
        repeat = (position - self.stage_start) // self.num_per_repeat
        start = self.stage_start + repeat * self.num_per_repeat
        stop = start + self.num_per_repeat
        start = max(start, self.position)
        return start, stop - start

    def _key(self, start: int) -> int:
        word = (1 << 64) - 1
        return mix64(mix64((self.seed ^ 0x5EED) & word) ^ mix64(start & word))
