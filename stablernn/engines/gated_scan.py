"""``mingru`` and ``minlstm`` on the CPU: products with the inputs, gates and scan together, in the cache of a core.

Over a whole sequence, each operation of the gates would read and write tensors that are larger than the cache, most of
them in memory that must be mapped first. Here the work is done tile by tile, and a tile is one step of every chunk of
time. Its products and gates are used while they are in the cache, and the backward pass computes them again, so that
only the states are kept; the products of many features too, since it takes longer to compute them than to read them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from stablernn.buffers import BufferPool
from stablernn.engines.second_derivatives import differentiate_again

MAX_TILE_BYTES = 1 << 17
"""Size of one tensor of a tile: the ten or so that its operations touch fit in the second-level cache."""
MAX_FEATURES = 16
"""Features of an input up to which the backward pass computes the products with it again. One product of a tile takes 4
us with 2 features, 13 with 17 and 43 with 65; it takes about 15 to read it from memory."""
_SUMMED_TILES = 4
"""Tiles whose gradients by the matrices are summed in the precision of the states. Sums of more would lose digits: over
64 tiles of 512 rows the error is 6e-6 of the largest entry, and 6e-7 if those of tiles are summed in float64."""
_TILE_OPERATIONS = 8
"""Operations of a tile, in units of those that carry the state from chunk to chunk."""
_SMALLEST_TOTAL = 1e-17
"""Sum of two gates below which both are computed again from shifted arguments."""
_SHIFTED = -40.0
"""Larger argument of two closed gates after the shift: below it ``sigmoid(x)`` is ``exp(x)`` up to rounding."""


class Gates(Protocol):
    """The gates of a cell, functions of the blocks of a product with inputs, each ``(chunks, batch, units)``.

    Results are overwritten by the next call.
    """

    def map(self, blocks: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Return retention and increment."""
        ...

    def retention(self, blocks: Sequence[Tensor]) -> Tensor:
        """Return the retention, for which the last block is not needed."""
        ...

    def gradients(self, blocks: Sequence[Tensor], state: Tensor, grad: Tensor) -> tuple[Tensor, Sequence[Tensor]]:
        """Return the retention and the gradients by the blocks, which may take the place of the blocks.

        Args:
            blocks: The blocks.
            state: The state before the step.
            grad: The gradient by the state after it.
        """
        ...


