"""What a rank adds to a sum over ranks, where parameters are sharded or held several times."""

import torch

from foreshock.core.signal import Reduction, Site


class Shares:
    """Weighs partial values of parameters, so that their sum over ranks is that of the whole.

    Where no parameter is sharded every rank has the whole, and nothing is weighed.

    Args:
        site: whose parameters.
        device: where the partial values lie.
    """

    def __init__(self, site: Site, device: torch.device) -> None:
        self.are_sharded = any(site.sharded)
        """Whether any parameter is spread over ranks."""
        self.counts_add_up = Reduction.SUM if self.are_sharded else Reduction.SAME
        """How weighed counts are joined."""
        self._roots = torch.tensor(site.share_of_copies, dtype=torch.float64, device=device)

    def of_norms(self, norms: torch.Tensor) -> torch.Tensor:
        """Weigh norms `[..., P]` for the root of a sum of squares."""
        return norms * self._roots if self.are_sharded else norms

    def of_counts(self, counts: torch.Tensor) -> torch.Tensor:
        """Weigh counts or sums `[..., P]` for a sum."""
        return counts * self._roots.square() if self.are_sharded else counts
