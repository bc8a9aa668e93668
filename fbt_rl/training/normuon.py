"""NorMuon for matrices and Adam for the rest, in one optimiser, whole or under ZeRO (METHOD 1.4).

    M <- mu M + G;  O = orth(M)
    v <- beta2 v + (1 - beta2) mean over columns of O^2         one value an output row
    O' = O / (sqrt(v) + eps), rescaled to the Frobenius norm of O
    W <- W - (lr^2 / lr_max) decay W - lr sqrt(d_out / d_in) O'

Muon: Jordan et al. 2024; the row normalisation: Li et al. 2025, arXiv 2510.05491; decay that falls with
the square of the rate (AdamC): Defazio 2025, arXiv 2506.02285. A matrix whose gradient is zero throughout,
as the feedback's in a one-pass step, is left as it is: orthogonalised, its old momentum would
move it by a full step.

Each matrix is orthogonalised once, on one rank; see :mod:`fbt_rl.training.zero_layout`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import AdamW

from fbt_rl.training.zero_layout import OwnerExchange, Slice, balanced_owners, full_shape, local_slices

Blocks = tuple[int, ...]  # the rows of each block of a matrix

_EPS = 1e-8
_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)  # Jordan et al. 2024: five steps take singular values to about 1
_NEWTON_SCHULZ_STEPS = 5


def orthogonalize(matrices: Tensor) -> Tensor:
    """The nearest (semi-)orthogonal matrices, roughly: (n, rows, columns) or (rows, columns), any scale.

    In bf16 on a GPU, as is usual; in the given precision on a CPU.
    """
    a, b, c = _NEWTON_SCHULZ
    x = matrices.bfloat16() if matrices.is_cuda else matrices
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-20)
    for _ in range(_NEWTON_SCHULZ_STEPS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x.mT if tall else x).to(matrices.dtype)


def normalized_update(momentum: Tensor, moment: Tensor, beta2: float) -> tuple[Tensor, Tensor]:
    """``sqrt(d_out / d_in) O'`` (n, d_out, d_in) and the new row moments v (n, d_out), from M and the old ones."""
    update = orthogonalize(momentum)
    moment = beta2 * moment + (1 - beta2) * update.square().mean(-1)
    normalized = update / (moment.sqrt() + _EPS)[..., None]
    norms = [matrix.norm(dim=(-2, -1), keepdim=True) for matrix in (update, normalized)]
    rows, columns = momentum.shape[-2:]
    return normalized * (norms[0] / norms[1].clamp(min=_EPS)) * (rows / columns) ** 0.5, moment