class MinGRUGates:
    """``retention = sigmoid(-z)``, ``increment = sigmoid(z) candidate``."""

    def __init__(self, like: Tensor) -> None:
        self._retention, self._write = torch.empty_like(like), torch.empty_like(like)

    def map(self, blocks: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        z, candidate = blocks
        torch.sigmoid(z, out=self._write).mul_(candidate)
        return self.retention(blocks), self._write

    def retention(self, blocks: Sequence[Tensor]) -> Tensor:
        # Not 1 - sigmoid(z), which cancels digits of a small retention.
        return torch.neg(blocks[0], out=self._retention).sigmoid_()

    def gradients(self, blocks: Sequence[Tensor], state: Tensor, grad: Tensor) -> tuple[Tensor, Sequence[Tensor]]:
        z, candidate = blocks
        retention = self.retention(blocks)
        by_candidate = torch.sigmoid(z, out=self._write).mul_(grad)
        # The slope of the sigmoid is sigmoid(z) sigmoid(-z).
        by_z = torch.mul(by_candidate, retention, out=z).mul_(candidate.sub_(state))
        return retention, (by_z, by_candidate)


class MinLSTMGates:
    """``retention = f / (f + i)``, ``increment = i / (f + i) candidate`` of sigmoids f and i."""

    def __init__(self, like: Tensor) -> None:
        self._forget, self._input, self._total = (torch.empty_like(like) for _ in range(3))

    def map(self, blocks: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        retention, write = self._shares(blocks)
        return retention, write.mul_(blocks[2])

    def retention(self, blocks: Sequence[Tensor]) -> Tensor:
        return self._shares(blocks)[0]

    def gradients(self, blocks: Sequence[Tensor], state: Tensor, grad: Tensor) -> tuple[Tensor, Sequence[Tensor]]:
        f, i, candidate = blocks
        retention, write = self._shares(blocks)
        by_candidate = write.mul_(grad)
        # The gradient by log f - log i, of which the retention is the sigmoid.
        by_log = torch.sub(state, candidate, out=candidate).mul_(retention).mul_(by_candidate)
        # The slope of log sigmoid(x) is sigmoid(-x).
        by_f = f.neg_().sigmoid_().mul_(by_log)
        by_i = i.neg_().sigmoid_().mul_(by_log.neg_())
        return retention, (by_f, by_i, by_candidate)

    def _shares(self, blocks: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Return ``f / (f + i)`` and ``i / (f + i)``."""
        f, i = blocks[:2]
        forget, write = torch.sigmoid(f, out=self._forget), torch.sigmoid(i, out=self._input)
        total = torch.add(forget, write, out=self._total)
        if not total.min() > _SMALLEST_TOTAL:
            # Of two closed gates only the difference of the arguments matters.
            shift = torch.maximum(f, i).sub_(_SHIFTED).clamp_(max=0)
            torch.sub(f, shift, out=forget).sigmoid_()
            torch.sub(i, shift, out=write).sigmoid_()
            torch.add(forget, write, out=total)
        return forget.div_(total), write.div_(total)


GatesType = type[MinGRUGates | MinLSTMGates]
Compute = Callable[[list[Tensor | None]], list[Tensor]]


class GatedScan(torch.autograd.Function):
    """The states of a minimal cell after every step, ``(time, batch, units)``, or the last one, ``(batch, units)``.

    Args:
        pool: Where buffers come from.
        gates: The gates of the cell.
        compute: The same function of the tensors by operations that autograd can differentiate twice.
        every_state: Whether all states are returned.
        x: ``(batch, time, features)``.
        weight: ``(blocks * units, features)``.
        bias: ``(blocks * units,)``.
        first: The state before the first step, ``(batch, units)``.
    """

    @staticmethod
    def forward(
        ctx: Any,
        pool: BufferPool,
        gates: GatesType,
        compute: Compute,
        every_state: bool,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        first: Tensor,
    ) -> Tensor:
        time = x.shape[1]
        states = pool.take(x, time, *first.shape)
        matrices = _with_bias(weight, bias, first.shape[-1])
        saved: list[Tensor] = []
        last = first
        for part, count in _parts(time, first):
            tiles = _Tiles(gates, x[:, part], matrices, count, pool)
            tiles.store_products()
            last, totals = tiles.forward(states[part], last)
            saved += [totals, tiles.stored_products]
        ctx.pool, ctx.gates, ctx.compute, ctx.every_state = pool, gates, compute, every_state
        ctx.save_for_backward(x, weight, bias, first, states, *saved)
        return states if every_state else states[-1].clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, first, states, *saved = ctx.saved_tensors
        (grad,) = grads
        if torch.is_grad_enabled():
            # create_graph=True
            return None, None, None, None, *differentiate_again(ctx.compute, [x, weight, bias, first], [grad])
        matrices = _with_bias(weight, bias, first.shape[-1])
        by_matrices = torch.zeros_like(matrices, dtype=torch.float64)
        by_x = ctx.pool.take(x, *x.shape) if ctx.needs_input_grad[4] else None
        by_last = torch.zeros_like(first) if ctx.every_state else grad
        for part, count in reversed(_parts(x.shape[1], first)):
            tiles = _Tiles(ctx.gates, x[:, part], matrices, count, ctx.pool)
            tiles.stored_products, totals = saved.pop(), saved.pop()
            by_last = tiles.backward(
                states[part],
                states[part.start - 1] if part.start else first,
                totals,
                grad[part] if ctx.every_state else None,
                by_last,
                by_matrices,
                None if by_x is None else by_x[:, part],
            )
        by_weight = by_matrices.mT.reshape(len(weight), -1).to(weight.dtype)
        return None, None, None, None, by_x, by_weight[:, :-1], by_weight[:, -1], by_last


def _with_bias(weight: Tensor, bias: Tensor, units: int) -> Tensor:
    """Return the transposed matrix of each block with its bias as the last row, ``(blocks, features + 1, units)``."""
    return torch.unflatten(torch.cat([weight, bias[:, None]], dim=1), 0, (-1, units)).mT.contiguous()


class _Tiles:
    """Chunks of time side by side: a tile is one step of each, ``(count, batch, units)``.

    Args:
        gates: The gates of the cell.
        x: The input, ``(batch, count * length, features)``.
        matrices: ``(blocks, features + 1, units)``, from :func:`_with_bias`.
        count: Chunks.
        pool: Where buffers come from.
    """

    def __init__(self, gates: GatesType, x: Tensor, matrices: Tensor, count: int, pool: BufferPool) -> None:
        batch, steps, features = x.shape
        self._count, self._pool, self._matrices, length = count, pool, matrices.unbind(0), steps // count
        # (length, count, batch, features + 1): the rows of a tile are next to each other, ones for the bias.
        self._inputs = pool.take(x, length, count, batch, features + 1)
        self._inputs[..., -1] = 1
        self._inputs[..., :-1] = torch.unflatten(x, 1, (count, length)).permute(2, 1, 0, 3)
        self._rows = self._inputs.flatten(1, 2).unbind(0)
        self._products = x.new_empty(len(matrices), count * batch, matrices.shape[-1])
        self._blocks = torch.unflatten(self._products, 1, (count, batch)).unbind(0)
        self._carried = torch.empty_like(self._blocks[0])
        self._gates: Gates = gates(self._carried)
        self.stored_products = x.new_empty(0)
        """The products of all tiles, ``(blocks, length, count * batch, units)``, or empty."""

    def store_products(self) -> None:
        """Compute the products of all tiles at once if there are many features."""
        length, *_, features = self._inputs.shape
        if features - 1 > MAX_FEATURES:
            blocks, rows, units = self._products.shape
            self.stored_products = self._pool.take(self._inputs, blocks, length, rows, units)
            for matrix, block in zip(self._matrices, self.stored_products, strict=True):
                torch.mm(self._inputs.flatten(0, 2), matrix, out=block.flatten(0, 1))

    def forward(self, states: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
        """Write all states; return the last one and the product of the retentions of each chunk."""
        tiles = self._tiles(states)
        if self._count == 1:
            before = first[None]
            for index, tile in enumerate(tiles):
                retention, increment = self._gates.map(self._project(index))
                torch.addcmul(increment, retention, before, out=tile)
                before = tile
            return states[-1], first.new_empty(0)
        # The states of chunks that begin at zero, and the products by which their first states reach each step.
        products = self._pool.take(states, *states.shape)
        product_tiles = self._tiles(products)
        for index, (tile, product) in enumerate(zip(tiles, product_tiles, strict=True)):
            retention, increment = self._gates.map(self._project(index))
            if index:
                torch.addcmul(increment, retention, tiles[index - 1], out=tile)
                torch.mul(retention, product_tiles[index - 1], out=product)
            else:
                tile.copy_(increment)
                product.copy_(retention)
        # (count, batch, units), by which the first state of a chunk reaches its last one.
        totals = product_tiles[-1].contiguous()
        starts = self._carried
        starts[0] = first
        for chunk in range(1, self._count):
            torch.addcmul(tiles[-1][chunk - 1], totals[chunk - 1], starts[chunk - 1], out=starts[chunk])
        # (count, length, batch, units)
        chunks = torch.unflatten(states, 0, (self._count, -1))
        chunks.addcmul_(products.view_as(chunks), starts[:, None])
        return states[-1], totals

    def backward(
        self,
        states: Tensor,
        first: Tensor,
        totals: Tensor,
        by_states: Tensor | None,
        by_last: Tensor,
        by_matrices: Tensor,
        by_x: Tensor | None,
    ) -> Tensor:
        """Add the gradient by the matrices, write that by the input, and return that by the first state.

        Args:
            states: The states after every step.
            first: The state before the first one.
            totals: As :meth:`forward` returned them.
            by_states: The gradients by the states as outputs; None for zeros.
            by_last: The gradient by the last state from what comes after it.
            by_matrices: The gradient to which that by the matrices is added, in float64.
            by_x: Where the gradient by the input is written; None if it is not needed.
        """
        grads = None if by_states is None else self._tiles(by_states)
        tiles = self._tiles(states)
        starts = torch.cat([first[None], tiles[-1][:-1]])
        sums = torch.zeros_like(by_matrices, dtype=states.dtype)
        by_inputs = None
        if by_x is not None:
            by_inputs = self._pool.take(by_x, len(tiles), self._products.shape[1], by_x.shape[-1]).zero_()
        adjoint = self._carry_back(totals, grads, by_last)
        for index in reversed(range(len(tiles))):
            if grads is not None:
                adjoint.add_(grads[index])
            before = tiles[index - 1] if index else starts
            # The gates' arguments are computed again: reading them from memory takes longer.
            retention, gradients = self._gates.gradients(self._project(index), before, adjoint)
            for matrix, block_sum, gradient in zip(self._matrices, sums.unbind(0), gradients, strict=True):
                gradient_rows = gradient.flatten(0, 1)
                block_sum.addmm_(self._rows[index].t(), gradient_rows)
                if by_inputs is not None:
                    by_inputs[index].addmm_(gradient_rows, matrix[:-1].t())
            adjoint.mul_(retention)
            if index % _SUMMED_TILES == 0:
                by_matrices.add_(sums)
                sums.zero_()
        if by_x is not None and by_inputs is not None:
            chunks = torch.unflatten(by_inputs, 1, (self._count, -1)).permute(2, 1, 0, 3)
            torch.unflatten(by_x, 1, (self._count, -1)).copy_(chunks)
        return adjoint[0]

    def _carry_back(self, totals: Tensor, grads: Sequence[Tensor] | None, by_last: Tensor) -> Tensor:
        """Return the gradient by the state after each chunk from what comes after the chunk."""
        adjoint = self._carried
        adjoint[-1] = by_last
        if self._count == 1:
            return adjoint
        # What the steps of a chunk give to its start.
        by_starts = torch.zeros_like(adjoint)
        for index in reversed(range(len(grads or ()))):
            assert grads is not None
            by_starts.add_(grads[index]).mul_(self._gates.retention(self._project(index, blocks=len(self._blocks) - 1)))
        for chunk in range(self._count - 1, 0, -1):
            torch.addcmul(by_starts[chunk], totals[chunk], adjoint[chunk], out=adjoint[chunk - 1])
        return adjoint

    def _tiles(self, sequence: Tensor) -> tuple[Tensor, ...]:
        return torch.unflatten(sequence, 0, (self._count, -1)).unbind(1)

    def _project(self, index: int, blocks: int | None = None) -> Sequence[Tensor]:
        """Return the products of a tile with its inputs, of all blocks or the first ones, which may be overwritten."""
        if self.stored_products.numel():
            self._products[:blocks] = self.stored_products[:blocks, index]
            return self._blocks
        for matrix, product in zip(self._matrices[:blocks], self._products, strict=False):
            torch.mm(self._rows[index], matrix, out=product)
        return self._blocks


def _parts(time: int, first: Tensor) -> list[tuple[slice, int]]:
    """Return steps and the number of their chunks: those of chunks of one length, and those that remain."""
    count = count_chunks(time, first.numel() * first.element_size())
    end = time - time % count
    return [(slice(0, end), count), *([(slice(end, time), 1)] if end < time else [])]


@functools.lru_cache(maxsize=1024)
def count_chunks(time: int, step_bytes: int) -> int:
    """Return the number of chunks side by side for the fewest operations; steps that fill no chunk run on their own.

    Args:
        time: Steps of the sequence, 1 or more.
        step_bytes: Size of the state of one step.
    """
    limit = max(1, min(time, MAX_TILE_BYTES // max(1, step_bytes), 4 * int(time**0.5)))

    def cost(count: int) -> int:
        return _TILE_OPERATIONS * (time // count + time % count) + (2 * count if count > 1 else 0)

    return min(range(1, limit + 1), key=cost)
