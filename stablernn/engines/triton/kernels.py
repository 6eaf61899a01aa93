"""The two kernels: a whole sequence forward, and back.

A program runs a tile of rows (sequences) of one member through all steps. The matrices stay on chip if they fit, so
that a step reads its drive and writes its state, and no launch lies between two steps. Columns are padded to a power
of two; the padding of states, drives and matrices is zero and stays zero.

Shapes: ``time`` steps of ``SUBSTEPS`` equal parts each, so that there are ``n = time * SUBSTEPS`` sub-steps; drives
``(time, members, batch, width)``; states ``(n + 1, members, batch, hidden)``; what is saved and the gradients of
arguments ``(n, members, batch, hidden)``. All are contiguous. The steps and their gradients are those of
:mod:`stablernn.engines.fused_families`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from stablernn.engines.triton.arithmetic import load_bias, load_matrix
from stablernn.engines.triton.steps import backward_step, forward_step, hold, pass_on


@triton.jit(do_not_specialize=["time", "batch", "members"])
def forward_kernel(
    drives,
    first,
    recurrent,
    linear,
    bias,
    step_lengths,
    lengths,
    states,
    saved_0,
    saved_1,
    saved_2,
    last,
    scratch,
    step_size,
    time,
    batch,
    members,
    FAMILY: tl.constexpr,
    NONLINEARITY: tl.constexpr,
    SUBSTEPS: tl.constexpr,
    HAS_LINEAR: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    IS_TIMED: tl.constexpr,
    HAS_LENGTHS: tl.constexpr,
    KEEPS_STATES: tl.constexpr,
    KEEPS_ACTIVATIONS: tl.constexpr,
    PRECISION: tl.constexpr,
    HIDDEN: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Run all sub-steps. ``recurrent`` and ``linear`` are transposed: a row of theirs belongs to an old unit."""
    member = tl.program_id(1)
    row = tl.program_id(0) * BLOCK_B + tl.arange(0, BLOCK_B)
    column = tl.arange(0, BLOCK_N)
    in_batch = row < batch
    mask = in_batch[:, None] & (column < HIDDEN)[None, :]
    # Offsets within a step fit 32 bits; those of a step need 64.
    position = member * batch + row
    offset = position[:, None] * HIDDEN + column[None, :]
    zero = tl.zeros([], tl.int64)
    stride = (zero + members) * batch * HIDDEN
    scratch += (member * tl.num_programs(0) + tl.program_id(0)) * (BLOCK_B * BLOCK_N)
    recurrent_tile = load_matrix(recurrent + member * HIDDEN * HIDDEN, HIDDEN, BLOCK_N, BLOCK_K)
    linear_tile = recurrent_tile
    if HAS_LINEAR:
        linear_tile = load_matrix(linear + member * HIDDEN * HIDDEN, HIDDEN, BLOCK_N, BLOCK_K)
    shift = load_bias(bias + member * HIDDEN, HIDDEN, BLOCK_N, HAS_BIAS)
    count = time * SUBSTEPS
    if HAS_LENGTHS:
        end = tl.load(lengths + row, mask=in_batch, other=0) * SUBSTEPS
        count = tl.max(end, axis=0)
    h = tl.load(first + offset, mask=mask, other=0.0)
    if KEEPS_STATES:
        tl.store(states + offset, h, mask=mask)
    for step in tl.range(0, count, num_stages=STAGES):
        now = zero + step // SUBSTEPS
        slot = (zero + step) * stride + offset
        if FAMILY == "shared gate":
            drive_offset = 2 * (now * stride + position[:, None] * HIDDEN) + column[None, :]
            gate_drive = tl.load(drives + drive_offset, mask=mask, other=0.0)
            drive = tl.load(drives + drive_offset + HIDDEN, mask=mask, other=0.0)
        else:
            drive = tl.load(drives + now * stride + offset, mask=mask, other=0.0)
            gate_drive = drive
        length = step_size
        if IS_TIMED:
            length = tl.load(step_lengths + now * batch + row, mask=in_batch, other=0.0)[:, None]
        new = forward_step(
            h,
            drive,
            gate_drive,
            length,
            shift,
            recurrent_tile,
            linear_tile,
            saved_0 + slot,
            saved_1 + slot,
            saved_2 + slot,
            mask,
            scratch,
            FAMILY,
            NONLINEARITY,
            HAS_LINEAR,
            KEEPS_ACTIVATIONS,
            PRECISION,
            HIDDEN,
            BLOCK_K,
        )
        h = tl.where((step < end)[:, None], new, h) if HAS_LENGTHS else new
        if KEEPS_STATES:
            tl.store(states + slot + stride, h, mask=mask)
    if HAS_LENGTHS and KEEPS_STATES:
        n = time * SUBSTEPS
        hold(h, states + stride, saved_0, saved_1, saved_2, offset, mask, stride, count, n, FAMILY, KEEPS_ACTIVATIONS)
    tl.store(last + offset, h, mask=mask)


