/* Single precision. */

#define REAL float
#define BITS uint32_t
#define ERF erff
#define MANTISSA_BITS 23
#define EXPONENT_BIAS 127
/* From here on tanh rounds to 1. */
#define TANH_LIMIT 10
#define TANH_MAGIC 12582912.0
#define TANH_HALF_LOG2_HIGH 0.3466796875
#define TANH_HALF_LOG2_LOW -1.06097220e-04
/* A minimax fit of q, whose error relative to tanh is 1.4e-8; the highest power first. */
#define TANH_COEFFICIENTS {4.442366664e-02, 1.338748941e-01, 3.333377701e-01, 6.666615473e-01, 9.999999608e-01}
