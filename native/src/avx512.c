/* AVX-512: 32 registers hold 8 rows times 2 vectors of sums. */

#include <immintrin.h>

#define VECTOR_BYTES 64
#define TILE_ROWS 8
#define PANEL_VECTORS 2
#ifndef BLOCK_TILES
#define BLOCK_TILES 1
#endif

#include "dtype_float.h"
#define NAME(x) avx512_float_##x
#define FMA(a, b, c) ((VEC)_mm512_fmadd_ps((__m512)(a), (__m512)(b), (__m512)(c)))
#define MIN(a, b) ((VEC)_mm512_min_ps((__m512)(a), (__m512)(b)))
#define MAX(a, b) ((VEC)_mm512_max_ps((__m512)(a), (__m512)(b)))
#include "kernels.h"
#include "next_dtype.h"

#include "dtype_double.h"
#define NAME(x) avx512_double_##x
#define FMA(a, b, c) ((VEC)_mm512_fmadd_pd((__m512d)(a), (__m512d)(b), (__m512d)(c)))
#define MIN(a, b) ((VEC)_mm512_min_pd((__m512d)(a), (__m512d)(b)))
#define MAX(a, b) ((VEC)_mm512_max_pd((__m512d)(a), (__m512d)(b)))
#include "kernels.h"

#define KERNELS srnn_avx512
#define PREFIX(dtype, x) avx512_##dtype##_##x
#include "table.h"
