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

/* The smallest scale of a window, and the largest distance, in scales, that the layers see: _SCALE_FLOOR and _CLIP of
 * stablernn's ContextScaling. */
#define SCALE_FLOOR 0.05
#define CLIP 8

INLINE REAL NAME(clip)(REAL x) { return x < -CLIP ? -CLIP : x > CLIP ? CLIP : x; }

/* Mean and scale of the last `seen` values of one feature in a window, whose values are `stride` apart. The sums are in
 * double precision, as those of the graphs are. */
static void NAME(measure_window)(const srnn_model *model, const REAL *window, REAL seen, REAL *mean, REAL *scale) {
    const int64_t size = model->window, season = model->season, stride = model->features;
    /* The first value that counts. A state may hold any number, which must not lead out of the window. */
    const double place = size - (double)seen;
    const int64_t first = !(place < size) ? size : place <= 0 ? 0 : (int64_t)ceil(place);
    const double count = seen, steps = count > 1 ? count : 1;
    double sum = 0, spread = 0;
    for (int64_t k = first; k < size; k++) sum += window[k * stride];
    const double exact_mean = sum / steps;
    if (count > season) {
        for (int64_t k = first; k + season < size; k++)
            spread += fabs((double)window[(k + season) * stride] - window[k * stride]);
        spread /= count - season > 1 ? count - season : 1;
    } else {
        for (int64_t k = first; k < size; k++) {
            const double distance = window[k * stride] - exact_mean;
            spread += distance * distance;
        }
        spread = sqrt(spread / steps);
    }
    *mean = (REAL)exact_mean;
    *scale = (REAL)(spread + SCALE_FLOOR);
}

/* Scaling by the window that ends with the samples. `window` holds its values, (window, features), `seen` how many of the
 * last ones count, and `level` their mean. */
static void NAME(scale_by_window)(const srnn_model *model, const REAL *x, REAL *window, REAL *seen, REAL *level,
                                  int64_t before, REAL *shared, REAL *channels) {
    const int64_t features = model->features, samples = model->samples, size = model->window;
    const int64_t width = model->has_mask ? 2 * features : features;
    const REAL *mean = model->mean, *scale = model->scale, *lowest = model->floor;
    memcpy(channels, shared, before * sizeof(REAL));
    channels += before;
    REAL *extras = channels + samples * width;
    /* The values before the samples that stay in the window, and the samples that enter it. */
    const int64_t rest = samples < size ? size - samples : 0, entering = size - rest;
    for (int64_t i = 0; i < features; i++) {
        const int has_level = seen[i] > 0;
        REAL held = window[(size - 1) * features + i];
        for (int64_t sample = 0; sample < samples; sample++) {
            const REAL value = x[sample * features + i];
            const int missing = value != value;
            if (!missing) {
                const REAL unit = lowest ? (REAL)log((double)(value > lowest[i] ? value : lowest[i])) : value;
                held = (unit - mean[i]) / scale[i];
            }
            /* Steps before the first observed value do not count. */
            if (!missing || seen[i] > 0) seen[i] = seen[i] + 1 < size ? seen[i] + 1 : size;
            channels[sample * width + i] = held;
            if (model->has_mask) channels[sample * width + features + i] = missing ? 0 : 1;
        }
        for (int64_t k = 0; k < rest; k++) window[k * features + i] = window[(k + samples) * features + i];
        for (int64_t k = 0; k < entering; k++)
            window[(rest + k) * features + i] = channels[(samples - entering + k) * width + i];
        REAL next_level, unit;
        NAME(measure_window)(model, window + i, seen[i], &next_level, &unit);
        for (int64_t sample = 0; sample < samples; sample++)
            channels[sample * width + i] = NAME(clip)((channels[sample * width + i] - next_level) / unit);
        extras[i] = (REAL)log((double)unit);
        extras[features + i] = has_level ? NAME(clip)((next_level - level[i]) / unit) : 0;
        level[i] = next_level;
    }
    memcpy(shared, extras - before, before * sizeof(REAL));
}

#undef SCALE_FLOOR
#undef CLIP
