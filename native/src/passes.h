/* The passes over time of one path and dtype, and the gradients of matrices; included by kernels.h. A block of rows goes
 * through all steps before the next one does, so that its state stays in the first-level cache. */

/* Working memory of a block: its rows padded to whole panels. */
typedef struct {
    void *memory;
    REAL *h, *z, *y, *middle;
    /* Whether the buffers over time are written past the caches. */
    int streams;
} NAME(scratch);

/* Rows of a block. A matrix beyond the first-level cache is read once for several tiles. */
static int64_t NAME(block_rows)(const srnn_call *call) {
    const int64_t bytes = call->hidden * call->hidden * (int64_t)sizeof(REAL);
    const int64_t block = TILE_ROWS * (bytes > 32768 ? BLOCK_TILES : 1);
    return call->rows < block ? call->rows : block;
}

static int NAME(allocate)(NAME(scratch) * s, int64_t rows, int64_t hidden) {
    const int64_t size = rows * NAME(padded)(hidden);
    const int64_t bytes = 4 * size * (int64_t)sizeof(REAL);
    /* aligned_alloc is missing from some C libraries. */
    s->memory = calloc(1, bytes + VECTOR_BYTES);
    if (!s->memory) return 0;
    s->h = (REAL *)(((uintptr_t)s->memory + VECTOR_BYTES - 1) / VECTOR_BYTES * VECTOR_BYTES);
    s->z = s->h + size;
    s->y = s->z + size;
    s->middle = s->y + size;
    return 1;
}

INLINE REAL *NAME(at)(const srnn_rows *rows, int64_t time, int64_t row) {
    return (REAL *)rows->data + time * rows->time_stride + row * rows->row_stride;
}

INLINE REAL *NAME(at_or_null)(const srnn_rows *rows, int64_t time, int64_t row) {
    return rows->data ? NAME(at)(rows, time, row) : NULL;
}

/* The length of a step of a row. */
INLINE REAL NAME(length)(const srnn_call *call, int64_t time, int64_t row) {
    return call->lengths.data ? *NAME(at)(&call->lengths, time, row) : (REAL)call->step_size;
}

/* Returns whether the forward pass writes buffers past the caches: they are large, so that they would leave them before
 * they are read again, and their vectors are aligned. */
static int NAME(streams)(const srnn_call *call, const srnn_rows *buffers, int count) {
    enum { MIN_BYTES = 1 << 20 };
    const int64_t size = sizeof(REAL);
    if (call->steps * call->rows * call->hidden * size < MIN_BYTES) return 0;
    for (int i = 0; i < count; i++)
        if (buffers[i].data && ((uintptr_t)buffers[i].data % VECTOR_BYTES || buffers[i].time_stride * size % VECTOR_BYTES ||
                                buffers[i].row_stride * size % VECTOR_BYTES))
            return 0;
    return 1;
}

/* Writes up to `count` numbers of a buffer over time. */
INLINE void NAME(write)(REAL *to, VEC x, int64_t count, int streams) {
    if (__builtin_expect(count < LANES, 0))
        memcpy(to, &x, count * sizeof(REAL));
    else if (streams)
        STREAM(to, x);
    else
        NAME(store)(to, x);
}

static void NAME(copy_rows)(const srnn_rows *buffer, int64_t row, int64_t rows, int64_t hidden, REAL *block, int out) {
    for (int64_t r = 0; r < rows; r++) {
        REAL *inside = block + r * NAME(padded)(hidden), *outside = NAME(at)(buffer, 0, row + r);
        memcpy(out ? outside : inside, out ? inside : outside, hidden * sizeof(REAL));
    }
}

/* Asks for the rows that the next step reads, which lie a batch apart and are not foreseen by the processor. */
INLINE void NAME(prefetch)(const srnn_rows *buffer, int64_t time, int64_t row, int64_t rows, int64_t columns) {
    for (int64_t r = 0; r < rows; r++) {
        const char *line = (const char *)NAME(at)(buffer, time, row + r);
        for (int64_t offset = 0; offset < columns * (int64_t)sizeof(REAL); offset += 64)
            __builtin_prefetch(line + offset, 0, 3);
    }
}

/* Forward */

