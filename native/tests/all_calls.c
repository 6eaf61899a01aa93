/* Runs one path on made-up numbers, every family, nonlinearity and dtype at several sizes, and whole models, and writes
 * all results to standard output as doubles: a block for each call, begun by the number of its values. The last block
 * holds the largest error of tanh in single precision, in units of the last place. Programs of two machines can so be
 * compared.
 *
 *     all_calls neon > results
 */

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../src/stablernn_native.h"

enum { BUFFERS = 15, MAX_HIDDEN = 70, MAX_ROWS = 11, STEPS = 4, ROOM = 2 * STEPS * MAX_ROWS * MAX_HIDDEN };

static char memory[BUFFERS][ROOM * sizeof(double)];
static char matrices[2][MAX_HIDDEN * MAX_HIDDEN * sizeof(double)], biases[MAX_HIDDEN * sizeof(double)];
static uint64_t state;

/* A number between -1 and 1, the same on every machine. */
static double number(void) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (double)(int64_t)(state >> 11) / 4503599627370496.0 - 1;
}

static void set(void *to, int dtype, int64_t i, double value) {
    if (dtype == SRNN_FLOAT32)
        ((float *)to)[i] = (float)value;
    else
        ((double *)to)[i] = value;
}

static double get(const void *from, int dtype, int64_t i) {
    return dtype == SRNN_FLOAT32 ? ((const float *)from)[i] : ((const double *)from)[i];
}

static void fill(void *to, int dtype, int64_t count, double scale, double shift) {
    for (int64_t i = 0; i < count; i++) set(to, dtype, i, scale * number() + shift);
}

static void put(const void *from, int dtype, int64_t count) {
    double size = (double)count;
    fwrite(&size, sizeof(double), 1, stdout);
    for (int64_t i = 0; i < count; i++) {
        double value = get(from, dtype, i);
        fwrite(&value, sizeof(double), 1, stdout);
    }
}

static void demand(int32_t status) {
    if (status) {
        fprintf(stderr, "status %d\n", status);
        exit(1);
    }
}

static void *packed(const srnn_call *call, const void *matrix, int transposed) {
    const size_t size = call->dtype == SRNN_FLOAT32 ? sizeof(float) : sizeof(double);
    void *to = malloc(size * srnn_packed_size(call->path, call->dtype, call->hidden));
    demand(srnn_pack(call->path, call->dtype, call->hidden, matrix, transposed ? 1 : call->hidden,
                     transposed ? call->hidden : 1, to));
    return to;
}

/* Forward, then backward, with the options that the bits of `options` choose. */
static void run(srnn_call call, int options) {
    const int64_t hidden = call.hidden, rows = call.rows, steps = call.steps, size = steps * rows * hidden;
    const int is_two_stage = call.family == SRNN_TWO_STAGE, is_gated = call.family == SRNN_SHARED_GATE;
    const int has_linear = (options & 1) && (call.family == SRNN_RESIDUAL || is_two_stage);
    const int has_lengths = (options & 2) && call.family != SRNN_PLAIN;
    call.substeps = has_lengths ? 2 : 1;
    srnn_rows views[BUFFERS];
    for (int i = 0; i < BUFFERS; i++) {
        memset(memory[i], 0xff, sizeof(memory[i]));
        views[i] = (srnn_rows){memory[i], rows * hidden, hidden};
    }
    for (int i = 0; i < 2; i++) fill(matrices[i], call.dtype, hidden * hidden, 1.5 / sqrt((double)hidden), 0);
    fill(biases, call.dtype, hidden, 0.5, 0);
    if (call.nonlinearity == SRNN_MODRELU || (options & 1)) call.bias = biases;
    call.drives = views[0];
    call.drives.row_stride = is_gated ? 2 * hidden : hidden;
    call.drives.time_stride = rows * call.drives.row_stride;
    fill(memory[0], call.dtype, 2 * size, 1, 0);
    call.first = views[1];
    fill(memory[1], call.dtype, rows * hidden, 1, 0);
    call.last = views[2];
    call.states = views[3];
    for (int i = 0; i < (call.family == SRNN_PLAIN ? 0 : is_two_stage ? 3 : is_gated ? 2 : 1); i++)
        call.saved[i] = views[4 + i];
    if (has_lengths) {
        call.lengths = (srnn_rows){memory[7], rows, 1};
        fill(memory[7], call.dtype, steps * rows, 0.2, 0.3);
    }
    void *recurrent = packed(&call, matrices[0], 0), *linear = has_linear ? packed(&call, matrices[1], 0) : NULL;
    call.recurrent = recurrent;
    call.linear = linear;
    demand(srnn_forward(&call));
    put(memory[2], call.dtype, rows * hidden);
    put(memory[3], call.dtype, size);
    free(recurrent);
    free(linear);

    if (call.family == SRNN_PLAIN) call.saved[0] = views[3];
    recurrent = packed(&call, matrices[0], 1);
    linear = has_linear ? packed(&call, matrices[1], 1) : NULL;
    call.recurrent = recurrent;
    call.linear = linear;
    call.first = views[8];
    fill(memory[8], call.dtype, rows * hidden, 1, 0);
    call.last = views[9];
    if (options & 1) {
        call.outputs = views[10];
        fill(memory[10], call.dtype, size, 1, 0);
    }
    for (int i = 0; i < 1 + (is_two_stage || is_gated); i++) call.arguments[i] = views[11 + i];
    for (int i = 0; has_linear && i < 1 + is_two_stage; i++) call.velocities[i] = views[13 + i];
    demand(srnn_backward(&call));
    put(memory[9], call.dtype, rows * hidden);
    for (int i = 0; i < 2; i++) {
        if (call.arguments[i].data) put(call.arguments[i].data, call.dtype, size);
        if (call.velocities[i].data) put(call.velocities[i].data, call.dtype, size);
    }
    free(recurrent);
    free(linear);

    srnn_gradient gradient = {.path = call.path, .dtype = call.dtype, .outputs = hidden, .inputs = hidden, .rows = rows,
                              .steps = steps, .by = call.arguments[0], .x = views[3], .sums = matrices[0]};
    demand(srnn_add_gradient(&gradient));
    put(matrices[0], call.dtype, hidden * hidden);
}

