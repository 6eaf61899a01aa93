/* The functions of stablernn_native.h: the choice of a path, and checks of what a call says. */

#include "path.h"

#if defined(__x86_64__) && defined(SRNN_WITH_X86)
#include <xmmintrin.h>
#endif

static const srnn_kernels *kernels_of(int32_t path) {
    switch (path) {
    case SRNN_PLAIN_C:
        return srnn_plain_c;
#if defined(SRNN_WITH_NEON)
    case SRNN_NEON:
        return srnn_neon;
#endif
#if defined(SRNN_WITH_X86)
    case SRNN_AVX2:
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? srnn_avx2 : 0;
    case SRNN_AVX512:
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") ? srnn_avx512 : 0;
#endif
    default:
        return 0;
    }
}

static const srnn_kernels *find(int32_t path, int32_t dtype) {
    if (dtype != SRNN_FLOAT32 && dtype != SRNN_FLOAT64) return 0;
    const srnn_kernels *kernels = kernels_of(path == SRNN_BEST ? srnn_best_path() : path);
    return kernels ? kernels + dtype : 0;
}

int32_t srnn_abi_version(void) { return SRNN_ABI_VERSION; }

int32_t srnn_has_path(int32_t path) { return kernels_of(path) != 0; }

int32_t srnn_best_path(void) {
    int32_t path = SRNN_PATHS - 1;
    while (!srnn_has_path(path)) path--;
    return path;
}

const char *srnn_path_name(int32_t path) {
    static const char *const names[SRNN_PATHS] = {"plain", "neon", "avx2", "avx512"};
    return path >= 0 && path < SRNN_PATHS ? names[path] : 0;
}

int64_t srnn_packed_size(int32_t path, int32_t dtype, int64_t hidden) {
    const srnn_kernels *kernels = find(path, dtype);
    return kernels ? kernels->packed_size(hidden) : 0;
}

int32_t srnn_pack(int32_t path, int32_t dtype, int64_t hidden, const void *matrix, int64_t row_stride,
                  int64_t column_stride, void *packed) {
    const srnn_kernels *kernels = find(path, dtype);
    if (!kernels) return SRNN_NO_PATH;
    kernels->pack(hidden, matrix, row_stride, column_stride, packed);
    return SRNN_OK;
}

/* Gradients that have become denormal slow many processors down by an order of magnitude. Returns the mode before. */
static unsigned int flush_denormals(void) {
#if defined(__x86_64__) && defined(SRNN_WITH_X86)
    const unsigned int mode = _mm_getcsr();
    _mm_setcsr(mode | 0x8040);
    return mode;
#else
    return 0;
#endif
}

/* The flags of exceptions are kept as they were, too. */
static void restore_mode(unsigned int mode) {
#if defined(__x86_64__) && defined(SRNN_WITH_X86)
    _mm_setcsr(mode);
#else
    (void)mode;
#endif
}

/* Whether the parts that every pass reads are there. */
static int is_complete(const srnn_call *call) {
    return call->hidden > 0 && call->rows >= 0 && call->steps >= 0 && call->substeps > 0 && call->recurrent &&
           call->first.data && call->last.data && call->family >= SRNN_PLAIN && call->family <= SRNN_SHARED_GATE &&
           call->nonlinearity >= SRNN_TANH && call->nonlinearity <= SRNN_MODRELU &&
           (call->nonlinearity != SRNN_MODRELU || call->bias);
}

int32_t srnn_forward(const srnn_call *call) {
    const srnn_kernels *kernels = find(call->path, call->dtype);
    if (!kernels) return SRNN_NO_PATH;
    if (!is_complete(call) || !call->drives.data) return SRNN_BAD_ARGUMENT;
    return kernels->forward(call);
}

int32_t srnn_backward(const srnn_call *call) {
    const srnn_kernels *kernels = find(call->path, call->dtype);
    if (!kernels) return SRNN_NO_PATH;
    const int parts = call->family == SRNN_TWO_STAGE || call->family == SRNN_SHARED_GATE ? 2 : 1;
    int complete = is_complete(call);
    for (int part = 0; part < parts; part++) complete &= call->saved[part].data && call->arguments[part].data;
    if (call->linear)
        for (int stage = 0; stage <= (call->family == SRNN_TWO_STAGE); stage++)
            complete &= call->velocities[stage].data != 0;
    if (!complete) return SRNN_BAD_ARGUMENT;
    const unsigned int mode = flush_denormals();
    const int32_t status = kernels->backward(call);
    restore_mode(mode);
    return status;
}

int32_t srnn_add_gradient(const srnn_gradient *gradient) {
    const srnn_kernels *kernels = find(gradient->path, gradient->dtype);
    if (!kernels) return SRNN_NO_PATH;
    if (gradient->outputs < 0 || gradient->inputs < 0 || gradient->rows < 0 || gradient->steps < 0 ||
        !gradient->by.data || !gradient->x.data || !gradient->sums)
        return SRNN_BAD_ARGUMENT;
    const unsigned int mode = flush_denormals();
    kernels->add_gradient(gradient);
    restore_mode(mode);
    return SRNN_OK;
}

int64_t srnn_affine_size(int32_t path, int32_t dtype, int64_t outputs, int64_t inputs) {
    const srnn_kernels *kernels = find(path, dtype);
    return kernels ? kernels->affine_size(outputs, inputs) : 0;
}

int32_t srnn_pack_affine(int32_t path, int32_t dtype, int64_t outputs, int64_t inputs, const void *matrix,
                         void *packed) {
    const srnn_kernels *kernels = find(path, dtype);
    if (!kernels) return SRNN_NO_PATH;
    kernels->pack_affine(outputs, inputs, matrix, packed);
    return SRNN_OK;
}

int32_t srnn_run_model(const srnn_run *run) {
    const srnn_model *model = run->model;
    const srnn_kernels *kernels = find(model->path, model->dtype);
    if (!kernels) return SRNN_NO_PATH;
    int complete = model->features > 0 && model->samples > 0 && model->overlap >= 0 && model->hidden > 0 &&
                   model->members > 0 && model->num_layers > 0 && model->mean && model->scale && model->outputs >= 0 &&
                   run->rows >= 0 && run->steps >= 0 && run->order && run->x && run->states;
    if (model->window) complete = complete && 0 < model->season && model->season < model->window;
    if (model->embedding) complete = complete && model->embedding > 0 && model->embeddings;
    for (int64_t i = 0; complete && model->embedding && i < model->members; i++)
        complete = model->embeddings[i].weight && model->embeddings[i].bias;
    if (model->outputs)
        complete = complete && model->members == 1 && model->head && model->head_bias && run->answers;
    for (int64_t i = 0; complete && i < model->members * model->num_layers; i++) {
        const srnn_layer *layer = model->layers + i;
        complete = layer->recurrent && layer->input && layer->family >= SRNN_PLAIN &&
                   layer->family <= SRNN_SHARED_GATE && layer->nonlinearity >= SRNN_TANH &&
                   layer->nonlinearity <= SRNN_MODRELU && (layer->nonlinearity != SRNN_MODRELU || layer->bias);
    }
    return complete ? kernels->run_model(run) : SRNN_BAD_ARGUMENT;
}

int32_t srnn_tanh(int32_t path, int32_t dtype, int64_t count, const void *x, void *out) {
    const srnn_kernels *kernels = find(path, dtype);
    if (!kernels) return SRNN_NO_PATH;
    kernels->tanh(count, x, out);
    return SRNN_OK;
}
