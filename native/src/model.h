/* A model from samples to answers, for one path and dtype; included by kernels.h. A block of rows goes through all steps a
 * chunk at a time: the products with the inputs of a chunk are computed together, layer after layer. */

/* From the samples of a step to the channels of the first layer, for one row.
 *
 * The channels begin with `before` numbers that the step shares with the one before it, which `shared` holds, and `shared`
 * becomes what the next step shares with this one. */


/* Scaling by constants. `held` holds the last value of each feature. */
static void NAME(scale_by_constants)(const srnn_model *model, const REAL *x, REAL *held, int64_t before, REAL *shared,
                                     REAL *channels) {
    const int64_t features = model->features;
    memcpy(channels, shared, before * sizeof(REAL));
    channels += before;
    const REAL *mean = model->mean, *scale = model->scale;
    for (int64_t sample = 0; sample < model->samples; sample++, x += features) {
        for (int64_t i = 0; i < features; i++) {
            const int missing = x[i] != x[i];
            if (!missing) held[i] = (x[i] - mean[i]) / scale[i];
            channels[i] = held[i];
            if (model->has_mask) channels[features + i] = missing ? 0 : 1;
        }
        channels += model->has_mask ? 2 * features : features;
    }
    memcpy(shared, channels - before, before * sizeof(REAL));
}

/* NaN stays NaN. */
INLINE REAL NAME(clip)(REAL x, REAL largest) { return x < -largest ? -largest : x > largest ? largest : x; }

/* Mean and scale of the last `count` values of one feature in a window, whose values are `stride` apart. The sums are in
 * double precision, as those of the graphs are. */
static void NAME(measure_window)(const srnn_model *model, const REAL *window, REAL count, REAL *mean, REAL *scale) {
    const int64_t size = model->window, season = model->season, stride = model->features;
    /* The first value that counts. A state may hold any number, which must not lead out of the window. */
    const double start = size - (double)count;
    const int64_t first = !(start < size) ? size : start <= 0 ? 0 : (int64_t)ceil(start);
    const double steps = count > 1 ? (double)count : 1, pairs = (double)count - season;
    double sum = 0, spread = 0;
    for (int64_t k = first; k < size; k++) sum += window[k * stride];
    const double exact_mean = sum / steps;
    if (pairs > 0) {
        for (int64_t k = first; k + season < size; k++)
            spread += fabs((double)window[(k + season) * stride] - window[k * stride]);
        spread /= pairs > 1 ? pairs : 1;
    } else {
        for (int64_t k = first; k < size; k++) {
            const double distance = window[k * stride] - exact_mean;
            spread += distance * distance;
        }
        spread = sqrt(spread / steps);
    }
    *mean = (REAL)exact_mean;
    *scale = (REAL)(spread + model->scale_floor);
}

/* Scaling by the window that ends with the samples. `window` holds its values, (window, features), `count` how many of
 * the last ones count, and `level` their mean. */