static void *filled(int dtype, int64_t count, double scale, double shift) {
    void *to = malloc(count * (dtype == SRNN_FLOAT32 ? sizeof(float) : sizeof(double)));
    fill(to, dtype, count, scale, shift);
    return to;
}

static void *packed_affine(int32_t path, int dtype, int64_t outputs, int64_t inputs) {
    void *matrix = filled(dtype, outputs * inputs, 1.5 / sqrt((double)inputs), 0);
    void *to = malloc(srnn_affine_size(path, dtype, outputs, inputs) * sizeof(double));
    demand(srnn_pack_affine(path, dtype, outputs, inputs, matrix, to));
    free(matrix);
    return to;
}

/* A model of two layers from samples to answers, with the parts that the bits of `options` choose: the last one a window and
 * two members, which have no answers. The program ends soon: its memory is not freed. */
static void run_model(int32_t path, int32_t dtype, int32_t family, int64_t hidden, int options) {
    enum { LAYERS = 2, FEATURES = 2, SAMPLES = 3, OUTPUTS = 3, RUN_STEPS = 7, RUN_ROWS = 11 };
    const int has_mask = options & 1, has_embedding = !!(options & 2), every_step = !!(options & 4);
    const int64_t overlap = options & 1 ? 4 : 0, sample = has_mask ? 2 * FEATURES : FEATURES;
    const int64_t window = options & 8 ? 5 : 0, members = window ? 2 : 1, outputs = window ? 0 : OUTPUTS;
    const int64_t channels = (overlap + SAMPLES) * sample + (window ? 2 * FEATURES : 0), width = has_embedding ? 6 : channels;
    const int statistics = every_step ? 0 : SRNN_MEAN | SRNN_MAX;
    srnn_layer layers[2 * LAYERS];
    for (int i = 0; i < members * LAYERS; i++) {
        const int64_t columns = family == SRNN_SHARED_GATE ? 2 * hidden : hidden;
        srnn_call call = {.path = path, .dtype = dtype, .hidden = hidden};
        const int has_linear = family == SRNN_RESIDUAL || family == SRNN_TWO_STAGE;
        layers[i] = (srnn_layer){
            .family = family,
            .nonlinearity = SRNN_TANH,
            .step_size = 0.3,
            .recurrent = packed(&call, filled(dtype, hidden * hidden, 1.5 / sqrt((double)hidden), 0), 0),
            .linear = has_linear ? packed(&call, filled(dtype, hidden * hidden, 1.5 / sqrt((double)hidden), 0), 0) : NULL,
            .input = packed_affine(path, dtype, columns, i % LAYERS ? hidden : width),
            .input_bias = filled(dtype, columns, 0.5, 0),
        };
    }
    srnn_model model = {
        .path = path, .dtype = dtype, .features = FEATURES, .samples = SAMPLES, .overlap = overlap,
        .mean = filled(dtype, FEATURES, 1, 0), .scale = filled(dtype, FEATURES, 0.5, 1), .has_mask = has_mask,
        .statistics = statistics, .members = members, .hidden = hidden, .num_layers = LAYERS, .layers = layers,
        .outputs = outputs,
        .reads_last = 1, .every_step = every_step,
        .head = packed_affine(path, dtype, OUTPUTS, every_step ? hidden : 3 * hidden),
        .head_bias = filled(dtype, OUTPUTS, 0.5, 0), .temperature = 1.5,
    };
    srnn_embedding embeddings[2];
    if (has_embedding) {
        for (int i = 0; i < members; i++)
            embeddings[i] = (srnn_embedding){packed_affine(path, dtype, width, channels), filled(dtype, width, 0.5, 0)};
        model.embedding = width;
        model.embeddings = embeddings;
    }
    if (window) {
        model.window = window;
        model.season = 2;
        model.scale_floor = 0.05;
        model.clip = 1;
        if (options & 1) model.floor = filled(dtype, FEATURES, 0, 0.1);
    }
    enum { COUNT_OF_WINDOW = 1, COUNT_OF_STATISTICS = 10, STATES = 11 };
    const int64_t sizes[STATES] = {
        FEATURES * (window ? window : 1), window ? FEATURES : 0, window ? FEATURES : 0, overlap * sample, hidden, hidden,
        members > 1 ? hidden : 0, members > 1 ? hidden : 0, statistics ? members * hidden : 0,
        statistics ? members * hidden : 0, statistics ? 1 : 0,
    };
    void *states[STATES];
    int count = 0;
    for (int i = 0; i < STATES; i++) {
        const int is_count = i == COUNT_OF_WINDOW || i == COUNT_OF_STATISTICS;
        if (sizes[i]) states[count++] = filled(dtype, RUN_ROWS * sizes[i], !is_count, is_count ? 2 : 0);
    }
    int64_t order[RUN_ROWS], lengths[RUN_ROWS];
    for (int i = 0; i < RUN_ROWS; i++) {
        order[i] = RUN_ROWS - 1 - i;
        lengths[i] = i * RUN_STEPS / (RUN_ROWS - 1);
    }
    const int64_t answers = RUN_ROWS * outputs * (every_step ? RUN_STEPS : 1);
    void *x = filled(dtype, RUN_ROWS * RUN_STEPS * SAMPLES * FEATURES, 2, 0);
    for (int64_t i = 5; i < RUN_ROWS * RUN_STEPS * SAMPLES * FEATURES; i += 17) set(x, dtype, i, NAN);
    srnn_run run = {
        .model = &model, .steps = RUN_STEPS, .order = order, .rows = RUN_ROWS, .lengths = lengths, .x = x,
        .states = states, .answers = filled(dtype, answers, 0, 0), .probabilities = filled(dtype, answers, 0, 0),
    };
    demand(srnn_run_model(&run));
    if (answers) {
        put(run.answers, dtype, answers);
        put(run.probabilities, dtype, answers);
    }
    count = 0;
    for (int i = 0; i < STATES; i++)
        if (sizes[i]) put(states[count++], dtype, RUN_ROWS * sizes[i]);
}