@triton.jit(do_not_specialize=["time", "batch", "members"])
def backward_kernel(
    grad_last,
    grad_outputs,
    recurrent,
    linear,
    step_lengths,
    lengths,
    saved_0,
    saved_1,
    arguments_0,
    arguments_1,
    velocities_0,
    velocities_1,
    grad_first,
    scratch,
    step_size,
    time,
    batch,
    members,
    FAMILY: tl.constexpr,
    NONLINEARITY: tl.constexpr,
    SUBSTEPS: tl.constexpr,
    HAS_LINEAR: tl.constexpr,
    HAS_OUTPUTS: tl.constexpr,
    IS_TIMED: tl.constexpr,
    HAS_LENGTHS: tl.constexpr,
    PRECISION: tl.constexpr,
    HIDDEN: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Go back over all sub-steps: the gradients by arguments and velocities of each, and by the first state.

    ``saved_0`` and ``saved_1`` are what the forward pass saved; of a plain step the states after the steps.
    """
    member = tl.program_id(1)
    row = tl.program_id(0) * BLOCK_B + tl.arange(0, BLOCK_B)
    column = tl.arange(0, BLOCK_N)
    in_batch = row < batch
    mask = in_batch[:, None] & (column < HIDDEN)[None, :]
    offset = (member * batch + row)[:, None] * HIDDEN + column[None, :]
    zero = tl.zeros([], tl.int64)
    stride = (zero + members) * batch * HIDDEN
    scratch += (member * tl.num_programs(0) + tl.program_id(0)) * (BLOCK_B * BLOCK_N)
    recurrent_tile = load_matrix(recurrent + member * HIDDEN * HIDDEN, HIDDEN, BLOCK_N, BLOCK_K)
    linear_tile = recurrent_tile
    if HAS_LINEAR:
        linear_tile = load_matrix(linear + member * HIDDEN * HIDDEN, HIDDEN, BLOCK_N, BLOCK_K)
    count = time * SUBSTEPS
    g = tl.load(grad_last + offset, mask=mask, other=0.0)
    if HAS_LENGTHS:
        end = tl.load(lengths + row, mask=in_batch, other=0) * SUBSTEPS
        count = tl.max(end, axis=0)
        g = pass_on(
            g,
            grad_outputs + offset,
            arguments_0 + offset,
            arguments_1 + offset,
            velocities_0 + offset,
            velocities_1 + offset,
            mask,
            stride,
            count,
            time * SUBSTEPS,
            FAMILY,
            SUBSTEPS,
            HAS_LINEAR,
            HAS_OUTPUTS,
        )
    for back in tl.range(0, count, num_stages=STAGES):
        step = count - 1 - back
        now = zero + step // SUBSTEPS
        slot = (zero + step) * stride + offset
        if HAS_OUTPUTS:
            has_output = mask & ((step + 1) % SUBSTEPS == 0)
            g += tl.load(grad_outputs + now * stride + offset, mask=has_output, other=0.0)
        length = step_size
        if IS_TIMED:
            length = tl.load(step_lengths + now * batch + row, mask=in_batch, other=0.0)[:, None]
        entering = g
        if HAS_LENGTHS:
            # No gradient enters the step of a row that has ended, which passes on what it gets.
            entering = tl.where((step < end)[:, None], g, 0.0)
        before = backward_step(
            entering,
            length,
            saved_0 + slot,
            saved_1 + slot,
            arguments_0 + slot,
            arguments_1 + slot,
            velocities_0 + slot,
            velocities_1 + slot,
            recurrent_tile,
            linear_tile,
            mask,
            scratch,
            FAMILY,
            NONLINEARITY,
            HAS_LINEAR,
            PRECISION,
            HIDDEN,
            BLOCK_K,
        )
        g = tl.where((step < end)[:, None], before, g) if HAS_LENGTHS else before
    tl.store(grad_first + offset, g, mask=mask)
