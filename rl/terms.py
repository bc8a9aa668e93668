"""Optional terms beside the policy loss. Each is one micro-batch's part of a mean over all tokens of the batch.

So neither the number of micro-batches nor that of ranks changes a gradient: parts add up over
micro-batches, and what DeepSpeed averages over ranks is multiplied by their number here.
Letters: B rollouts of the micro-batch, N completion columns.
"""

from __future__ import annotations

from torch import Tensor


def token_mean(values: Tensor, mask: Tensor, total: Tensor, ranks: int) -> Tensor:
    """Part of the mean of ``values`` (B, N) over the ``total`` tokens of all micro-batches and ranks; 0 of none.

    ``mask`` (B, N) is 1 on the tokens that count.
    """
    return (values * mask).sum() * ranks / total.clamp(min=1)
