/* From the samples of a step to the channels of the first layer, for one row; included by kernels.h.
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
