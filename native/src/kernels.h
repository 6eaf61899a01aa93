/* The kernels of one path and dtype. A path includes this file once for each dtype, having defined
 *
 *   REAL, BITS        the number and the unsigned integer of its size
 *   VECTOR_BYTES      size of a vector
 *   TILE_ROWS         rows of the state that are multiplied at a time
 *   PANEL_VECTORS     vectors of columns that are multiplied at a time
 *   BLOCK_TILES       tiles of rows that go through the sequence together if the matrix is large
 *   NAME(x)           x with the suffix of path and dtype
 *   FMA(a, b, c)      a * b + c of vectors
 *   MIN(a, b), MAX(a, b)  of vectors; b where either is NaN
 *   STREAM(to, x)     writes a vector to aligned memory past the caches
 *   FENCE()           orders such writes before later ones
 *
 * and the constants of its dtype, dtype_float.h or dtype_double.h.
 *
 * All arithmetic is written out by these operations: contraction of expressions is off, so that every instance of a
 * function rounds alike.
 */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "path.h"

typedef REAL NAME(vec) __attribute__((vector_size(VECTOR_BYTES)));
typedef REAL NAME(loose) __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(REAL)), may_alias));
typedef BITS NAME(ivec) __attribute__((vector_size(VECTOR_BYTES)));

#define VEC NAME(vec)
#define IVEC NAME(ivec)
#define LANES ((int64_t)(VECTOR_BYTES / sizeof(REAL)))
#define PANEL (PANEL_VECTORS * LANES)
/* Panels that a single row is multiplied by at a time. */
#define SINGLE_PANELS (TILE_ROWS > 4 ? 4 : 2)
#define SPLAT(x) ((REAL)(x) - (VEC){0})
#define INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 32")
#endif

INLINE VEC NAME(load)(const REAL *from) { return *(const NAME(loose) *)from; }

INLINE void NAME(store)(REAL *to, VEC x) { *(NAME(loose) *)to = x; }

/* Loads up to `count` numbers, and zeros after them. */
INLINE VEC NAME(load_part)(const REAL *from, int64_t count) {
    if (__builtin_expect(count >= LANES, 1)) return NAME(load)(from);
    REAL part[LANES] __attribute__((aligned(VECTOR_BYTES))) = {0};
    memcpy(part, from, count * sizeof(REAL));
    return *(const VEC *)part;
}

INLINE void NAME(store_part)(REAL *to, VEC x, int64_t count) {
    if (__builtin_expect(count >= LANES, 1))
        NAME(store)(to, x);
    else
        memcpy(to, &x, count * sizeof(REAL));
}

INLINE VEC NAME(select)(IVEC mask, VEC a, VEC b) { return (VEC)(((IVEC)a & mask) | ((IVEC)b & ~mask)); }

#define SIGN ((IVEC)SPLAT(-0.0))

/* Nonlinearities */

/* tanh |x| = m / (m + 1) with m = (exp(2 |x|) - 1) / 2. With |x| = n log(2) / 2 + r and p = (exp(2 r) - 1) / 2 that is
 * m = 2^n p + (2^n - 1) / 2; p is r + r^2 q(r), so that small numbers keep all their bits. */
INLINE VEC NAME(tanh)(VEC argument) {
    static const REAL coefficients[] = TANH_COEFFICIENTS;
    const VEC magic = SPLAT(TANH_MAGIC);
    VEC x = MIN(SPLAT(TANH_LIMIT), (VEC)((IVEC)argument & ~SIGN));
    /* Adding a number whose last bit is worth 1 rounds, and leaves n in the low bits. */
    VEC rounded = FMA(x, SPLAT(2.8853900817779268), magic);
    VEC n = rounded - magic;
    VEC r = FMA(n, SPLAT(-TANH_HALF_LOG2_HIGH), x);
    r = FMA(n, SPLAT(-TANH_HALF_LOG2_LOW), r);
    VEC q = SPLAT(coefficients[0]);
    UNROLL
    for (int i = 1; i < (int)(sizeof(coefficients) / sizeof(REAL)); i++) q = FMA(r, q, SPLAT(coefficients[i]));
    VEC p = FMA(r * r, q, r);
    VEC power = (VEC)(((IVEC)rounded + EXPONENT_BIAS) << MANTISSA_BITS);
    VEC m = FMA(power, p, FMA(SPLAT(0.5), power, SPLAT(-0.5)));
    return (VEC)((IVEC)(m / (m + SPLAT(1))) | ((IVEC)argument & SIGN));
}

INLINE VEC NAME(sigmoid)(VEC x) {
    const VEC half = SPLAT(0.5);
    return FMA(half, NAME(tanh)(half * x), half);
}

/* f(z) with the bias: sign(z) max(|z| + bias, 0) for modReLU, f(z + bias) for the others. */
INLINE VEC NAME(activate)(int32_t nonlinearity, VEC z, VEC bias) {
    const VEC zero = {0};
    if (nonlinearity == SRNN_TANH) return NAME(tanh)(z + bias);
    if (nonlinearity == SRNN_RELU) return MAX(zero, z + bias);
    VEC size = MAX(zero, (VEC)((IVEC)z & ~SIGN) + bias);
    return NAME(select)((IVEC)(z == zero), zero, (VEC)((IVEC)size | ((IVEC)z & SIGN)));
}

