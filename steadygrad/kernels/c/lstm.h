/* i, f, o = σ(W x + U h + b),  g = tanh(W x + U h + b),  c ← f∘c + i∘g,  h ← o∘tanh(c)
 *
 * The rows of W (4N × I), U (4N × N), bias (4N) and the saved gates are in torch's order i, f, g, o. */
typedef struct {
    walk_t walk;
    int64_t hidden, inputs;
    const int64_t *bounds;
    const REAL *x, *bias, *initial, *initial_cells, *packed, *gradient, *cell_gradient;
    const uint8_t *detached;
    REAL *states, *cells, *gates, *deltas, *d_initial, *d_initial_cells;
    sums_t sums;
    atomic_int failed;
} lstm_t;

/* Compute the gates in place from W x + U h, then the new cells and states from the gates and the previous cells. */
INLINE void lstm_activate(int64_t rows, int64_t N, const REAL *bias, REAL *gates, const REAL *before, REAL *cells,
                          REAL *states) {
    for (int64_t row = 0; row < rows; row++)
        EACH_VECTOR(j, left, N) {
            REAL *gate = gates + row * 4 * N + j;
            vec z[4];
            for (int k = 0; k < 4; k++) {
                z[k] = load_part(gate + k * N, left);
                if (bias) z[k] += load_part(bias + k * N + j, left);
                z[k] = k == 2 ? vec_tanh(z[k]) : vec_sigmoid(z[k]);
                store_part(gate + k * N, z[k], left);
            }
            vec cell = z[1] * load_part(before + row * N + j, left) + z[0] * z[2];
            store_part(cells + row * N + j, cell, left);
            store_part(states + row * N + j, z[3] * vec_tanh(cell), left);
        }
}

/* Compute the gradients `deltas` of the gates before their activation, and add them to d_bias. `d_cells` carries the
 * gradient of c from step to step. `carried` is the gradient that the next step passes to h. `carried`, cell_gradient
 * and d_bias may be null. */
INLINE void lstm_activation_backward(int64_t rows, int64_t N, const REAL *gates, const REAL *cells, const REAL *before,
                                     const REAL *gradient, const REAL *carried, const REAL *cell_gradient,
                                     REAL *d_cells, REAL *deltas, REAL *d_bias) {
    for (int64_t row = 0; row < rows; row++)
        EACH_VECTOR(j, left, N) {
            const REAL *gate = gates + row * 4 * N + j;
            int64_t state = row * N + j;
            vec in = load_part(gate, left), forget = load_part(gate + N, left);
            vec g = load_part(gate + 2 * N, left), out = load_part(gate + 3 * N, left);
            vec t = vec_tanh(load_part(cells + state, left)), dh = load_part(gradient + state, left);
            if (carried) dh += load_part(carried + state, left);
            vec dc = load_part(d_cells + state, left) + dh * out * (1 - t * t);
            if (cell_gradient) dc += load_part(cell_gradient + state, left);
            vec d[4] = {dc * g * in * (1 - in), dc * load_part(before + state, left) * forget * (1 - forget),
                        dc * in * (1 - g * g), dh * t * out * (1 - out)};
            for (int k = 0; k < 4; k++) {
                store_part(deltas + row * 4 * N + k * N + j, d[k], left);
                if (d_bias) store_part(d_bias + k * N + j, load_part(d_bias + k * N + j, left) + d[k], left);
            }
            store_part(d_cells + state, dc * forget, left);
        }
}

static void lstm_forward_slice(void *argument, int slice) {
    lstm_t *job = argument;
    int64_t N = job->hidden, I = job->inputs;
    span_t spans[2];
    for (int64_t s = 0; s < job->walk.steps; s++) {
        int count = spans_of(&job->walk, s, job->bounds[slice], job->bounds[slice + 1], spans);
        for (int i = 0; i < count; i++) {
            span_t span = spans[i];
            int64_t here = job->walk.offsets[span.t] + span.from, rows = span.to - span.from;
            int64_t past = span.previous < 0 ? span.from : job->walk.offsets[span.previous] + span.from;
            const REAL *h = (span.previous < 0 ? job->initial : job->states) + past * N;
            const REAL *c = (span.previous < 0 ? job->initial_cells : job->cells) + past * N;
            REAL *gates = job->gates + here * 4 * N;
            product(rows, 4 * N, (left_t){I, job->x + here * I, I}, (left_t){N, h, N}, job->packed, gates, 4 * N, 0);
            lstm_activate(rows, N, job->bias, gates, c, job->cells + here * N, job->states + here * N);
        }
    }
}

