"""The kernels: a whole sequence forward, and back, and linear diagonal recurrences.

Device functions come first: nonlinearities, their derivatives and products with a matrix, then one step of each family.
They use only what both the compiler and the interpreter of Triton take: no tuples, one return at the end of a function,
and branches on constants.

A program runs a tile of rows (sequences) of one member through all steps. The matrices stay on chip if they fit, so
that a step reads its drive and writes its state, and no launch lies between two steps. Columns are padded to a power
of two; the padding of states, drives and matrices is zero and stays zero.

Shapes: ``time`` steps of ``SUBSTEPS`` equal parts each, so that there are ``n = time * SUBSTEPS`` sub-steps; drives
``(time, members, batch, width)``; states ``(n + 1, members, batch, hidden)``; what is saved and the gradients of
arguments ``(n, members, batch, hidden)``. All are contiguous. The steps and their gradients are those of
:mod:`stablernn.engines.fused_families`.

In the kernel of linear diagonal recurrences a program runs some units of some sequences. Units do not see each other,
so that a step is a multiplication and an addition, and each number is read and written once. Its shapes are those of
:class:`stablernn.engines.scan.LinearScan`: ``(time, batch, parts, units)``, contiguous, with real and imaginary parts,
or real ones only.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def tanh(z):
    """Return tanh to the rounding of float32.

    The rational approximation is the one of Eigen and XLA. ``libdevice.tanh`` does not run in the interpreter, and the
    formula by exponentials loses the digits of small arguments.
    """
    # NaN fails both comparisons and stays NaN.
    z = tl.where(z > 7.90531110763549805, 7.90531110763549805, z)
    z = tl.where(z < -7.90531110763549805, -7.90531110763549805, z)
    square = z * z
    numerator = square * -2.76076847742355e-16 + 2.00018790482477e-13
    numerator = numerator * square + -8.60467152213735e-11
    numerator = numerator * square + 5.12229709037114e-08
    numerator = numerator * square + 1.48572235717979e-05
    numerator = numerator * square + 6.37261928875436e-04
    numerator = numerator * square + 4.89352455891786e-03
    denominator = square * 1.19825839466702e-06 + 1.18534705686654e-04
    denominator = denominator * square + 2.26843463243900e-03
    denominator = denominator * square + 4.89352518554385e-03
    return z * numerator / denominator


@triton.jit
def activate(z, bias, NONLINEARITY: tl.constexpr):
    """Return the nonlinearity of a :class:`StepForm`; ``bias`` is 0 where it has none."""
    if NONLINEARITY == "tanh":
        value = tanh(z + bias)
    elif NONLINEARITY == "relu":
        # Unlike tl.maximum, a comparison keeps NaN.
        shifted = z + bias
        value = tl.where(shifted <= 0, 0.0, shifted)
    else:
        # modReLU; softshrink is the same with a bias of at most 0.
        size = tl.abs(z) + bias
        size = tl.where(size <= 0, 0.0, size)
        value = tl.where(z < 0, -size, size)
        # The sign of 0 is 0, also where the bias is positive.
        value = tl.where(z == 0, 0.0, value)
    return value


@triton.jit
def activate_backward(gradient, value, NONLINEARITY: tl.constexpr):
    """Return the gradient by the argument, from that by the value and the value."""
    if NONLINEARITY == "tanh":
        result = gradient * (1 - value * value)
    elif NONLINEARITY == "relu":
        result = tl.where(value <= 0, 0.0, gradient)
    else:
        # The slope of modReLU is 1 where it is not 0.
        result = tl.where(value != 0, gradient, 0.0)
    return result


@triton.jit
def load_bias(bias, HIDDEN: tl.constexpr, BLOCK_N: tl.constexpr, HAS_BIAS: tl.constexpr):
    """Return the bias, ``(1, BLOCK_N)``, or 0 if there is none."""
    if HAS_BIAS:
        column = tl.arange(0, BLOCK_N)
        result = tl.load(bias + column, mask=column < HIDDEN, other=0.0)[None, :]
    else:
        result = 0.0
    return result


@triton.jit
def load_matrix(matrix, HIDDEN: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    """Return the matrix as a tile that stays on chip, or its address if it does not fit."""
    if BLOCK_K == 0:
        index = tl.arange(0, BLOCK_N)
        is_inside = (index[:, None] < HIDDEN) & (index[None, :] < HIDDEN)
        result = tl.load(matrix + index[:, None] * HIDDEN + index[None, :], mask=is_inside, other=0.0)
    else:
        result = matrix
    return result


@triton.jit
def multiply(
    v,
    matrix,
    scratch,
    PRECISION: tl.constexpr,
    HIDDEN: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Return ``v @ matrix``.

    Args:
        v: ``(BLOCK_B, BLOCK_N)``, zero in the padded columns.
        matrix: From :func:`load_matrix`.
        scratch: Memory of this program, ``(BLOCK_B, BLOCK_N)``, through which ``v`` reaches all threads if the matrix
            is read in tiles.
        PRECISION: Rounding of the operands.
        HIDDEN: Units.
        BLOCK_K: Rows of the tiles in which the matrix is read; 0 if it stays on chip.
    """
    BLOCK_B: tl.constexpr = v.shape[0]
    BLOCK_N: tl.constexpr = v.shape[1]
    if BLOCK_K == 0:
        if PRECISION == "ieee":
            # One row. Each thread holds entries of the matrix in registers over the whole sequence, and the compiler's
            # tl.dot in float32 would hold whole rows and columns of both operands in each thread.
            result = tl.sum(tl.trans(v) * matrix, axis=0)[None, :]
        elif PRECISION == "bf16":
            # In the interpreter the matrix is float32 with rounded entries.
            result = tl.dot(v.to(tl.bfloat16).to(matrix.dtype), matrix)
        else:
            result = tl.dot(v, matrix, input_precision=PRECISION)
    else:
        row = tl.arange(0, BLOCK_B)
        column = tl.arange(0, BLOCK_N)
        tl.store(scratch + row[:, None] * BLOCK_N + column[None, :], v)
        tl.debug_barrier()
        result = tl.zeros([BLOCK_B, BLOCK_N], tl.float32)
        for start in range(0, HIDDEN, BLOCK_K):
            inner = start + tl.arange(0, BLOCK_K)
            is_inside = (inner[:, None] < HIDDEN) & (column[None, :] < HIDDEN)
            tile = tl.load(matrix + inner[:, None] * HIDDEN + column[None, :], mask=is_inside, other=0.0)
            part = tl.load(scratch + row[:, None] * BLOCK_N + inner[None, :])
            if PRECISION == "bf16":
                result += tl.dot(part.to(tl.bfloat16).to(tile.dtype), tile)
            else:
                result += tl.dot(part, tile, input_precision=PRECISION)
        # No thread may write the next vector before all have read this one.
        tl.debug_barrier()
    return result


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
            has_output = tl.where((step + 1) % SUBSTEPS == 0, mask, False)
            g += tl.load(grad_outputs + (zero + step // SUBSTEPS) * stride, mask=has_output, other=0.0)
        tl.store(arguments_0 + slot, nothing, mask=mask)
        if FAMILY == "two-stage" or FAMILY == "shared gate":
            tl.store(arguments_1 + slot, nothing, mask=mask)
        if HAS_LINEAR:
            tl.store(velocities_0 + slot, nothing, mask=mask)
            if FAMILY == "two-stage":
                tl.store(velocities_1 + slot, nothing, mask=mask)
    return g


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
            has_output = tl.where((step + 1) % SUBSTEPS == 0, mask, False)
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
            has_before = tl.where(step < time - 1, mask, False)
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
