"""A whole sequence in about 3 sqrt(time) operations in place of several a step, for linear diagonal recurrences.

Composing steps ``h -> a h + b`` is associative, so that parts of a sequence can be run at once (Martin and Cundy,
"Parallelizing linear recurrent neural nets over sequence length", ICLR 2018). Time is cut into chunks of about
sqrt(time) steps. All chunks run side by side from a state of zero, one step after the other; then the state is carried
from chunk to chunk, and what each chunk's first state adds to its steps is added to them. On a GPU with the package
triton one kernel runs all steps in their order.

``mingru`` and ``minlstm`` on the CPU: products with the inputs, gates and scan together, in the cache of a core. Over a
whole sequence, each operation of the gates would read and write tensors that are larger than the cache, most of them in
memory that must be mapped first. Here the work is done tile by tile, and a tile is one step of every chunk of time. Its
products and gates are used while they are in the cache, and the backward pass computes them again, so that only the
states are kept; the products of many features too, since it takes longer to compute them than to read them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from stablernn.buffers import BufferPool, pool_of
from stablernn.cells import StableCell, State, Weights
from stablernn.cells._diagonal_recurrence import DiagonalCell
from stablernn.cells.mingru import MinGRUCell, MinLSTMCell
from stablernn.engines.base import Result, differentiate_again, register_engine
from stablernn.engines.triton.plan import runs_on
from stablernn.transforms import is_transformed

MAX_STEP_BYTES = 1 << 16
"""Size of a step's state beyond which steps run one after the other: they then take longer than it takes to launch
them, and chunks would read and write everything a second time."""

SUMMED_BYTES = 1 << 18
"""Size of the parts in which products of states are summed: they stay in the cache of a core."""

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


class ScanEngine:
    """Runs ``lru``, ``mingru`` and ``minlstm``, whose steps are linear in the state.

    Values and gradients equal those of the loop up to rounding, second derivatives included. While a program transforms
    or records the operations, ``auto`` takes the loop.
    """

    name = "scan"
    takes_drive = True

    def supports(self, cell: StableCell, drive: Tensor, *, timed: bool = False) -> bool:
        return (
            isinstance(cell, DiagonalCell)
            and drive.dtype in (torch.float32, torch.float64)
            and not timed
            and not torch.is_autocast_enabled(drive.device.type)
            and not is_transformed()
        )

    def run_inputs(
        self,
        cell: StableCell,
        weights: Weights,
        x: Tensor,
        state: State,
        valid: Tensor | None,
        *,
        every_output: bool = True,
    ) -> Result:
        gates = _GATES.get(type(cell))
        # A mode such as FakeTensorMode replaces torch's functions, and its tensors may have no memory.
        has_mode = torch._C._len_torch_dispatch_stack() > 0
        if gates is None or x.device.type != "cpu" or has_mode or x.numel() == 0:
            drive = cell.drive(x.transpose(0, 1).contiguous()).transpose(0, 1)
            return self.run(cell, weights, drive, state, valid, every_output=every_output)
        assert isinstance(cell, MinGRUCell | MinLSTMCell)
        every_state = every_output or valid is not None
        tensors = x, cell.weight_ih, cell.bias_ih, state[0]
        compute = partial(_gated_scan, cell, every_state)
        states = cast("Tensor", GatedScan.apply(pool_of(cell), gates, compute, every_state, *tensors))  # type: ignore[no-untyped-call]
        if not every_state:
            return None, (states,)
        return _result(cell, weights, states[:, :, None], None, state, valid, every_output=every_output)

    def run(
        self,
        cell: StableCell,
        weights: Weights,
        drive: Tensor,
        state: State,
        valid: Tensor | None,
        dt: Tensor | None = None,
        substeps: int = 1,
        *,
        every_output: bool = True,
    ) -> Result:
        (result,) = self.run_ensemble([cell], [weights], [drive], [state], valid, every_output=every_output)
        return result

    def run_ensemble(
        self,
        cells: list[StableCell],
        weights: list[Weights],
        drives: list[Tensor],
        states: list[State],
        valid: Tensor | None,
        dt: Tensor | None = None,
        substeps: int = 1,
        *,
        every_output: bool = True,
    ) -> list[Result]:
        # (time, batch, d): each step reads one block of memory.
        steps = [drive.transpose(0, 1) for drive in drives]
        members = [cell for cell in cells if isinstance(cell, DiagonalCell)]
        recurrences = [
            cell.diagonal_recurrence(matrices, step)
            for cell, matrices, step in zip(members, weights, steps, strict=True)
        ]
        # Units do not see each other, so that those of all members are one state.
        first = _join([cell.recurrent_state(state) for cell, state in zip(members, states, strict=True)])
        decay = _join([recurrence.decay for recurrence in recurrences])
        increment = _join([recurrence.increment for recurrence in recurrences])
        h = cast("Tensor", LinearScan.apply(pool_of(cells[0]), decay, increment, first, False))  # type: ignore[no-untyped-call]
        units = first.shape[-1] // len(cells)
        return [
            _result(cell, matrices, member_h, recurrence.skip, state, valid, every_output=every_output)
            for cell, matrices, member_h, recurrence, state in zip(
                members, weights, torch.split(h, units, dim=-1), recurrences, states, strict=True
            )
        ]


def _gated_scan(cell: MinGRUCell | MinLSTMCell, every_state: bool, inputs: list[Tensor | None]) -> list[Tensor]:
    """Return what :class:`GatedScan` returns, by operations with second derivatives."""
    x, weight, bias, first = cast("list[Tensor]", inputs)
    projection = nn.functional.linear(x.transpose(0, 1), weight, bias)
    retention, increment = (part[:, :, None] for part in cell.gate(projection))
    h = cast("Tensor", LinearScan.apply(pool_of(cell), retention, increment, first[:, None], False))[:, :, 0]  # type: ignore[no-untyped-call]
    return [h if every_state else h[-1]]


def _join(tensors: Sequence[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(list(tensors), dim=-1)


def _result(
    cell: DiagonalCell,
    weights: Weights,
    h: Tensor,
    skip: Tensor | None,
    state: State,
    valid: Tensor | None,
    *,
    every_output: bool,
) -> Result:
    """Return outputs and last state of a cell from its recurrent state after every step.

    Args:
        cell: The cell.
        weights: Its matrices.
        h: ``(time, batch, parts, units)``, as if no sequence had padding.
        skip: ``(time, batch, d)``, or None.
        state: The state before the first step.
        valid: ``(batch, time)``, or None.
        every_output: Whether the outputs of all steps are needed.
    """
    if valid is None:
        last = cell.state_after(weights, h[-1], None if skip is None else skip[-1])
    else:
        lengths = valid.sum(dim=1)
        ends, rows = (lengths - 1).clamp(min=0), torch.arange(len(lengths), device=h.device)
        after = cell.state_after(weights, h[ends, rows], None if skip is None else skip[ends, rows])
        has_steps = (lengths > 0)[:, None]
        last = tuple(torch.where(has_steps, new, old) for new, old in zip(after, state, strict=True))
    if not every_output:
        return None, last
    outputs = cell.state_after(weights, h, skip)[0].transpose(0, 1)
    if valid is not None:
        # Over padding the state is held.
        outputs = torch.where(valid[..., None], outputs, last[0][:, None])
    return outputs, last


class LinearScan(torch.autograd.Function):
    """The states ``h_t = decay_t .* h_{t-1} + increment_t``, ``(time, batch, parts, units)``.

    Args:
        pool: Where the buffer of the states comes from.
        decay: ``(parts, units)``, or of real units ``(time, batch, 1, units)``.
        increment: ``(time, batch, parts, units)``.
        first: The state before the first step, ``(batch, parts, units)``.
        reverse: Whether the recurrence runs from the last time step to the first, ``h_t`` from ``h_{t+1}``.
    """

    @staticmethod
    def forward(ctx: Any, pool: BufferPool, decay: Tensor, increment: Tensor, first: Tensor, reverse: bool) -> Tensor:
        shape = increment.shape
        states = pool.take(increment, *shape) if increment.device.type == "cpu" else increment.new_empty(shape)
        if has_kernel(increment):
            # Here and not above: the import of triton takes a second.
            from stablernn.engines.triton.launch import run_scan

            run_scan(states, decay, increment, first, reverse=reverse)
        else:
            scan(states, decay, increment, first, reverse=reverse)
        ctx.pool, ctx.reverse = pool, reverse
        ctx.save_for_backward(decay, first, states)
        return states

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Return gradients whose graph autograd can differentiate again."""
        (grad,) = grads
        decay, first, states = ctx.saved_tensors
        reverse: bool = ctx.reverse
        is_constant = decay.dim() == 2
        conjugate = _conjugate(decay) if is_constant else decay
        # h_t reaches the loss by itself and by the step after it, through the decay of that step.
        grad_decay: Tensor | None = None
        if is_constant and has_kernel(grad) and not torch.is_grad_enabled():
            from stablernn.engines.triton.launch import run_scan_backward

            g = torch.empty_like(grad, memory_format=torch.contiguous_format)
            grad_decay = run_scan_backward(g, conjugate, grad, states, first, reverse=not reverse)
            return None, grad_decay, g, _product(g[-1] if reverse else g[0], conjugate), None
        shifted = conjugate if is_constant else _shift(decay, torch.zeros_like(decay[0]), backward=reverse)
        g = cast("Tensor", LinearScan.apply(ctx.pool, shifted, grad, torch.zeros_like(first), not reverse))  # type: ignore[no-untyped-call]
        start = g[-1] if reverse else g[0]
        if ctx.needs_input_grad[1] and is_constant:
            earlier, later = (states[1:], g[:-1]) if reverse else (states[:-1], g[1:])
            grad_decay = _sum_of_products(start[None], first[None]) + _sum_of_products(later, earlier)
        elif ctx.needs_input_grad[1]:
            grad_decay = g * _shift(states, first, backward=not reverse)
        start_decay = conjugate if is_constant else decay[-1 if reverse else 0]
        return None, grad_decay, g, _product(start, start_decay), None