/* From z = K h and y = A h of a row: out = base + length (y + f(z + drive)), or f(z + drive) of a plain step. */
INLINE void NAME(forward_row)(const srnn_call *call, int plain, const REAL *z, const REAL *y, const REAL *drive,
                              REAL length, const REAL *base, REAL *out, REAL *value_out, REAL *state_out, int streams) {
    const REAL *bias = call->bias;
    for (int64_t i = 0, left = call->hidden; left > 0; i += LANES, left -= LANES) {
        VEC argument = *(VEC *)(z + i) + NAME(load_part)(drive + i, left);
        VEC shift = bias ? NAME(load_part)(bias + i, left) : (VEC){0};
        VEC value = NAME(activate)(call->nonlinearity, argument, shift);
        if (value_out) NAME(write)(value_out + i, value, left, streams);
        if (!plain) {
            VEC velocity = y ? value + *(VEC *)(y + i) : value;
            value = FMA(SPLAT(length), velocity, *(VEC *)(base + i));
        }
        *(VEC *)(out + i) = value;
        if (state_out) NAME(write)(state_out + i, value, left, streams);
    }
}

/* From z = K h of a row: h <- h + length sigmoid(z + gate drive) f(z + drive). */
INLINE void NAME(forward_gated_row)(const srnn_call *call, const REAL *z, const REAL *drive, REAL length, REAL *h,
                                    REAL *gate_out, REAL *value_out, REAL *state_out, int streams) {
    const REAL *bias = call->bias;
    for (int64_t i = 0, left = call->hidden; left > 0; i += LANES, left -= LANES) {
        VEC recurrent = *(VEC *)(z + i);
        VEC shift = bias ? NAME(load_part)(bias + i, left) : (VEC){0};
        VEC gate = NAME(sigmoid)(recurrent + NAME(load_part)(drive + i, left));
        VEC argument = recurrent + NAME(load_part)(drive + call->hidden + i, left);
        VEC value = NAME(activate)(call->nonlinearity, argument, shift);
        VEC state = FMA(SPLAT(length), gate * value, *(VEC *)(h + i));
        *(VEC *)(h + i) = state;
        if (gate_out) NAME(write)(gate_out + i, gate, left, streams);
        if (value_out) NAME(write)(value_out + i, value, left, streams);
        if (state_out) NAME(write)(state_out + i, state, left, streams);
    }
}

/* One stage of a step of all rows of a block: 0 is that halfway through a two-stage step. */
INLINE void NAME(forward_stage)(const srnn_call *call, NAME(scratch) * s, int64_t row, int64_t rows, int64_t step,
                                int stage, int stages) {
    const int64_t hidden = call->hidden, stride = NAME(padded)(hidden), time = step / call->substeps;
    const int is_last = stage == stages - 1;
    const REAL *from = stage == 0 ? s->h : s->middle;
    REAL *to = is_last ? s->h : s->middle;
    NAME(product)(rows, hidden, call->recurrent, from, s->z, 0);
    if (call->linear) NAME(product)(rows, hidden, call->linear, from, s->y, 0);
    for (int64_t r = 0; r < rows; r++) {
        const int64_t i = r * stride;
        const REAL *y = call->linear ? s->y + i : NULL;
        REAL length = NAME(length)(call, time, row + r);
        REAL *drive = NAME(at)(&call->drives, time, row + r);
        REAL *value = NAME(at_or_null)(&call->saved[stage], step, row + r);
        REAL *state = NAME(at_or_null)(is_last ? &call->states : &call->saved[2], step, row + r);
        if (call->family == SRNN_SHARED_GATE) {
            REAL *gate = value;
            value = NAME(at_or_null)(&call->saved[1], step, row + r);
            NAME(forward_gated_row)(call, s->z + i, drive, length, s->h + i, gate, value, state, s->streams);
        } else if (call->family == SRNN_PLAIN)
            NAME(forward_row)(call, 1, s->z + i, y, drive, length, s->h + i, to + i, NULL, state, s->streams);
        else
            NAME(forward_row)
        (call, 0, s->z + i, y, drive, is_last ? length : length / 2, s->h + i, to + i, value, state, s->streams);
    }
}

