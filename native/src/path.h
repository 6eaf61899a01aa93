/* What a path provides, by dtype, and the table of it. */

#ifndef STABLERNN_PATH_H
#define STABLERNN_PATH_H

#include "stablernn_native.h"

typedef struct {
    int64_t (*packed_size)(int64_t hidden);
    void (*pack)(int64_t hidden, const void *matrix, int64_t row_stride, int64_t column_stride, void *packed);
    int32_t (*forward)(const srnn_call *call);
    int32_t (*backward)(const srnn_call *call);
    void (*add_gradient)(const srnn_gradient *gradient);
    int64_t (*affine_size)(int64_t outputs, int64_t inputs);
    void (*pack_affine)(int64_t outputs, int64_t inputs, const void *matrix, void *packed);
    int32_t (*run_model)(const srnn_run *run);
    void (*tanh)(int64_t count, const void *x, void *out);
} srnn_kernels;

/* By dtype. A path that this machine's compiler cannot build is not linked. */
extern const srnn_kernels srnn_plain_c[2];
extern const srnn_kernels srnn_neon[2];
extern const srnn_kernels srnn_avx2[2];
extern const srnn_kernels srnn_avx512[2];

/* The table of the kernels of a path, whose names PREFIX(dtype, x) makes. */
#define ENTRY(dtype) \
    {PREFIX(dtype, packed_size), PREFIX(dtype, pack), PREFIX(dtype, forward), PREFIX(dtype, backward), \
     PREFIX(dtype, add_gradient), PREFIX(dtype, affine_size), PREFIX(dtype, pack_affine), PREFIX(dtype, run_model), PREFIX(dtype, tanh_of)}
#define TABLE {ENTRY(float), ENTRY(double)}

#endif