def has_kernel(tensor: Tensor) -> bool:
    """Return whether a kernel of Triton runs a recurrence of such states: on a GPU, where the package is installed.

    A mode such as FakeTensorMode replaces torch's functions, and its tensors may have no memory.
    """
    has_memory = tensor.is_cuda and tensor.numel() > 0 and torch._C._len_torch_dispatch_stack() == 0
    return has_memory and runs_on(tensor.device)


def _conjugate(values: Tensor) -> Tensor:
    """Return the complex conjugates of ``(..., parts, units)``."""
    if values.shape[-2] == 1:
        return values
    # A tensor of the factors 1 and -1 would be copied to a GPU each time.
    return torch.cat([values[..., :1, :], -values[..., 1:, :]], dim=-2)


def _product(a: Tensor, b: Tensor) -> Tensor:
    """Return the product of ``(..., parts, units)``, complex where there are two parts."""
    if a.shape[-2] == 1:
        return a * b
    (a_real, a_imaginary), (b_real, b_imaginary) = a.unbind(-2), b.unbind(-2)
    return torch.stack([a_real * b_real - a_imaginary * b_imaginary, a_real * b_imaginary + a_imaginary * b_real], -2)


def _sum_of_products(gradients: Tensor, states: Tensor) -> Tensor:
    """Return the products of gradients and conjugate states, summed over time and batch, ``(parts, units)``.

    Args:
        gradients: ``(time, batch, parts, units)``.
        states: The same.
    """
    steps = max(1, SUMMED_BYTES // max(1, states[:1].numel() * states.element_size()))
    total = states.new_zeros(states.shape[-2:])
    for g, h in zip(torch.split(gradients, steps), torch.split(states, steps), strict=True):
        real = (g * h).sum(dim=(0, 1))
        if len(total) == 1:
            total = total + real
            continue
        imaginary = g.select(-2, 1) * h.select(-2, 0) - g.select(-2, 0) * h.select(-2, 1)
        total = total + torch.stack([real.sum(dim=0), imaginary.sum(dim=(0, 1))])
    return total


def _add_product(increment: Tensor, decay: Tensor, state: Tensor, out: Tensor) -> None:
    """Write ``increment + decay .* state`` into ``out``, which may be the increment but not the state."""
    if state.shape[-2] == 1:
        torch.addcmul(increment, decay, state, out=out)
        return
    real, imaginary = decay.unbind(-2)
    torch.addcmul(increment, real.unsqueeze(-2), state, out=out)
    out.select(-2, 0).addcmul_(imaginary, state.select(-2, 1), value=-1)
    out.select(-2, 1).addcmul_(imaginary, state.select(-2, 0))


def _shift(values: Tensor, end: Tensor, *, backward: bool) -> Tensor:
    """Return the values of the next time step at each, or with ``backward`` of the step before; ``end`` has no such."""
    return torch.cat([end[None], values[:-1]] if backward else [values[1:], end[None]])


def scan(states: Tensor, decay: Tensor, increment: Tensor, first: Tensor, *, reverse: bool) -> None:
    """Write the states after every step into ``states``; see :class:`LinearScan`."""
    time, is_constant = len(increment), decay.dim() == 2
    length, count = chunk_sizes(time, first.numel() * first.element_size())
    remainder = time - length * count
    last = first
    if count:
        part = slice(remainder, time) if reverse else slice(time - remainder)
        chunks = (count, length)
        last = _scan_chunks(
            torch.unflatten(states[part], 0, chunks),
            decay if is_constant else torch.unflatten(decay[part], 0, chunks),
            torch.unflatten(increment[part], 0, chunks),
            first,
            reverse=reverse,
        )
    for index in range(remainder - 1, -1, -1) if reverse else range(time - remainder, time):
        _add_product(increment[index], decay if is_constant else decay[index], last, out=states[index])
        last = states[index]


def _scan_chunks(states: Tensor, decay: Tensor, increment: Tensor, first: Tensor, *, reverse: bool) -> Tensor:
    """Run chunks of time, ``(count, length, batch, parts, units)``, side by side; return the state after the last."""
    (count, length), is_constant = states.shape[:2], decay.dim() == 2
    order = range(length - 1, -1, -1) if reverse else range(length)
    products = _powers(decay, length, reverse=reverse) if is_constant else torch.empty_like(decay)
    before = order[0]
    states[:, before] = increment[:, before]
    if not is_constant:
        products[:, before] = decay[:, before]
    for index in order[1:]:
        step_decay = decay if is_constant else decay[:, index]
        _add_product(increment[:, index], step_decay, states[:, before], out=states[:, index])
        if not is_constant:
            torch.mul(step_decay, products[:, before], out=products[:, index])
        before = index
    starts, state = first.new_empty(count, 1, *first.shape), first
    for chunk in range(count - 1, -1, -1) if reverse else range(count):
        starts[chunk, 0] = state
        state = torch.empty_like(first)
        chunk_decay = products[before] if is_constant else products[chunk, before]
        _add_product(states[chunk, before], chunk_decay, starts[chunk, 0], out=state)
    _add_product(states, products, starts, out=states)
    return state


def _powers(decay: Tensor, length: int, *, reverse: bool) -> Tensor:
    """Return the products of the decays up to each step of a chunk, ``(length, 1, parts, units)``."""
    if decay.shape[0] == 1:
        powers = decay.expand(length, -1, -1).cumprod(dim=0)
    else:
        parts = torch.complex(*decay).expand(length, -1).cumprod(dim=0)
        powers = torch.stack([parts.real, parts.imag], dim=1)
    return (powers.flip(0) if reverse else powers)[:, None]


def chunk_sizes(time: int, step_bytes: int) -> tuple[int, int]:
    """Return the steps of a chunk and the number of chunks, so that few operations remain; no chunks where none help.

    Args:
        time: Steps of the sequence; those that fill no chunk run one after the other.
        step_bytes: Size of the state of one step.
    """
    if step_bytes > MAX_STEP_BYTES:
        return 0, 0
    # A chunk's step, the two operations that carry the state from chunk to chunk, and a step outside of chunks.
    costs = {
        (length, time // length): length + 2 * (time // length) + time % length
        for length in range(2, 2 * int(time**0.5) + 2)
        if time // length > 1
    }
    best = min(costs, key=costs.__getitem__, default=(0, 0))
    return best if costs.get(best, time) + 4 < time else (0, 0)


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
_GATES: dict[type[StableCell], GatesType] = {
    MinGRUCell: MinGRUGates,
    MinLSTMCell: MinLSTMGates,
}
"""Cells whose gates are computed with the scan; a subclass may compute something else."""
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


register_engine(ScanEngine())
