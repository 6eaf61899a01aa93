/* The recurrence of one layer over a batch of sequences, without any other library.
 *
 * The step is that of a `StepForm` of stablernn, with the state h, the drive d, the matrices K and A, the nonlinearity f
 * and the step size e:
 *
 *   plain        h <- f(K h + d)
 *   residual     h <- h + e (A h + f(K h + d))
 *   two-stage    h <- h + e v(h + (e / 2) v(h)) with v(h) = A h + f(K h + d)
 *   shared gate  h <- h + e sigmoid(K h + d_z) f(K h + d_h), where d is d_z followed by d_h
 *
 * Every row is computed by the same operations in the same order whatever the other rows are, so that a row alone equals
 * the same row of a batch bit for bit, and steps one at a time equal a sequence. Bits differ between paths.
 */

#ifndef STABLERNN_NATIVE_H
#define STABLERNN_NATIVE_H

#include <stdint.h>

#if defined(_WIN32)
#define SRNN_API __declspec(dllexport)
#else
#define SRNN_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Changes with the structure below and the meaning of the functions. */
#define SRNN_ABI_VERSION 4

enum srnn_path { SRNN_BEST = -1, SRNN_PLAIN_C, SRNN_NEON, SRNN_AVX2, SRNN_AVX512, SRNN_PATHS };
enum srnn_dtype { SRNN_FLOAT32, SRNN_FLOAT64 };
enum srnn_family { SRNN_PLAIN, SRNN_RESIDUAL, SRNN_TWO_STAGE, SRNN_SHARED_GATE };
enum srnn_nonlinearity { SRNN_TANH, SRNN_RELU, SRNN_MODRELU };
enum srnn_status { SRNN_OK, SRNN_NO_PATH, SRNN_NO_MEMORY, SRNN_BAD_ARGUMENT };

/* Rows over time: the elements of a row are contiguous. The strides count elements. */
typedef struct {
    void *data;
    int64_t time_stride;
    int64_t row_stride;
} srnn_rows;

typedef struct {
    int32_t path;
    int32_t dtype;
    int32_t family;
    int32_t nonlinearity;
    int64_t hidden;
    int64_t rows;
    int64_t steps;    /* sub-steps */
    int64_t substeps; /* sub-steps of a time step, which read the same drive; steps is a multiple of it */
    double step_size;
    /* As srnn_pack wrote them for this path: K and A forward, their transposes backward. linear may be null. */
    const void *recurrent;
    const void *linear;
    const void *bias;  /* (hidden), or null */
    srnn_rows lengths; /* (time steps, rows, 1), which replace step_size; or null */
    /* Forward: (time steps, rows, hidden), with a shared gate (time steps, rows, 2 hidden). */
    srnn_rows drives;
    /* (rows, hidden). Forward: the state before the first step, which is read, and that after the last one, which is
     * written; they may be the same memory. Backward: the gradient by the state after the last step, and that by the
     * state before the first one, both multiplied by step_size where that is used. */
    srnn_rows first;
    srnn_rows last;
    /* (steps, rows, hidden). Forward: the states after the steps, or null. Unused backward. */
    srnn_rows states;
    /* (steps, rows, hidden) each, which the forward pass writes unless they are null, and the backward pass reads.
     * Plain: the states after the steps, backward only. Residual: the values of f. Two-stage: the values of f at the
     * first and second stage, and the states halfway, of which the backward pass reads none. Shared gate: gates and
     * values of f. */
    srnn_rows saved[3];
    /* Backward: gradients by the states after the time steps as outputs, (time steps, rows, hidden), or null. */
    srnn_rows outputs;
    /* Backward, written: gradients by the arguments of f, first and second stage or gate and candidate, which may take the
     * place of the saved values; and by A h of each stage, or null. */
    srnn_rows arguments[2];
    srnn_rows velocities[2];
} srnn_call;

/* The gradient of a matrix that takes `x` to what the loss has the gradient `by` of: the sum of their products over all
 * steps and rows. */
typedef struct {
    int32_t path;
    int32_t dtype;
    int64_t outputs; /* rows of the matrix */
    int64_t inputs;  /* columns of the matrix */
    int64_t rows;
    int64_t steps;
    srnn_rows by; /* (steps, rows, outputs) */
    srnn_rows x;  /* (steps, rows, inputs) */
    void *sums;   /* (outputs, inputs), contiguous, to which the products are added */
} srnn_gradient;

/* The layer of a model, whose input is that of the model or the states of the layer below. */
typedef struct {
    int32_t family;
    int32_t nonlinearity;
    double step_size;
    const void *recurrent, *linear, *bias; /* As in srnn_call */
    const void *input;      /* (hidden, channels), with a shared gate (2 hidden, channels), from srnn_pack_affine */
    const void *input_bias; /* (hidden) or (2 hidden), or null */
} srnn_layer;

/* A linear map from the channels of a step to the input of the first layer, which a GELU follows. */
typedef struct {
    const void *weight; /* (embedding, channels), from srnn_pack_affine */
    const void *bias;   /* (embedding) */
} srnn_embedding;

/* Running statistics of the states of the last layer, as bits. */
enum srnn_statistic { SRNN_MEAN = 1, SRNN_MAX = 2 };