static void NAME(scale_by_window)(const srnn_model *model, const REAL *x, REAL *window, REAL *count, REAL *level,
                                  int64_t before, REAL *shared, REAL *channels) {
    const int64_t features = model->features, samples = model->samples, size = model->window;
    const int64_t width = model->has_mask ? 2 * features : features;
    const REAL *mean = model->mean, *scale = model->scale, *lowest = model->floor, clip = (REAL)model->clip;
    memcpy(channels, shared, before * sizeof(REAL));
    channels += before;
    REAL *extras = channels + samples * width;
    /* Values that stay in the window, and samples that are added to it. */
    const int64_t kept = samples < size ? size - samples : 0, added = size - kept;
    for (int64_t i = 0; i < features; i++) {
        const int has_level = count[i] > 0;
        REAL held = window[(size - 1) * features + i];
        for (int64_t sample = 0; sample < samples; sample++) {
            const REAL value = x[sample * features + i];
            const int missing = value != value;
            if (!missing) {
                const REAL raw = lowest ? (REAL)log((double)(value > lowest[i] ? value : lowest[i])) : value;
                held = (raw - mean[i]) / scale[i];
            }
            /* Steps before the first observed value do not count. */
            if (!missing || count[i] > 0) count[i] = count[i] + 1 < size ? count[i] + 1 : size;
            channels[sample * width + i] = held;
            if (model->has_mask) channels[sample * width + features + i] = missing ? 0 : 1;
        }
        for (int64_t k = 0; k < kept; k++) window[k * features + i] = window[(k + samples) * features + i];
        for (int64_t k = 0; k < added; k++)
            window[(kept + k) * features + i] = channels[(samples - added + k) * width + i];
        REAL next_level, deviation;
        NAME(measure_window)(model, window + i, count[i], &next_level, &deviation);
        for (int64_t sample = 0; sample < samples; sample++)
            channels[sample * width + i] = NAME(clip)((channels[sample * width + i] - next_level) / deviation, clip);
        extras[i] = (REAL)log((double)deviation);
        extras[features + i] = has_level ? NAME(clip)((next_level - level[i]) / deviation, clip) : 0;
        level[i] = next_level;
    }
    memcpy(shared, extras - before, before * sizeof(REAL));
}


enum {
    /* Steps of a chunk, and numbers in its drives, channels or embedding, which stay in the second-level cache beside the
     * matrix. */
    NAME(MAX_CHUNK) = 64,
    NAME(MAX_DRIVES) = 32768,
};

/* Working memory: the states of a block of rows, and the values of a chunk, (time, rows, d). */
typedef struct {
    void *memory;
    REAL *held, *window_count, *level, *before, *h, *mean, *max, *count;
    REAL *channels, *embedded, *drives, *outputs, *head_inputs, *answers;
} NAME(workspace);

typedef struct {
    int64_t block, chunk, before, channels, columns, head_inputs;
} NAME(sizes);

static int64_t NAME(affine_size)(int64_t outputs, int64_t inputs) { return NAME(padded)(outputs) * inputs; }

/* As NAME(pack), of a matrix that need not be square. */
static void NAME(pack_affine)(int64_t outputs, int64_t inputs, const void *from, void *to) {
    const REAL *matrix = from;
    REAL *packed = to;
    for (int64_t start = 0; start < outputs; start += PANEL, packed += PANEL * inputs)
        for (int64_t j = 0; j < inputs; j++)
            for (int64_t i = 0; i < PANEL; i++)
                packed[j * PANEL + i] = start + i < outputs ? matrix[(start + i) * inputs + j] : 0;
}

/* out[r, i] = bias[i] + sum over j of M[i, j] x[r, j] for some rows and panels; `left` outputs from the first one on. */
INLINE void NAME(affine_tile)(const int rows, const int panels, int64_t inputs, const REAL *packed, const REAL *bias,
                              const REAL *x, REAL *out, int64_t stride, int64_t left) {
    VEC sums[TILE_ROWS * PANEL_VECTORS];
    const int vectors = panels * PANEL_VECTORS;
    UNROLL
    for (int v = 0; v < vectors; v++) {
        VEC first = bias && left > v * LANES ? NAME(load_part)(bias + v * LANES, left - v * LANES) : (VEC){0};
        UNROLL
        for (int r = 0; r < rows; r++) sums[r * vectors + v] = first;
    }
    for (int64_t j = 0; j < inputs; j++) {
        VEC weights[TILE_ROWS * PANEL_VECTORS];
        UNROLL
        for (int v = 0; v < vectors; v++)
            weights[v] = NAME(load)(
                packed + v / PANEL_VECTORS * PANEL * inputs + v % PANEL_VECTORS * LANES + j * PANEL);
        UNROLL
        for (int r = 0; r < rows; r++) {
            VEC factor = SPLAT(x[r * inputs + j]);
            UNROLL
            for (int v = 0; v < vectors; v++) sums[r * vectors + v] = FMA(factor, weights[v], sums[r * vectors + v]);
        }
    }
    UNROLL
    for (int r = 0; r < rows; r++)
        UNROLL
        for (int v = 0; v < vectors; v++)
            if (left > v * LANES)
                NAME(store_part)(out + r * stride + v * LANES, sums[r * vectors + v], left - v * LANES);
}

