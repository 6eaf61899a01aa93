"""Device functions of one step of each family, forward and back; the formulas are those of ``fused_families``."""

from __future__ import annotations

import triton
import triton.language as tl

from stablernn.engines.triton.arithmetic import activate, activate_backward, multiply


@triton.jit
def forward_step(
    h,
    drive,
    gate_drive,
    length,
    bias,
    recurrent,
    linear,
    saved_0,
    saved_1,
    saved_2,
    mask,
    scratch,
    FAMILY: tl.constexpr,
    NONLINEARITY: tl.constexpr,
    HAS_LINEAR: tl.constexpr,
    KEEPS_ACTIVATIONS: tl.constexpr,
    PRECISION: tl.constexpr,
    HIDDEN: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Return the state after a step, and write what the backward pass needs to the addresses ``saved``."""
    product = multiply(h, recurrent, scratch, PRECISION, HIDDEN, BLOCK_K)
    activation = activate(product + drive, bias, NONLINEARITY)
    if FAMILY == "plain":
        new = activation
    elif FAMILY == "shared gate":
        gate = tl.sigmoid(product + gate_drive)
        new = h + length * (gate * activation)
        if KEEPS_ACTIVATIONS:
            tl.store(saved_0, gate, mask=mask)
            tl.store(saved_1, activation, mask=mask)
    else:
        if KEEPS_ACTIVATIONS:
            tl.store(saved_0, activation, mask=mask)
        velocity = activation
        if HAS_LINEAR:
            velocity += multiply(h, linear, scratch, PRECISION, HIDDEN, BLOCK_K)
        if FAMILY == "two-stage":
            middle = h + (length / 2) * velocity
            product = multiply(middle, recurrent, scratch, PRECISION, HIDDEN, BLOCK_K)
            velocity = activate(product + drive, bias, NONLINEARITY)
            if KEEPS_ACTIVATIONS:
                tl.store(saved_1, velocity, mask=mask)
                tl.store(saved_2, middle, mask=mask)
            if HAS_LINEAR:
                velocity += multiply(middle, linear, scratch, PRECISION, HIDDEN, BLOCK_K)
        new = h + length * velocity
    return new


@triton.jit
def hold(
    h,
    states,
    saved_0,
    saved_1,
    saved_2,
    offset,
    mask,
    stride,
    start,
    end,
    FAMILY: tl.constexpr,
    KEEPS_ACTIVATIONS: tl.constexpr,
):
    """Write the state behind the last step of all rows of a tile.

    What else the backward pass reads is 0 there: the products over all steps take it times zero.
    """
    nothing = tl.zeros(h.shape, tl.float32)
    zero = tl.zeros([], tl.int64)
    for step in range(start, end):
        slot = (zero + step) * stride + offset
        tl.store(states + slot, h, mask=mask)
        if KEEPS_ACTIVATIONS and FAMILY != "plain":
            tl.store(saved_0 + slot, nothing, mask=mask)
            if FAMILY != "residual":
                tl.store(saved_1 + slot, nothing, mask=mask)
            if FAMILY == "two-stage":
                tl.store(saved_2 + slot, nothing, mask=mask)


@triton.jit
def backward_step(
    gradient,
    length,
    saved_0,
    saved_1,
    arguments_0,
    arguments_1,
    velocities_0,
    velocities_1,
    recurrent,
    linear,
    mask,
    scratch,
    FAMILY: tl.constexpr,
    NONLINEARITY: tl.constexpr,
    HAS_LINEAR: tl.constexpr,
    PRECISION: tl.constexpr,
    HIDDEN: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Return the gradient by the state before a step, and write those by its arguments and velocities.

    In all families but ``plain`` the state is carried on besides: that part of the gradient is ``gradient`` itself.
    """
    value = tl.load(saved_0, mask=mask, other=0.0)
    if FAMILY == "plain":
        argument = activate_backward(gradient, value, NONLINEARITY)
        tl.store(arguments_0, argument, mask=mask)
        result = multiply(argument, recurrent, scratch, PRECISION, HIDDEN, BLOCK_K)
    elif FAMILY == "shared gate":
        candidate = tl.load(saved_1, mask=mask, other=0.0)
        velocity = length * gradient
        by_gate = velocity * candidate * value * (1 - value)
        by_candidate = activate_backward(velocity * value, candidate, NONLINEARITY)
        tl.store(arguments_0, by_gate, mask=mask)
        tl.store(arguments_1, by_candidate, mask=mask)
        argument = by_gate + by_candidate
        result = gradient + multiply(argument, recurrent, scratch, PRECISION, HIDDEN, BLOCK_K)
    else:
        result = gradient
        velocity = length * gradient
        if FAMILY == "two-stage":
            second = tl.load(saved_1, mask=mask, other=0.0)
            argument = activate_backward(velocity, second, NONLINEARITY)
            tl.store(arguments_1, argument, mask=mask)
            # The gradient by the state halfway, which the first stage moved by half a step.
            middle = multiply(argument, recurrent, scratch, PRECISION, HIDDEN, BLOCK_K)
            if HAS_LINEAR:
                tl.store(velocities_1, velocity, mask=mask)
                middle += multiply(velocity, linear, scratch, PRECISION, HIDDEN, BLOCK_K)
            result += middle
            velocity = (length / 2) * middle
        argument = activate_backward(velocity, value, NONLINEARITY)
        tl.store(arguments_0, argument, mask=mask)
        result += multiply(argument, recurrent, scratch, PRECISION, HIDDEN, BLOCK_K)
        if HAS_LINEAR:
            tl.store(velocities_0, velocity, mask=mask)
            result += multiply(velocity, linear, scratch, PRECISION, HIDDEN, BLOCK_K)
    return result


@triton.jit
def pass_on(
    g,
    grad_outputs,
    arguments_0,
    arguments_1,
    velocities_0,
    velocities_1,
    mask,
    stride,
    start,
    end,
    FAMILY: tl.constexpr,
    SUBSTEPS: tl.constexpr,
    HAS_LINEAR: tl.constexpr,
    HAS_OUTPUTS: tl.constexpr,
):
    """Return the gradient with those of the outputs behind the last step of all rows of a tile.

    The gradients by arguments and velocities are 0 there; the products over all steps read them.
    """
    nothing = tl.zeros(g.shape, tl.float32)
    zero = tl.zeros([], tl.int64)
    for step in range(start, end):
        slot = (zero + step) * stride
        if HAS_OUTPUTS:
            has_output = mask & ((step + 1) % SUBSTEPS == 0)
            g += tl.load(grad_outputs + (zero + step // SUBSTEPS) * stride, mask=has_output, other=0.0)
        tl.store(arguments_0 + slot, nothing, mask=mask)
        if FAMILY == "two-stage" or FAMILY == "shared gate":
            tl.store(arguments_1 + slot, nothing, mask=mask)
        if HAS_LINEAR:
            tl.store(velocities_0 + slot, nothing, mask=mask)
            if FAMILY == "two-stage":
                tl.store(velocities_1 + slot, nothing, mask=mask)
    return g
