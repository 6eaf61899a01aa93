/* The gradients of matrices of one path and dtype; included by kernels.h. */

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