/* The same for all outputs; x is (rows, inputs) and out (rows, outputs). */
static void NAME(affine)(int64_t rows, int64_t inputs, int64_t outputs, const void *packed, const void *bias,
                         const REAL *x, REAL *out) {
    for (int64_t i = 0; i < outputs;) {
        const REAL *panel = (const REAL *)packed + i * inputs, *shift = bias ? (const REAL *)bias + i : NULL;
        int64_t r = 0;
        /* Several panels at once for a single row, since its sums wait for each other. */
        if (rows == 1 && i + SINGLE_PANELS * PANEL <= outputs) {
            NAME(affine_tile)(1, SINGLE_PANELS, inputs, panel, shift, x, out + i, outputs, outputs - i);
            i += SINGLE_PANELS * PANEL;
            continue;
        }
        for (; r + TILE_ROWS <= rows; r += TILE_ROWS)
            NAME(affine_tile)
        (TILE_ROWS, 1, inputs, panel, shift, x + r * inputs, out + r * outputs + i, outputs, outputs - i);
        for (; r < rows; r++)
            NAME(affine_tile)(1, 1, inputs, panel, shift, x + r * inputs, out + r * outputs + i, outputs, outputs - i);
        i += PANEL;
    }
}

static NAME(sizes) NAME(measure)(const srnn_run *run) {
    const srnn_model *model = run->model;
    NAME(sizes) sizes = {.columns = model->hidden};
    for (int64_t i = 0; i < model->members * model->num_layers; i++)
        if (model->layers[i].family == SRNN_SHARED_GATE) sizes.columns = 2 * model->hidden;
    sizes.block = TILE_ROWS * BLOCK_TILES < run->rows ? TILE_ROWS * BLOCK_TILES : run->rows;
    const int64_t sample = model->features * (model->has_mask ? 2 : 1);
    sizes.before = model->overlap * sample;
    sizes.channels = sizes.before + model->samples * sample + (model->window ? 2 * model->features : 0);
    const int statistics = !!(model->statistics & SRNN_MEAN) + !!(model->statistics & SRNN_MAX);
    sizes.head_inputs = (statistics + !!model->reads_last) * model->hidden;
    int64_t widest = sizes.columns > sizes.channels ? sizes.columns : sizes.channels;
    if (model->embedding > widest) widest = model->embedding;
    int64_t chunk = NAME(MAX_DRIVES) / (sizes.block * widest);
    if (chunk > NAME(MAX_CHUNK)) chunk = NAME(MAX_CHUNK);
    if (chunk > run->steps) chunk = run->steps;
    sizes.chunk = chunk < 1 ? 1 : chunk;
    return sizes;
}

static int NAME(allocate_model)(NAME(workspace) * w, const srnn_model *model, const NAME(sizes) * sizes) {
    const int64_t values = sizes->chunk * sizes->block, states = sizes->block * model->hidden;
    const int64_t features = sizes->block * model->features, window = model->window;
    const struct {
        REAL **to;
        int64_t count;
    } parts[] = {
        {&w->held, features * (window ? window : 1)},
        {&w->window_count, window ? features : 0},
        {&w->level, window ? features : 0},
        {&w->before, sizes->block * sizes->before},
        {&w->h, model->members * model->num_layers * states},
        {&w->mean, model->members * states},
        {&w->max, model->members * states},
        {&w->count, sizes->block},
        {&w->channels, values * sizes->channels},
        {&w->embedded, values * model->embedding},
        {&w->drives, values * sizes->columns},
        {&w->outputs, values * model->hidden},
        {&w->head_inputs, sizes->block * sizes->head_inputs},
        {&w->answers, values * model->outputs},
    };
    enum { PARTS = sizeof(parts) / sizeof(parts[0]) };
    int64_t total = 0;
    for (int i = 0; i < PARTS; i++) total += (parts[i].count + LANES - 1) / LANES * LANES;
    w->memory = malloc(total * sizeof(REAL) + VECTOR_BYTES);
    if (!w->memory) return 0;
    REAL *next = (REAL *)(((uintptr_t)w->memory + VECTOR_BYTES - 1) / VECTOR_BYTES * VECTOR_BYTES);
    for (int i = 0; i < PARTS; i++) {
        *parts[i].to = next;
        next += (parts[i].count + LANES - 1) / LANES * LANES;
    }
    return 1;
}

