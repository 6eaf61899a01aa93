"""Device functions of the kernels: nonlinearities, their derivatives, and products with a matrix.

They use only what both the compiler and the interpreter of Triton take: no tuples, one return at the end of a function,
and branches on constants.
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
