"""Which part of each parameter ZeRO keeps on this rank, and bringing the parts of whole matrices together.

ZeRO hands an optimiser flat pieces of its parameter groups, but orthogonalisation needs whole
matrices. :func:`local_slices` reads from DeepSpeed where the pieces of each matrix lie,
:class:`OwnerExchange` sends them to one owner each and the results back.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

Range = tuple[int, int]  # start and length within the flattened parameter


def full_shape(parameter: Any) -> tuple[int, ...]:
    """The shape of a whole parameter, of which ZeRO-3 leaves an empty tensor in its place."""
    return tuple(getattr(parameter, "ds_shape", parameter.shape))


@dataclass(frozen=True)
class Slice:
    """A part of one parameter as it lies on this rank: ``flat[offset : offset + length]`` is ``[start, ...)`` of it."""

    parameter: nn.Parameter
    flat: Tensor
    offset: int
    start: int
    length: int


def local_slices(parameters: Sequence[nn.Parameter], group: int, engine_optimizer: Any) -> list[list[Slice]]:
    """This rank's parts of ``parameters``, those of optimiser group number ``group``; a list for each call of step.

    Every rank gets the same lists in the same order; a parameter of which this rank holds nothing has length 0.
    ``engine_optimizer`` is DeepSpeed's, around the client's (None: there is no DeepSpeed). At stage 0 a flat tensor
    is a whole parameter, at stage 3 step is called once for each sub-group.
    """
    if hasattr(engine_optimizer, "fp16_groups") and hasattr(engine_optimizer, "sub_group_to_group_id"):
        return _stage_3(group, engine_optimizer)
    mapped = getattr(engine_optimizer, "bit16_groups", None) or getattr(engine_optimizer, "bf16_groups", None)
    client = getattr(engine_optimizer, "optimizer", engine_optimizer)
    if mapped is not None:  # stages 1 and 2
        return [[_mapped(parameter, client.param_groups[group]["params"][0]) for parameter in mapped[group]]]
    # Stage 0: whole parameters, or their fp32 masters in the same order.
    tensors = parameters if client is None else client.param_groups[group]["params"]
    pairs = zip(parameters, tensors, strict=True)
    return [[Slice(parameter, tensor, 0, 0, tensor.numel()) for parameter, tensor in pairs]]


def _mapped(parameter: Any, flat: Tensor) -> Slice:
    mapping = parameter._hp_mapping  # None where no part of it is on this rank
    if mapping is None:
        return Slice(parameter, flat, 0, 0, 0)
    inside, whole = mapping.hp_fragment_address, mapping.lp_fragment_address
    return Slice(parameter, flat, inside.start, whole.start, inside.numel)


def _stage_3(group: int, engine_optimizer: Any) -> list[list[Slice]]:
    rank = dist.get_rank(engine_optimizer.dp_process_group)
    lists = []
    for index, parameters in enumerate(engine_optimizer.fp16_groups):
        if engine_optimizer.sub_group_to_group_id[index] != group:
            continue
        flat, offset, slices = engine_optimizer.fp32_partitioned_groups_flat[index], 0, []
        for parameter in parameters:
            part = parameter.partition_numel()  # the last rank's may end in padding
            start = min(rank * part, parameter.ds_numel)
            slices.append(Slice(parameter, flat, offset, start, min(part, parameter.ds_numel - start)))
            offset += part
        lists.append(slices)
    return lists


def balanced_owners(costs: Sequence[float], ranks: int) -> list[int]:
    """An owner for each matrix, the loads being about equal: the dearest first, each to the least loaded rank."""
    loads = [(0.0, rank) for rank in range(ranks)]
    owners = [0] * len(costs)
    for index in sorted(range(len(costs)), key=lambda index: -costs[index]):
        load, rank = heapq.heappop(loads)
        owners[index] = rank
        heapq.heappush(loads, (load + costs[index], rank))
    return owners


class OwnerExchange:
    """Moves parts of some vectors between the ranks that keep them and the one rank that owns each.

    Args:
        owners: the owning rank of each vector.
        given: what this rank gives of each vector. The parts of all ranks make it up, or each is all of it.
        taken: what this rank wants back of each.
    """

    def __init__(self, owners: Sequence[int], given: Sequence[Range], taken: Sequence[Range]) -> None:
        self.rank, self.ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        gathered: list[Any] = [(list(given), list(taken))]
        if self.ranks > 1:
            gathered *= self.ranks
            dist.all_gather_object(gathered, (list(given), list(taken)))
        self._given, self._taken = [each[0] for each in gathered], [each[1] for each in gathered]
        self._of = [[index for index, owner in enumerate(owners) if owner == rank] for rank in range(self.ranks)]
        self._sizes = [max(start + length for start, length in parts) for parts in zip(*self._given, strict=True)]
        for index, owner in enumerate(owners):
            if self._given[owner][index][1] == self._sizes[index]:  # it has it all: nobody else need send
                for rank in set(range(self.ranks)) - {owner}:
                    self._given[rank][index] = (0, 0)

    def to_owners(self, parts: Sequence[Tensor]) -> dict[int, Tensor]:
        """``parts``: what this rank gives of every vector, on one device. Returns the whole vectors that it owns."""
        given, mine = self._given[self.rank], self._of[self.rank]
        sent = [[parts[index][: given[index][1]] for index in indices] for indices in self._of]
        received = self._all_to_all(sent, [[ranges[index][1] for index in mine] for ranges in self._given], parts[0])
        whole = {index: parts[0].new_empty(self._sizes[index]) for index in mine}
        for ranges, pieces in zip(self._given, received, strict=True):
            for index, piece in zip(mine, pieces, strict=True):
                whole[index].narrow(0, *ranges[index]).copy_(piece)
        return whole

    def from_owners(self, whole: dict[int, Tensor], like: Tensor) -> list[Tensor]:
        """The owners' vectors -> what this rank takes of each; ``like`` has their device and type."""
        mine, taken = self._of[self.rank], self._taken[self.rank]
        sent = [[whole[index].narrow(0, *ranges[index]) for index in mine] for ranges in self._taken]
        received = self._all_to_all(sent, [[taken[index][1] for index in indices] for indices in self._of], like)
        parts = {
            index: piece
            for indices, pieces in zip(self._of, received, strict=True)
            for index, piece in zip(indices, pieces, strict=True)
        }
        return [parts[index] for index in range(len(parts))]

    def _all_to_all(self, sent: list[list[Tensor]], lengths: list[list[int]], like: Tensor) -> list[list[Tensor]]:
        """``sent`` by receiving rank; ``lengths`` of what comes, by sending rank."""
        if self.ranks == 1:
            return sent
        sizes = [sum(each) for each in lengths]
        received = like.new_empty(sum(sizes))
        dist.all_to_all_single(
            received,
            torch.cat([like.new_empty(0), *(piece for pieces in sent for piece in pieces)]),
            output_split_sizes=sizes,
            input_split_sizes=[sum(piece.numel() for piece in pieces) for pieces in sent],
        )
        return [list(part.split(each)) for part, each in zip(received.split(sizes), lengths, strict=True)]