INLINE int64_t NAME(row_steps)(const srnn_run *run, int64_t row) {
    return run->lengths ? run->lengths[row] : run->steps;
}

/* Copies a state of a block of rows to working memory, or back. */
static void NAME(copy_state)(const srnn_run *run, void *state, int64_t first, int64_t rows, int64_t size, REAL *block,
                             int out) {
    for (int64_t r = 0; r < rows; r++) {
        REAL *outside = (REAL *)state + run->order[first + r] * size;
        memcpy(out ? outside : block + r * size, out ? block + r * size : outside, size * sizeof(REAL));
    }
}

static void NAME(copy_states)(const srnn_run *run, NAME(workspace) * w, const NAME(sizes) * sizes, int64_t first,
                              int64_t rows, int out) {
    const srnn_model *model = run->model;
    void *const *state = run->states;
    const int64_t features = model->features, hidden = model->hidden, outputs = model->members * hidden;
    NAME(copy_state)(run, *state++, first, rows, features * (model->window ? model->window : 1), w->held, out);
    if (model->window) {
        NAME(copy_state)(run, *state++, first, rows, features, w->window_count, out);
        NAME(copy_state)(run, *state++, first, rows, features, w->level, out);
    }
    if (sizes->before) NAME(copy_state)(run, *state++, first, rows, sizes->before, w->before, out);
    for (int64_t i = 0; i < model->members * model->num_layers; i++)
        NAME(copy_state)(run, *state++, first, rows, hidden, w->h + i * sizes->block * hidden, out);
    if (model->statistics & SRNN_MEAN) NAME(copy_state)(run, *state++, first, rows, outputs, w->mean, out);
    if (model->statistics & SRNN_MAX) NAME(copy_state)(run, *state++, first, rows, outputs, w->max, out);
    if (model->statistics) NAME(copy_state)(run, *state++, first, rows, 1, w->count, out);
}

/* The statistics of a member's states after a further step of a row with the state h, before which there were `count`. */
static void NAME(add_to_statistics)(const srnn_model *model, const REAL *h, REAL *restrict mean, REAL *restrict max,
                                    REAL count) {
    const int64_t hidden = model->hidden;
    if (model->statistics & SRNN_MEAN)
        for (int64_t i = 0; i < hidden; i++) mean[i] += (h[i] - mean[i]) / (count + 1);
    if (model->statistics & SRNN_MAX) {
        /* NaN is the maximum, which stays visible. */
        const int is_first = !(count > 0);
        for (int64_t i = 0; i < hidden; i++) max[i] = is_first || !(h[i] <= max[i]) ? h[i] : max[i];
    }
}

static void NAME(gelu)(int64_t count, REAL *x) {
    for (int64_t i = 0; i < count; i++) x[i] = x[i] * (REAL)0.5 * (1 + ERF(x[i] * (REAL)0.70710678118654752));
}

