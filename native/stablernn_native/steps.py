"""The steps of each family over whole buffers, by the kernels."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from stablernn.cells._step_form import Family, StepForm
from stablernn.engines.fused_families import FusedSteps, PlainSteps, ResidualSteps, SharedGateSteps, TwoStageSteps
from stablernn_native.library import (
    FAMILIES,
    FLOAT32,
    FLOAT64,
    NONLINEARITIES,
    Call,
    Rows,
    check,
    current_path,
    library,
    path_number,
)

BLOCK_ROWS = 8
"""Threads share out multiples of this number of rows: a tile of the widest vectors."""
MIN_THREAD_WORK = 10_000_000
"""Multiplications for which a thread is started: some two milliseconds, against 50 microseconds for the thread."""


class NativeSteps(FusedSteps):
    """The steps of one family by the kernels.

    A matrix is packed when it is first used: forward as it is, backward transposed.
    """

    def __init__(self, form: StepForm) -> None:
        super().__init__(form)
        tensors = [tensor for tensor in (form.recurrent, form.linear, form.bias) if tensor is not None]
        if any(tensor.dtype != form.recurrent.dtype for tensor in tensors):
            raise TypeError(f"The matrices of a step have the same dtype, got {[tensor.dtype for tensor in tensors]}.")
        self._path = path_number(current_path())
        self._packed: dict[tuple[str, bool], Tensor] = {}
        # Kept here, as the packed matrices are: a call holds addresses alone.
        self._bias = torch.empty(0) if form.bias is None else form.bias.contiguous()

    def forward(
        self, states: Tensor, drives: Tensor, lengths: float | Tensor, saved: Sequence[Tensor], substeps: int
    ) -> None:
        if not drives.dtype == states.dtype == self.recurrent.dtype:
            raise TypeError(
                f"Drives, states and matrices have the same dtype, got {drives.dtype}, {states.dtype} and "
                f"{self.recurrent.dtype}."
            )
        count = len(drives) * substeps
        keeps_states = len(states) == count + 1
        call = self._call(states[0], count, lengths, substeps, transposed=False)
        call.drives = rows_of(drives)
        call.first = rows_of(states[:1])
        call.last = rows_of(states[count % len(states)][None])
        if keeps_states:
            call.states = rows_of(states[1:])
        for index, buffer in enumerate(saved):
            # One slot means that nothing needs to be kept.
            if len(buffer) == count:
                call.saved[index] = rows_of(buffer)
        run(library().srnn_forward, call)

    def backward(
        self,
        g: Tensor,
        lengths: float | Tensor,
        saved: Sequence[Tensor],
        arguments: Sequence[Tensor],
        velocities: Sequence[Tensor],
        outputs: Tensor | None,
        substeps: int,
    ) -> None:
        # A gradient that autograd made by expanding or transposing has no contiguous rows.
        gradient = g if has_rows(g) else g.contiguous()
        call = self._call(gradient, len(arguments[0]), lengths, substeps, transposed=True)
        call.first = call.last = rows_of(gradient[None])
        for field, buffers in ((call.saved, saved), (call.arguments, arguments)):
            for index, buffer in enumerate(buffers):
                field[index] = rows_of(buffer)
        if self.linear is not None:
            for index, buffer in enumerate(velocities):
                call.velocities[index] = rows_of(buffer)
        if outputs is not None:
            outputs = outputs if has_rows(outputs) else outputs.contiguous()
            call.outputs = rows_of(outputs)
        run(library().srnn_backward, call)
        if gradient is not g:
            g.copy_(gradient)

    def _call(self, like: Tensor, steps: int, lengths: float | Tensor, substeps: int, *, transposed: bool) -> Call:
        """Return a call with all but the buffers."""
        form = self.form
        call = Call(
            path=self._path,
            dtype=_dtype(like),
            family=FAMILIES[form.family],
            nonlinearity=NONLINEARITIES[form.nonlinearity],
            hidden=like.shape[-1],
            rows=len(like),
            steps=steps,
            substeps=substeps,
            recurrent=self._pack("recurrent", form.recurrent, transposed).data_ptr(),
        )
        if form.linear is not None:
            call.linear = self._pack("linear", form.linear, transposed).data_ptr()
        if form.bias is not None:
            call.bias = self._bias.data_ptr()
        if isinstance(lengths, Tensor):
            call.lengths = rows_of(lengths)
        else:
            call.step_size = lengths
        return call

    def _pack(self, name: str, matrix: Tensor, transposed: bool) -> Tensor:
        key = name, transposed
        if key not in self._packed:
            hidden, dtype = len(matrix), _dtype(matrix)
            packed = matrix.new_empty(library().srnn_packed_size(self._path, dtype, hidden))
            strides = matrix.stride()[::-1] if transposed else matrix.stride()
            check(library().srnn_pack(self._path, dtype, hidden, matrix.data_ptr(), *strides, packed.data_ptr()))
            self._packed[key] = packed
        return self._packed[key]


class NativePlainSteps(NativeSteps, PlainSteps):
    """``h <- f(K h + d)``."""


class NativeResidualSteps(NativeSteps, ResidualSteps):
    """``h <- h + e (A h + f(K h + d))``."""


class NativeTwoStageSteps(NativeSteps, TwoStageSteps):
    """``h <- h + e v(h + (e / 2) v(h))`` with ``v(h) = A h + f(K h + d)``."""


class NativeSharedGateSteps(NativeSteps, SharedGateSteps):
    """``h <- h + e sigmoid(K h + d_z) f(K h + d_h)``."""


NATIVE_FAMILIES: dict[Family, type[FusedSteps]] = {
    "plain": NativePlainSteps,
    "residual": NativeResidualSteps,
    "two-stage": NativeTwoStageSteps,
    "shared gate": NativeSharedGateSteps,
}


def _dtype(tensor: Tensor) -> int:
    return FLOAT32 if tensor.dtype == torch.float32 else FLOAT64


def has_rows(tensor: Tensor) -> bool:
    """Return whether the elements of each row are contiguous."""
    return tensor.stride(-1) == 1 or tensor.shape[-1] == 1


def rows_of(tensor: Tensor) -> Rows:
    """Return a tensor ``(time, rows, d)`` as the kernels take it; its rows are contiguous."""
    return Rows(tensor.data_ptr(), tensor.stride(0), tensor.stride(1))


def run(kernel: Callable[[Call], int], call: Call) -> None:
    """Run a pass, its rows spread over as many threads as torch uses."""
    blocks = -(-call.rows // BLOCK_ROWS)
    work = call.rows * call.steps * call.hidden**2
    count = min(torch.get_num_threads(), blocks, max(1, work // MIN_THREAD_WORK))
    if count == 1:
        check(kernel(call))
        return
    bounds = [BLOCK_ROWS * (blocks * part // count) for part in range(count)] + [call.rows]
    calls = [part_of(call, start, end) for start, end in zip(bounds, bounds[1:], strict=False)]
    statuses = [0] * count

    def work_on(part: int) -> None:
        statuses[part] = kernel(calls[part])

    # Threads of their own and no pool, which would not survive a fork.
    threads = [threading.Thread(target=work_on, args=(part,)) for part in range(1, count)]
    for thread in threads:
        thread.start()
    work_on(0)
    for thread in threads:
        thread.join()
    for status in statuses:
        check(status)


def part_of(call: Call, start: int, end: int) -> Call:
    """Return the call for some of the rows."""
    part = Call()
    ctypes.pointer(part)[0] = call
    part.rows = end - start
    size = 4 if call.dtype == FLOAT32 else 8
    singles = (part.lengths, part.drives, part.first, part.last, part.states, part.outputs)
    for rows in (*singles, *part.saved, *part.arguments, *part.velocities):
        if rows.data is not None:
            rows.data += start * rows.row_stride * size
    return part