static int32_t NAME(forward)(const srnn_call *call) {
    const int64_t hidden = call->hidden, rows = call->rows;
    const int64_t block = NAME(block_rows)(call);
    const int stages = call->family == SRNN_TWO_STAGE ? 2 : 1;
    const int64_t columns = call->family == SRNN_SHARED_GATE ? 2 * hidden : hidden;
    NAME(scratch) s;
    if (!NAME(allocate)(&s, block, hidden)) return SRNN_NO_MEMORY;
    s.streams = NAME(streams)(call, &call->states, 1) && NAME(streams)(call, call->saved, 3);
    for (int64_t row = 0; row < rows; row += block) {
        const int64_t count = rows - row < block ? rows - row : block;
        NAME(copy_rows)(&call->first, row, count, hidden, s.h, 0);
        for (int64_t step = 0; step < call->steps; step++) {
            if (step + 1 < call->steps)
                NAME(prefetch)(&call->drives, (step + 1) / call->substeps, row, count, columns);
            NAME(forward_stage)(call, &s, row, count, step, 0, stages);
            if (stages == 2) NAME(forward_stage)(call, &s, row, count, step, 1, stages);
        }
        NAME(copy_rows)(&call->last, row, count, hidden, s.h, 1);
    }
    if (s.streams) FENCE();
    free(s.memory);
    return SRNN_OK;
}

/* Backward */

/* From the gradient of the loss by a velocity of a row: that by the argument of f, which the products below read. */
INLINE void NAME(backward_row)(const srnn_call *call, const REAL *by_velocity, REAL factor, const REAL *value,
                               REAL *argument, REAL *argument_out, REAL *velocity, REAL *velocity_out) {
    for (int64_t i = 0, left = call->hidden; left > 0; i += LANES, left -= LANES) {
        VEC g = SPLAT(factor) * *(VEC *)(by_velocity + i);
        VEC by_argument = NAME(activate_backward)(call->nonlinearity, g, NAME(load_part)(value + i, left));
        *(VEC *)(argument + i) = by_argument;
        NAME(store_part)(argument_out + i, by_argument, left);
        if (call->linear) {
            *(VEC *)(velocity + i) = g;
            NAME(store_part)(velocity_out + i, g, left);
        }
    }
}

INLINE void NAME(backward_gated_row)(const srnn_call *call, const REAL *g, REAL factor, const REAL *gates,
                                     const REAL *values, REAL *argument, REAL *gate_out, REAL *value_out) {
    for (int64_t i = 0, left = call->hidden; left > 0; i += LANES, left -= LANES) {
        VEC gate = NAME(load_part)(gates + i, left), value = NAME(load_part)(values + i, left);
        VEC velocity = SPLAT(factor) * *(VEC *)(g + i);
        VEC by_gate = velocity * value * gate * (SPLAT(1) - gate);
        VEC by_value = NAME(activate_backward)(call->nonlinearity, velocity * gate, value);
        *(VEC *)(argument + i) = by_gate + by_value;
        NAME(store_part)(gate_out + i, by_gate, left);
        NAME(store_part)(value_out + i, by_value, left);
    }
}

/* g <- g + factor * x for a row of whole vectors. */
INLINE void NAME(add_row)(int64_t hidden, REAL *g, REAL factor, const REAL *x) {
    for (int64_t i = 0; i < hidden; i += LANES) *(VEC *)(g + i) = FMA(SPLAT(factor), *(VEC *)(x + i), *(VEC *)(g + i));
}

/* The gradient by an output, which comes after the last sub-step of a time step. */
INLINE void NAME(add_output)(const srnn_call *call, REAL *g, REAL factor, int64_t step, int64_t row) {
    if (!call->outputs.data || (step + 1) % call->substeps) return;
    const REAL *output = NAME(at)(&call->outputs, step / call->substeps, row);
    for (int64_t i = 0, left = call->hidden; left > 0; i += LANES, left -= LANES)
        *(VEC *)(g + i) = FMA(SPLAT(factor), NAME(load_part)(output + i, left), *(VEC *)(g + i));
}

