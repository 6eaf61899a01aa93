/* Double precision; first what kernels.h defines and reads for single precision is cleared. */

#undef REAL
#undef BITS
#undef ERF
#undef NAME
#undef FMA
#undef MIN
#undef MAX
#undef STREAM
#undef MANTISSA_BITS
#undef EXPONENT_BIAS
#undef TANH_LIMIT
#undef TANH_MAGIC
#undef TANH_HALF_LOG2_HIGH
#undef TANH_HALF_LOG2_LOW
#undef TANH_COEFFICIENTS
#undef VEC
#undef IVEC
#undef LANES
#undef PANEL
#undef SINGLE_PANELS
#undef SPLAT
#undef INLINE
#undef UNROLL
#undef SIGN
#undef TILE
#undef GRADIENT_ROWS
#undef GRADIENT_TILE

#define REAL double
#define BITS uint64_t
#define ERF erf
#define MANTISSA_BITS 52
#define EXPONENT_BIAS 1023
/* From here on tanh rounds to 1. */
#define TANH_LIMIT 20
#define TANH_MAGIC 6755399441055744.0
#define TANH_HALF_LOG2_HIGH 0.34657359018456190825
#define TANH_HALF_LOG2_LOW 9.5410746463529385001e-11
/* The Taylor series of q, 2^(k + 1) / (k + 2)! for k from 12 to 0. */
#define TANH_COEFFICIENTS \
    { \
        9.39683479366019032e-08, 6.57778435556213282e-07, 4.27555983111538692e-06, 2.56533589866923215e-05, \
        1.41093474426807748e-04, 7.05467372134038848e-04, 3.17460317460317460e-03, 1.26984126984126984e-02, \
        4.44444444444444461e-02, 1.33333333333333331e-01, 3.33333333333333315e-01, 6.66666666666666630e-01, \
        1.00000000000000000e+00, \
    }
