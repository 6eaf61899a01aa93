"""The kernel of linear diagonal recurrences: a program runs some units of some sequences through all steps.

Units do not see each other, so that a step is a multiplication and an addition, and each number is read and written
once. Shapes are those of :class:`stablernn.engines.scan.LinearScan`: ``(time, batch, parts, units)``, contiguous, with
real and imaginary parts, or real ones only.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["time", "batch"])
def scan_kernel(
    states,
    decay,
    increment,
    first,
    other,
    other_first,
    products,
    time,
    batch,
    UNITS: tl.constexpr,
    PARTS: tl.constexpr,
    IS_CONSTANT: tl.constexpr,
    IS_REVERSED: tl.constexpr,
    HAS_PRODUCTS: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Write the state after every step into ``states``.

    With ``HAS_PRODUCTS`` the states are gradients by those of a scan in the other direction, ``other``, which began at
    ``other_first``. The products of each gradient and the conjugate of the state before its step are summed over time
    into ``products``, ``(batch, parts, units)``.
    """
    lane = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = lane < batch * UNITS
    unit = lane % UNITS
    offset = (lane // UNITS) * (PARTS * UNITS) + unit
    # Offsets within a step fit 32 bits; those of a step need 64.
    zero = tl.zeros([], tl.int64)
    stride = (zero + batch) * PARTS * UNITS
    real = tl.load(first + offset, mask=mask, other=0.0)
    sum_real = tl.zeros_like(real)
    imaginary, sum_imaginary, decay_real, decay_imaginary = sum_real, sum_real, sum_real, sum_real
    if IS_CONSTANT:
        decay_real = tl.load(decay + unit, mask=mask, other=0.0)
    if PARTS == 2:
        imaginary = tl.load(first + offset + UNITS, mask=mask, other=0.0)
        decay_imaginary = tl.load(decay + UNITS + unit, mask=mask, other=0.0)
    for step in tl.range(0, time, num_stages=STAGES):
        now = time - 1 - step if IS_REVERSED else step
        slot = (zero + now) * stride + offset
        if not IS_CONSTANT:
            decay_real = tl.load(decay + slot, mask=mask, other=0.0)
        new = decay_real * real + tl.load(increment + slot, mask=mask, other=0.0)
        if PARTS == 2:
            new -= decay_imaginary * imaginary
            increment_imaginary = tl.load(increment + slot + UNITS, mask=mask, other=0.0)
            imaginary = decay_real * imaginary + decay_imaginary * real + increment_imaginary
            tl.store(states + slot + UNITS, imaginary, mask=mask)
        real = new
        tl.store(states + slot, real, mask=mask)
        if HAS_PRODUCTS:
            before = slot - stride if IS_REVERSED else slot + stride
            has_before = mask & (step < time - 1)
            state_real = tl.load(other + before, mask=has_before, other=0.0)
            sum_real += real * state_real
            if PARTS == 2:
                state_imaginary = tl.load(other + before + UNITS, mask=has_before, other=0.0)
                sum_real += imaginary * state_imaginary
                sum_imaginary += imaginary * state_real - real * state_imaginary
    if HAS_PRODUCTS:
        state_real = tl.load(other_first + offset, mask=mask, other=0.0)
        sum_real += real * state_real
        if PARTS == 2:
            state_imaginary = tl.load(other_first + offset + UNITS, mask=mask, other=0.0)
            sum_real += imaginary * state_imaginary
            sum_imaginary += imaginary * state_real - real * state_imaginary
            tl.store(products + offset + UNITS, sum_imaginary, mask=mask)
        tl.store(products + offset, sum_real, mask=mask)