/* s->y <- K^T s->z + A^T s->middle: the gradient by a state from those by the argument of f and by A h. */
INLINE void NAME(backward_products)(const srnn_call *call, NAME(scratch) * s, int64_t rows, int adds) {
    if (adds)
        NAME(product)(rows, call->hidden, call->recurrent, s->z, s->y, 1);
    else
        NAME(product)(rows, call->hidden, call->recurrent, s->z, s->y, 0);
    if (call->linear) NAME(product)(rows, call->hidden, call->linear, s->middle, s->y, 1);
}

/* One step back of the rows of a block: s->h is the gradient by the state after it, and becomes that before. */
INLINE void NAME(backward_step)(const srnn_call *call, NAME(scratch) * s, int64_t row, int64_t rows, int64_t step) {
    const int64_t hidden = call->hidden, stride = NAME(padded)(hidden), time = step / call->substeps;
    const int is_plain = call->family == SRNN_PLAIN, is_two_stage = call->family == SRNN_TWO_STAGE;
    /* With regular steps the gradient is multiplied by the step size once, before the first step back. */
    const int is_regular = !call->lengths.data;
    const REAL scale = is_regular && !is_plain ? (REAL)call->step_size : 1;
    for (int64_t r = 0; r < rows; r++) {
        const int64_t i = r * stride, n = row + r;
        const REAL length = is_regular ? 1 : NAME(length)(call, time, n);
        const int stage = is_two_stage;
        NAME(add_output)(call, s->h + i, scale, step, n);
        REAL *value = NAME(at)(&call->saved[stage], step, n), *argument = NAME(at)(&call->arguments[stage], step, n);
        if (call->family == SRNN_SHARED_GATE)
            NAME(backward_gated_row)
        (call, s->h + i, length, value, NAME(at)(&call->saved[1], step, n), s->z + i, argument,
         NAME(at)(&call->arguments[1], step, n));
        else NAME(backward_row)(call, s->h + i, length, value, s->z + i, argument, s->middle + i,
                                NAME(at_or_null)(&call->velocities[stage], step, n));
    }
    NAME(backward_products)(call, s, rows, 0);
    if (is_two_stage) {
        for (int64_t r = 0; r < rows; r++) {
            const int64_t i = r * stride, n = row + r;
            NAME(backward_row)(call, s->y + i, NAME(length)(call, time, n) / 2, NAME(at)(&call->saved[0], step, n),
                               s->z + i, NAME(at)(&call->arguments[0], step, n), s->middle + i,
                               NAME(at_or_null)(&call->velocities[0], step, n));
        }
        NAME(backward_products)(call, s, rows, 1);
    }
    for (int64_t r = 0; r < rows; r++) {
        if (is_plain)
            memcpy(s->h + r * stride, s->y + r * stride, stride * sizeof(REAL));
        else
            NAME(add_row)(hidden, s->h + r * stride, scale, s->y + r * stride);
    }
}

static int32_t NAME(backward)(const srnn_call *call) {
    const int64_t hidden = call->hidden, rows = call->rows;
    const int64_t block = NAME(block_rows)(call);
    NAME(scratch) s;
    if (!NAME(allocate)(&s, block, hidden)) return SRNN_NO_MEMORY;
    for (int64_t row = 0; row < rows; row += block) {
        const int64_t count = rows - row < block ? rows - row : block;
        NAME(copy_rows)(&call->first, row, count, hidden, s.h, 0);
        for (int64_t step = call->steps - 1; step >= 0; step--) {
            if (step > 0)
                for (int part = 0; part < 2; part++)
                    if (call->saved[part].data) NAME(prefetch)(&call->saved[part], step - 1, row, count, hidden);
            NAME(backward_step)(call, &s, row, count, step);
        }
        NAME(copy_rows)(&call->last, row, count, hidden, s.h, 1);
    }
    free(s.memory);
    return SRNN_OK;
}

static void NAME(tanh_of)(int64_t count, const void *x, void *out) {
    for (int64_t i = 0; i < count; i += LANES)
        NAME(store_part)((REAL *)out + i, NAME(tanh)(NAME(load_part)((const REAL *)x + i, count - i)), count - i);
}

/* The gradients of matrices. */


/* Rows whose products are added to the sums of a tile before these are written back: their numbers stay in the
 * second-level cache while the tiles go over them, and reading and writing the sums takes a small part of the time. */
