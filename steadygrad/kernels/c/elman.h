/* h_t = φ(U x_t + bias + W h_{t−1}) */
typedef struct {
    walk_t walk;
    int64_t hidden, inputs;
    int activation;
    const int64_t *bounds;
    const REAL *x, *bias, *initial, *packed, *gradient;
    REAL *states, *deltas, *d_weights, *d_bias, *d_initial;
    atomic_int failed;
} NAME(elman_t);

static void NAME(elman_forward_slice)(void *argument, int slice) {
    NAME(elman_t) *job = argument;
    int64_t N = job->hidden, I = job->inputs;
    span_t spans[2];
    for (int64_t s = 0; s < job->walk.steps; s++) {
        int count = spans_of(&job->walk, s, job->bounds[slice], job->bounds[slice + 1], spans);
        for (int i = 0; i < count; i++) {
            span_t span = spans[i];
            int64_t here = job->walk.offsets[span.t] + span.from, rows = span.to - span.from;
            const REAL *before = span.previous < 0 ? job->initial + span.from * N
                                                   : job->states + (job->walk.offsets[span.previous] + span.from) * N;
            REAL *h = job->states + here * N;
            NAME(product)(rows, N, (NAME(left_t)){I, job->x + here * I, I}, (NAME(left_t)){N, before, N}, job->packed, h, N, 0);
            if (job->activation == IDENTITY && !job->bias) continue;
            for (int64_t r = 0; r < rows; r++, h += N) EACH_VECTOR(j, left, N) {
                vec z = NAME(load_part)(h + j, left), b = {0};
                if (job->bias) b = NAME(load_part)(job->bias + j, left);
                if (job->activation != MODRELU) z += b;
                NAME(store_part)(h + j, NAME(activate)(job->activation, z, b), left);
            }
        }
    }
}

static int NAME(elman_forward)(walk_t walk, int64_t hidden, int64_t inputs, int activation, const REAL *x, const REAL *U,
                               const REAL *bias, const REAL *W, const REAL *initial, REAL *states, int slices) {
    int64_t bounds[slices + 1];
    balance(&walk, slices, bounds);
    REAL *packed = NAME(pack)(hidden, NAME(transposed)(U, inputs), NAME(transposed)(W, hidden));
    if (!packed) return 1;
    NAME(elman_t) job = {.walk = walk, .hidden = hidden, .inputs = inputs, .activation = activation, .bounds = bounds,
                         .x = x, .bias = bias, .initial = initial, .packed = packed, .states = states};
    run_slices(NAME(elman_forward_slice), &job, slices);
    give_back(packed);
    return 0;
}

/* Time backwards: delta_t = φ'(h_t) ∘ (gradient_t + carried),  carried ← delta_t W.
 * What is carried lives in d_initial: zero at the start, the gradient of h_0 at the end. */
static void NAME(elman_backward_slice)(void *argument, int slice) {
    NAME(elman_t) *job = argument;
    int64_t N = job->hidden, I = job->inputs, first = job->bounds[slice], last = job->bounds[slice + 1];
    REAL *d_bias = job->d_bias ? job->d_bias + slice * N : NULL;
    NAME(outer_t) outer;
    if (!NAME(outer_open)(&outer, N, N, I, last - first, 0, job->d_weights + slice * N * (N + I))) {
        atomic_store(&job->failed, 1);
        NAME(outer_close)(&outer);
        return;
    }
    span_t spans[2];
    for (int64_t s = job->walk.steps - 1; s >= 0; s--) {
        int count = spans_of(&job->walk, s, first, last, spans);
        for (int i = 0; i < count; i++) {
            span_t span = spans[i];
            int64_t here = job->walk.offsets[span.t] + span.from, rows = span.to - span.from;
            const REAL *before = span.previous < 0 ? job->initial + span.from * N
                                                   : job->states + (job->walk.offsets[span.previous] + span.from) * N;
            REAL *deltas = outer.deltas + NAME(outer_take)(&outer, rows, before, job->x + here * I) * N;
            REAL *carried = job->d_initial + span.from * N;
            for (int64_t r = 0; r < rows; r++) EACH_VECTOR(j, left, N) {
                vec y = NAME(load_part)(job->states + (here + r) * N + j, left);
                vec d = NAME(load_part)(job->gradient + (here + r) * N + j, left) + NAME(load_part)(carried + r * N + j, left);
                d = NAME(deactivate)(job->activation, y, d);
                NAME(store_part)(deltas + r * N + j, d, left);
                if (d_bias) {
                    vec sum = NAME(load_part)(d_bias + j, left) + NAME(bias_part)(job->activation, y, d);
                    NAME(store_part)(d_bias + j, sum, left);
                }
            }
            if (job->deltas) memcpy(job->deltas + here * N, deltas, (size_t)(rows * N) * sizeof(REAL));
            NAME(product)(rows, N, (NAME(left_t)){0, NULL, 0}, (NAME(left_t)){N, deltas, N}, job->packed, carried, N, 0);
        }
    }
    NAME(outer_flush)(&outer);
    NAME(outer_close)(&outer);
}

/* All results come as zeros. d_weights (hidden × (hidden + inputs): of W, then of U) and d_bias have room for
 * each slice; the sums come first. `deltas`, the gradients before the activation, may be null. */
static int NAME(elman_backward)(walk_t walk, int64_t hidden, int64_t inputs, int activation, const REAL *gradient,
                                const REAL *x, const REAL *states, const REAL *W, const REAL *initial, REAL *deltas,
                                REAL *d_weights, REAL *d_bias, REAL *d_initial, int slices) {
    int64_t bounds[slices + 1];
    balance(&walk, slices, bounds);
    REAL *packed = NAME(pack)(hidden, NAME(plain)(NULL, 0, 0), NAME(plain)(W, hidden, hidden));
    if (!packed) return 1;
    NAME(elman_t) job = {.walk = walk, .hidden = hidden, .inputs = inputs, .activation = activation, .bounds = bounds,
                         .packed = packed, .gradient = gradient, .x = x, .initial = initial, .states = (REAL *)states,
                         .deltas = deltas, .d_weights = d_weights, .d_bias = d_bias, .d_initial = d_initial};
    run_slices(NAME(elman_backward_slice), &job, slices);
    NAME(add_up)(d_weights, hidden * (hidden + inputs), slices);
    NAME(add_up)(d_bias, hidden, slices);
    give_back(packed);
    return atomic_load(&job.failed);
}
