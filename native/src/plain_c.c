/* Plain C for any machine: the compiler splits the vectors into whatever there is. */

#define VECTOR_BYTES 16
#define TILE_ROWS 4
#define PANEL_VECTORS 2
#define BLOCK_TILES 8
#define FENCE() ((void)0)
/* Not fma(), which is a function call where the machine has no such instruction. */
#define FMA(a, b, c) ((a) * (b) + (c))
#define MIN(a, b) NAME(select)((IVEC)((VEC)(a) < (VEC)(b)), (a), (b))
#define MAX(a, b) NAME(select)((IVEC)((VEC)(a) > (VEC)(b)), (a), (b))

#include "dtype_float.h"
#define NAME(x) plain_c_float_##x
#define STREAM(to, x) NAME(store)(to, x)
#include "kernels.h"

#include "dtype_double.h"
#define FMA(a, b, c) ((a) * (b) + (c))
#define MIN(a, b) NAME(select)((IVEC)((VEC)(a) < (VEC)(b)), (a), (b))
#define MAX(a, b) NAME(select)((IVEC)((VEC)(a) > (VEC)(b)), (a), (b))
#define NAME(x) plain_c_double_##x
#define STREAM(to, x) NAME(store)(to, x)
#include "kernels.h"

#define PREFIX(dtype, x) plain_c_##dtype##_##x

const srnn_kernels srnn_plain_c[2] = TABLE;