static double error_of_tanh(int32_t path) {
    enum { COUNT = 64 };
    float x[COUNT], value[COUNT];
    double largest = 0;
    for (uint32_t bits = 0; bits < 0x7f800000u; bits += COUNT * 997) {
        for (int i = 0; i < COUNT; i++) {
            uint32_t one = bits + 997u * (uint32_t)i;
            if (one >= 0x7f800000u) one = 0x7f7fffffu;
            memcpy(&x[i], &one, sizeof(one));
        }
        demand(srnn_tanh(path, SRNN_FLOAT32, COUNT, x, value));
        for (int i = 0; i < COUNT; i++) {
            double exact = tanh((double)x[i]);
            float rounded = (float)exact;
            double unit = (double)nextafterf(rounded, 2) - (double)rounded;
            double error = fabs((double)value[i] - exact) / unit;
            if (!(error <= largest)) largest = error;
        }
    }
    return largest;
}

int main(int count, char **arguments) {
    static const int64_t sizes[][2] = {{1, 1}, {3, 5}, {17, 9}, {33, 11}, {70, 2}, {70, 11}};
    int32_t path = 0;
    while (path < SRNN_PATHS && (count < 2 || strcmp(srnn_path_name(path), arguments[1]) || !srnn_has_path(path))) path++;
    if (path == SRNN_PATHS) {
        fprintf(stderr, "this machine does not have the path\n");
        return 2;
    }
    for (int32_t dtype = 0; dtype < 2; dtype++) {
        for (int32_t family = 0; family < 4; family++)
            for (int options = 0; options < 16; options++) {
                state = 2;
                run_model(path, dtype, family, options & 1 ? 19 : 40, options);
            }
        for (int32_t family = 0; family < 4; family++)
            for (int32_t nonlinearity = 0; nonlinearity < 3; nonlinearity++)
                for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
                    for (int options = 0; options < 4; options++) {
                        state = 1;
                        srnn_call call = {.path = path, .dtype = dtype, .family = family,
                                          .nonlinearity = nonlinearity, .hidden = sizes[i][0], .rows = sizes[i][1],
                                          .steps = STEPS, .step_size = 0.3};
                        run(call, options);
                    }
    }
    double error = error_of_tanh(path);
    put(&error, SRNN_FLOAT64, 1);
    return 0;
}