static int NAME(lstm_forward)(walk_t walk, int64_t hidden, int64_t inputs, const REAL *x, const REAL *W,
                              const REAL *bias, const REAL *U, const REAL *initial, const REAL *initial_cells,
                              REAL *states, REAL *cells, REAL *gates, int slices) {
    int64_t bounds[slices + 1];
    balance(&walk, slices, bounds);
    REAL *packed = pack(4 * hidden, transposed(W, inputs), transposed(U, hidden));
    if (!packed) return 1;
    lstm_t job = {.walk = walk,
                  .hidden = hidden,
                  .inputs = inputs,
                  .bounds = bounds,
                  .x = x,
                  .bias = bias,
                  .initial = initial,
                  .initial_cells = initial_cells,
                  .packed = packed,
                  .states = states,
                  .cells = cells,
                  .gates = gates};
    run_slices(lstm_forward_slice, &job, slices);
    give_back(packed);
    return 0;
}

/* Backward pass, in reverse order of the steps. d_initial and d_initial_cells carry the gradients from step to step; at
 * the end they are the gradients of h_0 and c_0. */
static void lstm_backward_slice(void *argument, int slice) {
    lstm_t *job = argument;
    int64_t N = job->hidden, I = job->inputs, first = job->bounds[slice], last = job->bounds[slice + 1];
    REAL *d_bias = sums_bias(&job->sums, slice);
    left_t none = {0, NULL, 0};
    outer_t outer;
    int open = outer_open(&outer, &job->sums, slice, last - first, 0);
    if (!open) atomic_store(&job->failed, 1);
    span_t spans[2];
    for (int64_t s = job->walk.steps - 1; s >= 0 && open; s--) {
        int count = spans_of(&job->walk, s, first, last, spans);
        for (int i = 0; i < count; i++) {
            span_t span = spans[i];
            int64_t here = job->walk.offsets[span.t] + span.from, rows = span.to - span.from;
            int64_t past = span.previous < 0 ? span.from : job->walk.offsets[span.previous] + span.from;
            const REAL *h = (span.previous < 0 ? job->initial : job->states) + past * N;
            const REAL *c = (span.previous < 0 ? job->initial_cells : job->cells) + past * N;
            REAL *deltas = outer.deltas + outer_reserve(&outer, rows, h, job->x + here * I) * 4 * N;
            REAL *carried = job->d_initial + span.from * N;
            lstm_activation_backward(rows, N, job->gates + here * 4 * N, job->cells + here * N, c,
                                     job->gradient + here * N, carried,
                                     job->cell_gradient ? job->cell_gradient + here * N : NULL,
                                     job->d_initial_cells + span.from * N, deltas, d_bias);
            if (job->deltas) memcpy(job->deltas + here * 4 * N, deltas, (size_t)(rows * 4 * N) * sizeof(REAL));
            if (job->detached && job->detached[span.t]) memset(carried, 0, (size_t)(rows * N) * sizeof(REAL));
            else product(rows, N, none, (left_t){4 * N, deltas, 4 * N}, job->packed, carried, N, 0);
        }
    }
    if (open) outer_flush(&outer);
    outer_close(&outer);
}

/* The caller sets d_initial and d_initial_cells to zero. `deltas` and `detached` may be null. `detached` is 1 for each
 * step whose gates pass no gradient to the previous state. */
static int NAME(lstm_backward)(walk_t walk, int64_t hidden, int64_t inputs, const REAL *gradient,
                               const REAL *cell_gradient, const REAL *x, const REAL *states, const REAL *cells,
                               const REAL *gates, const REAL *U, const REAL *initial, const REAL *initial_cells,
                               const uint8_t *detached, REAL *deltas, REAL *d_U, REAL *d_W, REAL *d_bias,
                               REAL *d_initial, REAL *d_initial_cells, int slices) {
    int64_t bounds[slices + 1];
    balance(&walk, slices, bounds);
    sums_t sums = {4 * hidden, hidden, inputs, 4 * hidden, slices, NULL};
    REAL *packed = pack(hidden, plain(NULL, 0, 0), plain(U, 4 * hidden, hidden));
    int ready = sums_open(&sums) && packed;
    lstm_t job = {.walk = walk,
                  .hidden = hidden,
                  .inputs = inputs,
                  .bounds = bounds,
                  .gradient = gradient,
                  .cell_gradient = cell_gradient,
                  .x = x,
                  .states = (REAL *)states,
                  .cells = (REAL *)cells,
                  .gates = (REAL *)gates,
                  .packed = packed,
                  .initial = initial,
                  .initial_cells = initial_cells,
                  .detached = detached,
                  .deltas = deltas,
                  .sums = sums,
                  .d_initial = d_initial,
                  .d_initial_cells = d_initial_cells};
    if (ready) run_slices(lstm_backward_slice, &job, slices);
    give_back(packed);
    sums_close(&sums, d_U, d_W, d_bias);
    return !ready || atomic_load(&job.failed);
}