class MatrixOptimizer(AdamW):
    """NorMuon on ``matrices``, Adam on ``others``.

    (Its name avoids "Muon", by which DeepSpeed would put its own treatment in place.)

    Args:
        matrices: two-dimensional parameters.
        betas: mu and beta2.
        blocks: for each matrix the rows of the blocks it is made of, as of fused q, k, v: orthogonalised apart.
        engine_optimizer: gives DeepSpeed's optimiser around this one, None while that is being made. DeepSpeed may
            then step once, on zero gradients: matrices stay. Itself None without DeepSpeed.
    """

    def __init__(
        self,
        matrices: Sequence[nn.Parameter],
        others: Sequence[nn.Parameter],
        *,
        blocks: Sequence[Blocks],
        learning_rate: float,
        adam_learning_rate: float,
        betas: tuple[float, float] = (0.95, 0.95),
        weight_decay: float = 0.01,
        adam_betas: tuple[float, float] = (0.9, 0.95),
        engine_optimizer: Callable[[], Any] | None = None,
    ) -> None:
        normuon = {"lr": learning_rate, "betas": betas, "weight_decay": weight_decay, "matrices": True}
        adam = {"lr": adam_learning_rate, "betas": adam_betas, "weight_decay": 0.0, "matrices": False}
        groups = [{"params": list(matrices), **normuon}, {"params": list(others), **adam}]
        super().__init__([group for group in groups if group["params"]])
        self._matrices = list(matrices)
        self._blocks = {id(matrix): rows for matrix, rows in zip(matrices, blocks, strict=True)}
        self._engine_optimizer = engine_optimizer
        self._parts: list[_Part] = []

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One step; under ZeRO-3 one for each of its sub-groups, of which only one is in the groups at a time."""
        matrices = [tensor for group in self.param_groups if group["matrices"] for tensor in group["params"]]
        gradients = {tensor: tensor.grad for tensor in matrices if tensor.grad is not None}
        for tensor in gradients:
            tensor.grad = None  # AdamW passes over it
        super().step(closure)
        for tensor, gradient in gradients.items():
            tensor.grad = gradient
        if gradients:
            group = next(group for group in self.param_groups if group["matrices"])
            for part in self._bound():
                if any(flat in gradients for flat in part.flats):
                    part.step(group, self.state)

    def _bound(self) -> list[_Part]:
        engine_optimizer = self._engine_optimizer and self._engine_optimizer()
        made = engine_optimizer is not None or self._engine_optimizer is None
        if made and not self._parts and self._matrices:
            index = next(index for index, group in enumerate(self.param_groups) if group["matrices"])
            lists = local_slices(self._matrices, index, engine_optimizer)
            self._parts = [_Part(slices, self._blocks) for slices in lists]
        return self._parts


class _Part:
    """The matrices that are updated together: all of them, or those of one sub-group of ZeRO-3."""

    def __init__(self, slices: list[Slice], blocks: dict[int, Blocks]) -> None:
        self.slices = slices
        self.flats = list(dict.fromkeys(piece.flat for piece in slices))
        self.shapes = [full_shape(piece.parameter) for piece in slices]
        self.blocks = [blocks[id(piece.parameter)] for piece in slices]
        self.row_counts = [_row_counts(piece, columns) for piece, (_, columns) in zip(slices, self.shapes, strict=True)]
        costs = [
            sum(rows * columns * min(rows, columns) for rows in parts)
            for parts, (_, columns) in zip(self.blocks, self.shapes, strict=True)
        ]
        owners = balanced_owners(costs, dist.get_world_size() if dist.is_initialized() else 1)
        elements = [(piece.start, piece.length) for piece in slices]
        self.elements = OwnerExchange(owners, elements, elements)
        touched = [
            (piece.start // columns, len(counts))
            for piece, (_, columns), counts in zip(slices, self.shapes, self.row_counts, strict=True)
        ]
        begun = [
            (-(-piece.start // columns), len(counts) - (piece.start % columns > 0 and piece.length > 0))
            for piece, (_, columns), counts in zip(slices, self.shapes, self.row_counts, strict=True)
        ]
        self.rows = OwnerExchange(owners, begun, touched)

    def step(self, group: dict[str, Any], state: dict[Tensor, Any]) -> None:
        momentum, beta2 = group["betas"]
        on_gpu = dist.is_initialized() and dist.get_backend() == "nccl"  # also what ZeRO has offloaded
        device = torch.device("cuda") if on_gpu else self.flats[0].device
        for flat in self.flats:
            if "exp_avg" not in state[flat]:  # Adam's names, by which DeepSpeed's tools know the state of an optimiser
                state[flat]["step"] = torch.tensor(0.0)
                state[flat] |= {"exp_avg": torch.zeros_like(flat), "exp_avg_sq": torch.zeros_like(flat)}
            state[flat]["step"] += 1
        gradients = [
            _view(piece, torch.zeros_like(piece.flat) if piece.flat.grad is None else piece.flat.grad)
            for piece in self.slices
        ]
        averages = [_view(piece, state[piece.flat]["exp_avg"]) for piece in self.slices]
        # Row moments lie repeated along their rows, in the place of Adam's second moments.
        moments = [_view(piece, state[piece.flat]["exp_avg_sq"]) for piece in self.slices]

        moving = self._moving(gradients, device)
        for average, gradient, moves in zip(averages, gradients, moving, strict=True):
            if moves:
                average.mul_(momentum).add_(gradient)
        begun = [
            moment[-piece.start % columns :: columns]
            for piece, moment, (_, columns) in zip(self.slices, moments, self.shapes, strict=True)
        ]
        whole_averages = self.elements.to_owners([average.to(device) for average in averages])
        whole_moments = self.rows.to_owners([values.to(device) for values in begun])
        updates = self._updates(whole_averages, whole_moments, beta2)
        like = self.flats[0].new_empty(0, device=device)
        new_updates, new_moments = self.elements.from_owners(updates, like), self.rows.from_owners(whole_moments, like)

        rate, peak = group["lr"], group.get("initial_lr", group["lr"])
        decay = rate * rate / peak * group["weight_decay"] if peak else 0.0
        for index, piece in enumerate(self.slices):
            if moving[index] and piece.length:
                counts = self.row_counts[index].to(device)
                moments[index].copy_(new_moments[index].repeat_interleave(counts))
                weights = _view(piece, piece.flat)
                weights.mul_(1 - decay).add_(new_updates[index].to(weights), alpha=-rate)

    def _moving(self, gradients: list[Tensor], device: torch.device) -> list[bool]:
        """Which matrices have a gradient on any rank."""
        flags = torch.stack([gradient.count_nonzero() for gradient in gradients]).clamp(max=1).to(device)
        if dist.is_initialized():
            dist.all_reduce(flags, op=dist.ReduceOp.MAX)
        return flags.bool().tolist()

    def _updates(self, averages: dict[int, Tensor], moments: dict[int, Tensor], beta2: float) -> dict[int, Tensor]:
        """``sqrt(d_out / d_in) O'`` of the owned matrices, flat; renews their row ``moments`` in place."""
        same_shape: dict[torch.Size, list[tuple[Tensor, Tensor]]] = defaultdict(list)
        for index, average in averages.items():
            matrix = average.view(self.shapes[index])
            pairs = zip(matrix.split(self.blocks[index]), moments[index].split(self.blocks[index]), strict=True)
            for block, moment in pairs:
                same_shape[block.shape].append((block, moment))
        for blocks in same_shape.values():
            stacked, old_moments = (torch.stack(each) for each in zip(*blocks, strict=True))
            update, moment = normalized_update(stacked, old_moments, beta2)
            for (block, old), new, values in zip(blocks, update, moment, strict=True):
                block.copy_(new)  # a received copy, or the view that is not needed again
                old.copy_(values)
        return averages


def _view(piece: Slice, flat: Tensor) -> Tensor:
    return flat.view(-1).narrow(0, piece.offset, piece.length)


def _row_counts(piece: Slice, columns: int) -> Tensor:
    """How many elements of each row that it touches a slice holds."""
    if not piece.length:
        return torch.zeros(0, dtype=torch.long)
    edges = torch.arange(piece.start // columns, -(-(piece.start + piece.length) // columns) + 1) * columns
    return edges.clamp(piece.start, piece.start + piece.length).diff()