/* The gradient by the argument of f, from that by its value. */
INLINE VEC NAME(activate_backward)(int32_t nonlinearity, VEC g, VEC value) {
    const VEC zero = {0};
    if (nonlinearity == SRNN_TANH) return g * FMA(-value, value, SPLAT(1));
    if (nonlinearity == SRNN_RELU) return NAME(select)((IVEC)(value <= zero), zero, g);
    return NAME(select)((IVEC)(value == zero), zero, g);
}

/* Products */

static int64_t NAME(padded)(int64_t hidden) { return (hidden + PANEL - 1) / PANEL * PANEL; }

static int64_t NAME(packed_size)(int64_t hidden) { return NAME(padded)(hidden) * hidden; }

/* By panels of columns of the product: for each j the panel's M[i, j], zeros after the last i. */
static void NAME(pack)(int64_t hidden, const void *from, int64_t row_stride, int64_t column_stride, void *to) {
    /* A cache line at a time, since rows a power of two apart displace each other. */
    enum { LINE = 64 / sizeof(REAL) };
    const REAL *matrix = from;
    REAL *packed = to;
    for (int64_t start = 0; start < hidden; start += PANEL, packed += PANEL * hidden)
        for (int64_t first = 0; first < hidden; first += LINE) {
            const int64_t end = first + LINE < hidden ? first + LINE : hidden;
            for (int64_t i = 0; i < PANEL; i++)
                for (int64_t j = first; j < end; j++)
                    packed[j * PANEL + i] =
                        start + i < hidden ? matrix[(start + i) * row_stride + j * column_stride] : 0;
        }
}

/* out[r, i] = sum over j of M[i, j] x[r, j], to which out is added first if `adds`; j from first to last. */
INLINE void NAME(tile)(const int rows, const int panels, int64_t hidden, const REAL *packed, const REAL *x, REAL *out,
                       int64_t stride, const int adds) {
    VEC sums[TILE_ROWS * PANEL_VECTORS];
    const int vectors = panels * PANEL_VECTORS;
    UNROLL
    for (int r = 0; r < rows; r++)
        UNROLL
        for (int v = 0; v < vectors; v++) sums[r * vectors + v] = adds ? *(VEC *)(out + r * stride + v * LANES) : (VEC){0};
    for (int64_t j = 0; j < hidden; j++) {
        VEC weights[TILE_ROWS * PANEL_VECTORS];
        UNROLL
        for (int v = 0; v < vectors; v++)
            weights[v] = NAME(load)(
                packed + v / PANEL_VECTORS * PANEL * hidden + v % PANEL_VECTORS * LANES + j * PANEL);
        UNROLL
        for (int r = 0; r < rows; r++) {
            VEC factor = SPLAT(x[r * stride + j]);
            UNROLL
            for (int v = 0; v < vectors; v++) sums[r * vectors + v] = FMA(factor, weights[v], sums[r * vectors + v]);
        }
    }
    UNROLL
    for (int r = 0; r < rows; r++)
        UNROLL
        for (int v = 0; v < vectors; v++) *(VEC *)(out + r * stride + v * LANES) = sums[r * vectors + v];
}

#define TILE(rows) \
    case rows: \
        NAME(tile)(rows, 1, hidden, panel, x, result, stride, adds); \
        break

INLINE void NAME(panel)(int64_t rows, int64_t hidden, const REAL *panel, const REAL *x, REAL *result, int64_t stride,
                        const int adds) {
    switch (rows) {
        TILE(1);
        TILE(2);
        TILE(3);
#if TILE_ROWS > 4
        TILE(5);
#endif
#if TILE_ROWS > 6
        TILE(6);
        TILE(7);
        TILE(8);
#endif
#if TILE_ROWS == 6
        TILE(6);
#endif
        TILE(4);
    }
}

/* The product of a block of rows, panel by panel; x and out have the row stride of the padded state. */
static void NAME(product)(int64_t rows, int64_t hidden, const REAL *packed, const REAL *x, REAL *out, int adds) {
    const int64_t stride = NAME(padded)(hidden);
    int64_t i = 0;
    if (rows == 1)
        /* Several panels at once, since the sums of a single row wait for each other. */
        for (; i + SINGLE_PANELS * PANEL <= stride; i += SINGLE_PANELS * PANEL) {
            if (adds)
                NAME(tile)(1, SINGLE_PANELS, hidden, packed + i * hidden, x, out + i, stride, 1);
            else
                NAME(tile)(1, SINGLE_PANELS, hidden, packed + i * hidden, x, out + i, stride, 0);
        }
    const int64_t tiles = (rows + TILE_ROWS - 1) / TILE_ROWS;
    for (; i < stride; i += PANEL)
        for (int64_t tile = 0; tile < tiles; tile++) {
            /* Tiles of equal height: a low one waits for its sums. */
            const int64_t r = rows * tile / tiles, count = rows * (tile + 1) / tiles - r;
            if (adds)
                NAME(panel)(count, hidden, packed + i * hidden, x + r * stride, out + r * stride + i, stride, 1);
            else
                NAME(panel)(count, hidden, packed + i * hidden, x + r * stride, out + r * stride + i, stride, 0);
        }
}

#include "passes.h"
#include "model.h"