/* The layers of a member over some steps of the first rows of a block, from the channels on. */
static int32_t NAME(run_member)(const srnn_run *run, NAME(workspace) * w, const NAME(sizes) * sizes, int64_t member,
                                int64_t rows, int64_t steps) {
    const srnn_model *model = run->model;
    const int64_t hidden = model->hidden;
    const REAL *inputs = w->channels;
    int64_t input_size = sizes->channels;
    if (model->embedding) {
        const srnn_embedding *embedding = model->embeddings + member;
        NAME(affine)(steps * rows, input_size, model->embedding, embedding->weight, embedding->bias, inputs, w->embedded);
        NAME(gelu)(steps * rows * model->embedding, w->embedded);
        inputs = w->embedded;
        input_size = model->embedding;
    }
    for (int64_t i = 0; i < model->num_layers; i++) {
        const int64_t number = member * model->num_layers + i;
        const srnn_layer *layer = model->layers + number;
        const int64_t columns = layer->family == SRNN_SHARED_GATE ? 2 * hidden : hidden;
        const int needs_states = i + 1 < model->num_layers || model->statistics || model->every_step;
        REAL *h = w->h + number * sizes->block * hidden;
        NAME(affine)(steps * rows, input_size, columns, layer->input, layer->input_bias, inputs, w->drives);
        srnn_call call = {
            .family = layer->family,
            .nonlinearity = layer->nonlinearity,
            .hidden = hidden,
            .rows = rows,
            .steps = steps,
            .substeps = 1,
            .step_size = layer->step_size,
            .recurrent = layer->recurrent,
            .linear = layer->linear,
            .bias = layer->bias,
            .drives = {w->drives, rows * columns, columns},
            .first = {h, 0, hidden},
            .last = {h, 0, hidden},
            .states = {needs_states ? w->outputs : NULL, rows * hidden, hidden},
        };
        const int32_t status = NAME(forward)(&call);
        if (status != SRNN_OK) return status;
        inputs = w->outputs;
        input_size = hidden;
    }
    for (int64_t t = 0; model->statistics && t < steps; t++)
        for (int64_t r = 0; r < rows; r++) {
            const int64_t at = (r * model->members + member) * hidden;
            NAME(add_to_statistics)(model, w->outputs + (t * rows + r) * hidden, w->mean + at, w->max + at, w->count[r] + t);
        }
    return SRNN_OK;
}

/* Some steps of the first rows of a block. */
static int32_t NAME(run_chunk)(const srnn_run *run, NAME(workspace) * w, const NAME(sizes) * sizes, int64_t first,
                               int64_t rows, int64_t start, int64_t steps) {
    const srnn_model *model = run->model;
    const int64_t features = model->features, width = model->samples * features;
    for (int64_t t = 0; t < steps; t++)
        for (int64_t r = 0; r < rows; r++) {
            const REAL *x = (const REAL *)run->x + (run->order[first + r] * run->steps + start + t) * width;
            REAL *before = w->before + r * sizes->before, *channels = w->channels + (t * rows + r) * sizes->channels;
            if (model->window)
                NAME(scale_by_window)(model, x, w->held + r * model->window * features, w->window_count + r * features,
                                      w->level + r * features, sizes->before, before, channels);
            else
                NAME(scale_by_constants)(model, x, w->held + r * features, sizes->before, before, channels);
        }
    int32_t status = SRNN_OK;
    for (int64_t member = 0; member < model->members && status == SRNN_OK; member++)
        status = NAME(run_member)(run, w, sizes, member, rows, steps);
    for (int64_t r = 0; model->statistics && r < rows; r++) w->count[r] += steps;
    return status;
}

/* Scales the outputs of the head of one row in place, and writes their softmax unless `probabilities` is null. */
static void NAME(finish_answer)(const srnn_model *model, REAL *answer, REAL *probabilities) {
    const REAL *mean = model->output_mean, *scale = model->output_scale;
    const int64_t outputs = model->outputs;
    for (int64_t i = 0; i < outputs; i++) {
        if (model->temperature != 1) answer[i] /= (REAL)model->temperature;
        if (mean) answer[i] = mean[i] + scale[i] * answer[i];
    }
    if (!probabilities) return;
    REAL largest = answer[0], sum = 0;
    for (int64_t i = 1; i < outputs; i++) largest = answer[i] > largest ? answer[i] : largest;
    for (int64_t i = 0; i < outputs; i++) sum += probabilities[i] = (REAL)exp(answer[i] - largest);
    for (int64_t i = 0; i < outputs; i++) probabilities[i] /= sum;
}

