/* AVX2 with FMA: 16 registers hold 6 rows times 2 vectors of sums. */

#include <immintrin.h>

#define VECTOR_BYTES 32
#define TILE_ROWS 6
#define PANEL_VECTORS 2
#define FENCE() _mm_sfence()
#define BLOCK_TILES 6

#include "dtype_float.h"
#define NAME(x) avx2_float_##x
#define FMA(a, b, c) ((VEC)_mm256_fmadd_ps((__m256)(a), (__m256)(b), (__m256)(c)))
#define MIN(a, b) ((VEC)_mm256_min_ps((__m256)(a), (__m256)(b)))
#define MAX(a, b) ((VEC)_mm256_max_ps((__m256)(a), (__m256)(b)))
#define STREAM(to, x) _mm256_stream_ps(to, (__m256)(x))
#include "kernels.h"

#include "dtype_double.h"
#define NAME(x) avx2_double_##x
#define FMA(a, b, c) ((VEC)_mm256_fmadd_pd((__m256d)(a), (__m256d)(b), (__m256d)(c)))
#define MIN(a, b) ((VEC)_mm256_min_pd((__m256d)(a), (__m256d)(b)))
#define MAX(a, b) ((VEC)_mm256_max_pd((__m256d)(a), (__m256d)(b)))
#define STREAM(to, x) _mm256_stream_pd(to, (__m256d)(x))
#include "kernels.h"

#define PREFIX(dtype, x) avx2_##dtype##_##x

const srnn_kernels srnn_avx2[2] = TABLE;
