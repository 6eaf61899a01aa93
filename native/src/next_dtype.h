/* Clears what kernels.h defines and reads for one dtype. */

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