/* Scaling, layers and linear head of a model, which can be run by several threads at once. */
typedef struct {
    int32_t path;
    int32_t dtype;
    int64_t features; /* of a sample */
    int64_t samples;  /* of a step, a patch of them */
    int64_t overlap;  /* samples of the steps before that a step sees as well */
    /* (features). A sample x becomes (x - mean) / scale, NaN the value before it. */
    const void *mean, *scale;
    /* With a window of 2 samples or more, these values become their distance from the mean of the last `window` ones, in
     * units of their mean absolute seasonal difference plus `scale_floor`, and further channels of a step are the logarithm
     * of that unit and the change of the mean, (2 features). `season` is from 1 to window - 1. */
    int64_t window, season;
    const void *floor;  /* (features): log(max(x, floor)) takes the place of x; or null. Only with a window */
    /* With a window: a number above 0, and the largest size of a scaled value and of the change of the mean. */
    double scale_floor, clip;
    int32_t has_mask;   /* each sample is followed by `features` channels that are 1 for a value and 0 for NaN */
    int32_t statistics; /* SRNN_MEAN | SRNN_MAX */
    /* Stacks of layers over the same channels. */
    int64_t members;
    /* The first layer of a member reads gelu(M c + b) of the channels c of a step, or the channels if `embedding` is 0. */
    int64_t embedding;
    const srnn_embedding *embeddings; /* (members) */
    int64_t hidden;
    int64_t num_layers;       /* of a member */
    const srnn_layer *layers; /* (members, num_layers) */
    /* Of a single member the head reads the states of the last layer if reads_last, then the statistics. Without outputs there is none. */
    int64_t outputs;
    int32_t reads_last;
    int32_t every_step; /* whether the head is computed after each step, or only after the last */
    const void *head;   /* (outputs, inputs of the head), from srnn_pack_affine */
    const void *head_bias;                 /* (outputs) */
    const void *output_mean, *output_scale; /* (outputs): answer = output_mean + output_scale * head; or null */
    double temperature; /* divides the answers */
} srnn_model;

/* Sequences, or steps of streams. All arrays are contiguous. */
typedef struct {
    const srnn_model *model;
    int64_t steps;
    /* The rows to be computed, by falling length, and how many. */
    const int64_t *order;
    int64_t rows;
    const int64_t *lengths; /* steps of each row of the batch, 0 to steps; or null if all have all */
    const void *x;          /* (batch, steps, samples, features) */
    /* Read and written: the last value of each feature, scaled, (batch, features); or with a window its values,
     * (batch, window * features), how many steps there are since the first observed one, and the mean before, (batch,
     * features) each; with an overlap the channels of the last samples, (batch, overlap * channels of a sample); the states of
     * the layers, (batch, hidden), member after member; the statistics of all members, (batch, members * hidden), mean first;
     * if there are any, their number of steps, (batch, 1). */
    void *const *states;
    /* (batch, outputs), of every step (batch, steps, outputs), where the last answer of a row repeats over its padding. */
    void *answers;
    void *probabilities; /* the softmax of the answers, or null */
} srnn_run;

SRNN_API int32_t srnn_abi_version(void);

/* Returns the fastest path of this machine. */
SRNN_API int32_t srnn_best_path(void);

/* Returns whether this machine has a path. */
SRNN_API int32_t srnn_has_path(int32_t path);

/* Returns the name of a path, or null. */
SRNN_API const char *srnn_path_name(int32_t path);

/* Returns the number of elements that a packed matrix of (hidden, hidden) takes, 0 if there is no such path. */
SRNN_API int64_t srnn_packed_size(int32_t path, int32_t dtype, int64_t hidden);

/* Packs the matrix M of which M[i, j] is at i * row_stride + j * column_stride; swap the strides for its transpose. */
SRNN_API int32_t srnn_pack(int32_t path, int32_t dtype, int64_t hidden, const void *matrix, int64_t row_stride,
                           int64_t column_stride, void *packed);

/* Each call works on its rows alone: threads may share the rows of a batch out among themselves. */
SRNN_API int32_t srnn_forward(const srnn_call *call);
SRNN_API int32_t srnn_backward(const srnn_call *call);

/* Adds to the gradient of a matrix. Threads may share its rows out among themselves: each number is added up in the order
 * of steps and rows whatever the other ones are. */
SRNN_API int32_t srnn_add_gradient(const srnn_gradient *gradient);

/* Returns the number of elements that a packed matrix of (outputs, inputs) takes for srnn_run_model, 0 if there is no such
 * path. */
SRNN_API int64_t srnn_affine_size(int32_t path, int32_t dtype, int64_t outputs, int64_t inputs);

/* Packs a matrix of (outputs, inputs), contiguous. */
SRNN_API int32_t srnn_pack_affine(int32_t path, int32_t dtype, int64_t outputs, int64_t inputs, const void *matrix,
                                  void *packed);

/* Runs sequences through a model. Every number is computed by the same operations in the same order whatever the other rows
 * and however the steps are divided into calls. */
SRNN_API int32_t srnn_run_model(const srnn_run *run);

/* The nonlinearity of the kernels, for tests: tanh of `count` numbers, accurate to 4 ulp. */
SRNN_API int32_t srnn_tanh(int32_t path, int32_t dtype, int64_t count, const void *x, void *out);

#ifdef __cplusplus
}
#endif

#endif
