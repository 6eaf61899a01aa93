/* AVX-512: 32 registers hold 8 rows times 2 vectors of sums. */

#include <immintrin.h>

#define VECTOR_BYTES 64
#define TILE_ROWS 8
#define PANEL_VECTORS 2
#define FENCE() _mm_sfence()
#define BLOCK_TILES 4

#include "dtype_float.h"
#define NAME(x) avx512_float_##x
#define FMA(a, b, c) ((VEC)_mm512_fmadd_ps((__m512)(a), (__m512)(b), (__m512)(c)))
#define MIN(a, b) ((VEC)_mm512_min_ps((__m512)(a), (__m512)(b)))
#define MAX(a, b) ((VEC)_mm512_max_ps((__m512)(a), (__m512)(b)))
#define STREAM(to, x) _mm512_stream_ps(to, (__m512)(x))
#include "kernels.h"

#include "dtype_double.h"
#define NAME(x) avx512_double_##x
#define FMA(a, b, c) ((VEC)_mm512_fmadd_pd((__m512d)(a), (__m512d)(b), (__m512d)(c)))
#define MIN(a, b) ((VEC)_mm512_min_pd((__m512d)(a), (__m512d)(b)))
#define MAX(a, b) ((VEC)_mm512_max_pd((__m512d)(a), (__m512d)(b)))
#define STREAM(to, x) _mm512_stream_pd(to, (__m512d)(x))
#include "kernels.h"

#define PREFIX(dtype, x) avx512_##dtype##_##x

const srnn_kernels srnn_avx512[2] = TABLE;
