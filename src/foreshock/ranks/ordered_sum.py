"""Gradients summed in the order of ranks, so that a restart gives the same bits."""

import torch
import torch.distributed as dist

from foreshock.ranks.exchange import Group, num_ranks


def ordered_mean(group: Group, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Mean over ranks of a DDP bucket, each element summed in the order of ranks.

        model.register_comm_hook(None, ordered_mean)

    A ring sums each element in an order that depends on where it lies in its bucket, and DDP
    lays its buckets out anew after the first backward pass. So on three ranks or more the
    first step after a restart rounds otherwise than the same step of a run that went on. With
    this hook it does not. As many bytes travel as in a ring: every rank sums its own part of
    the bucket, and all get all parts. On two ranks any order gives the same bits.

    Args:
        group: DDP's ranks; None is all of them.
        bucket: `torch.distributed.GradBucket`; its buffer is overwritten.

    No source: our choice, because a recovery must be provable bit for bit.
    """
    flat = bucket.buffer()
    size = num_ranks(group)
    each = -(-flat.numel() // size)
    padded = flat.new_zeros(each * size)
    padded[: flat.numel()] = flat
    parts = torch.empty_like(padded)
    dist.all_to_all_single(parts, padded, group=group)
    rows = parts.view(size, each)
    total = rows[0].clone()
    for row in rows[1:]:
        total += row
    total /= size
    dist.all_gather_single(padded, total, group=group)
    flat.copy_(padded[: flat.numel()])
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(flat)
    return done