#define GRADIENT_ROWS 64

/* sums[i, j] += sum over the rows n of by[n][i] x[n][j], i and j over a tile. */
INLINE void NAME(gradient_tile)(const int outputs, const REAL *const *by, const REAL *const *x, int64_t rows,
                                int64_t first_output, int64_t first_input, int64_t inputs, REAL *sums) {
    const int64_t left = inputs - first_input;
    REAL *corner = sums + first_output * inputs + first_input;
    VEC totals[TILE_ROWS * PANEL_VECTORS];
    UNROLL
    for (int i = 0; i < outputs; i++)
        UNROLL
        for (int v = 0; v < PANEL_VECTORS; v++)
            totals[i * PANEL_VECTORS + v] =
                left > v * LANES ? NAME(load_part)(corner + i * inputs + v * LANES, left - v * LANES) : (VEC){0};
    for (int64_t n = 0; n < rows; n++) {
        VEC values[PANEL_VECTORS];
        UNROLL
        for (int v = 0; v < PANEL_VECTORS; v++) values[v] = NAME(load)(x[n] + v * LANES);
        UNROLL
        for (int i = 0; i < outputs; i++) {
            VEC factor = SPLAT(by[n][first_output + i]);
            UNROLL
            for (int v = 0; v < PANEL_VECTORS; v++)
                totals[i * PANEL_VECTORS + v] = FMA(factor, values[v], totals[i * PANEL_VECTORS + v]);
        }
    }
    UNROLL
    for (int i = 0; i < outputs; i++)
        UNROLL
        for (int v = 0; v < PANEL_VECTORS; v++)
            if (left > v * LANES)
                NAME(store_part)(corner + i * inputs + v * LANES, totals[i * PANEL_VECTORS + v], left - v * LANES);
}

#define GRADIENT_TILE(count) \
    case count: \
        NAME(gradient_tile)(count, by, columns, rows, first, panel, g->inputs, g->sums); \
        break

/* Adds the products of some rows. */
static void NAME(gradient_rows)(const srnn_gradient *g, const REAL *const *by, const REAL *const *x, int64_t rows) {
    REAL padded[GRADIENT_ROWS * PANEL_VECTORS * VECTOR_BYTES / sizeof(REAL)] __attribute__((aligned(VECTOR_BYTES)));
    for (int64_t panel = 0; panel < g->inputs; panel += PANEL) {
        const REAL *columns[GRADIENT_ROWS];
        const int64_t left = g->inputs - panel;
        for (int64_t n = 0; n < rows; n++) {
            columns[n] = x[n] + panel;
            if (left >= PANEL) continue;
            /* The last columns are no whole panel. */
            memset(padded + n * PANEL, 0, PANEL * sizeof(REAL));
            memcpy(padded + n * PANEL, columns[n], left * sizeof(REAL));
            columns[n] = padded + n * PANEL;
        }
        for (int64_t first = 0; first < g->outputs; first += TILE_ROWS) {
            switch (g->outputs - first < TILE_ROWS ? g->outputs - first : TILE_ROWS) {
                GRADIENT_TILE(1);
                GRADIENT_TILE(2);
                GRADIENT_TILE(3);
#if TILE_ROWS > 4
                GRADIENT_TILE(5);
                GRADIENT_TILE(6);
#endif
#if TILE_ROWS > 6
                GRADIENT_TILE(7);
                GRADIENT_TILE(8);
#endif
                GRADIENT_TILE(4);
            }
        }
    }
}

static void NAME(add_gradient)(const srnn_gradient *g) {
    const REAL *by[GRADIENT_ROWS], *x[GRADIENT_ROWS];
    int64_t count = 0;
    for (int64_t step = 0; step < g->steps; step++)
        for (int64_t row = 0; row < g->rows; row++) {
            by[count] = NAME(at)(&g->by, step, row);
            x[count] = NAME(at)(&g->x, step, row);
            if (++count == GRADIENT_ROWS) {
                NAME(gradient_rows)(g, by, x, count);
                count = 0;
            }
        }
    if (count) NAME(gradient_rows)(g, by, x, count);
}
