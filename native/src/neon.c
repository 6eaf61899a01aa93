/* NEON of AArch64: 32 registers hold 8 rows times 2 vectors of sums. */

#include <arm_neon.h>

#define VECTOR_BYTES 16
#define TILE_ROWS 8
#define PANEL_VECTORS 2
#define BLOCK_TILES 4
#define FENCE() ((void)0)

#include "dtype_float.h"
#define NAME(x) neon_float_##x
#define FMA(a, b, c) ((VEC)vfmaq_f32((float32x4_t)(c), (float32x4_t)(a), (float32x4_t)(b)))
#define MIN(a, b) ((VEC)vminq_f32((float32x4_t)(a), (float32x4_t)(b)))
#define MAX(a, b) ((VEC)vmaxq_f32((float32x4_t)(a), (float32x4_t)(b)))
#define STREAM(to, x) NAME(store)(to, x)
#include "kernels.h"

#include "dtype_double.h"
#define NAME(x) neon_double_##x
#define FMA(a, b, c) ((VEC)vfmaq_f64((float64x2_t)(c), (float64x2_t)(a), (float64x2_t)(b)))
#define MIN(a, b) ((VEC)vminq_f64((float64x2_t)(a), (float64x2_t)(b)))
#define MAX(a, b) ((VEC)vmaxq_f64((float64x2_t)(a), (float64x2_t)(b)))
#define STREAM(to, x) NAME(store)(to, x)
#include "kernels.h"

#define PREFIX(dtype, x) neon_##dtype##_##x

const srnn_kernels srnn_neon[2] = TABLE;