/* The answers after each step of a chunk. */
static void NAME(answer_chunk)(const srnn_run *run, NAME(workspace) * w, int64_t first, int64_t rows, int64_t start,
                               int64_t steps) {
    const srnn_model *model = run->model;
    const int64_t outputs = model->outputs;
    NAME(affine)(steps * rows, model->hidden, outputs, model->head, model->head_bias, w->outputs, w->answers);
    for (int64_t t = 0; t < steps; t++)
        for (int64_t r = 0; r < rows; r++) {
            const int64_t at = (run->order[first + r] * run->steps + start + t) * outputs;
            REAL *answer = (REAL *)run->answers + at;
            memcpy(answer, w->answers + (t * rows + r) * outputs, outputs * sizeof(REAL));
            NAME(finish_answer)(model, answer, run->probabilities ? (REAL *)run->probabilities + at : NULL);
        }
}

/* The answers after the last step of a block, or those of every step that is padding. */
static void NAME(answer_block)(const srnn_run *run, NAME(workspace) * w, const NAME(sizes) * sizes, int64_t first,
                               int64_t rows) {
    const srnn_model *model = run->model;
    const int64_t hidden = model->hidden, outputs = model->outputs;
    const REAL *last = w->h + (model->num_layers - 1) * sizes->block * hidden;
    const REAL *parts[] = {model->reads_last ? last : NULL, model->statistics & SRNN_MEAN ? w->mean : NULL,
                           model->statistics & SRNN_MAX ? w->max : NULL};
    for (int64_t r = 0; r < rows; r++) {
        REAL *to = w->head_inputs + r * sizes->head_inputs;
        for (int part = 0; part < 3; part++)
            if (parts[part]) {
                memcpy(to, parts[part] + r * hidden, hidden * sizeof(REAL));
                to += hidden;
            }
    }
    NAME(affine)(rows, sizes->head_inputs, outputs, model->head, model->head_bias, w->head_inputs, w->answers);
    for (int64_t r = 0; r < rows; r++) {
        const int64_t row = run->order[first + r], count = model->every_step ? run->steps : 1;
        REAL *answer = w->answers + r * outputs;
        for (int64_t t = model->every_step ? NAME(row_steps)(run, row) : 0; t < count; t++) {
            const int64_t at = (row * count + t) * outputs;
            REAL *to = (REAL *)run->answers + at;
            memcpy(to, answer, outputs * sizeof(REAL));
            NAME(finish_answer)(model, to, run->probabilities ? (REAL *)run->probabilities + at : NULL);
        }
    }
}

static int32_t NAME(run_model)(const srnn_run *run) {
    if (run->rows == 0) return SRNN_OK;
    const srnn_model *model = run->model;
    const NAME(sizes) sizes = NAME(measure)(run);
    NAME(workspace) w;
    if (!NAME(allocate_model)(&w, model, &sizes)) return SRNN_NO_MEMORY;
    int32_t status = SRNN_OK;
    for (int64_t first = 0; first < run->rows && status == SRNN_OK; first += sizes.block) {
        const int64_t rows = run->rows - first < sizes.block ? run->rows - first : sizes.block;
        NAME(copy_states)(run, &w, &sizes, first, rows, 0);
        int64_t active = rows;
        for (int64_t step = 0, end; status == SRNN_OK; step = end) {
            /* Rows whose sequence has ended are the last ones of the block. */
            while (active && NAME(row_steps)(run, run->order[first + active - 1]) <= step) active--;
            if (!active) break;
            end = NAME(row_steps)(run, run->order[first + active - 1]);
            if (end > step + sizes.chunk) end = step + sizes.chunk;
            status = NAME(run_chunk)(run, &w, &sizes, first, active, step, end - step);
            if (model->outputs && model->every_step) NAME(answer_chunk)(run, &w, first, active, step, end - step);
        }
        NAME(copy_states)(run, &w, &sizes, first, rows, 1);
        if (model->outputs) NAME(answer_block)(run, &w, &sizes, first, rows);
    }
    free(w.memory);
    return status;
}
