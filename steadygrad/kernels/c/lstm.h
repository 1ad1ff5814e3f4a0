/* i, f, o = σ(W x + U h + b),  g = tanh(W x + U h + b),  c ← f∘c + i∘g,  h ← o∘tanh(c)
 *
 * The rows of W (4N × I), U (4N × N), bias (4N) and the saved gates are in torch's order i, f, g, o. */
typedef struct {
    walk_t walk;
    int64_t hidden, inputs;
    const REAL *x, *W, *bias, *U, *initial, *initial_cells; /* bias may be null */
    REAL *states, *cells, *gates;
    int64_t slices;
} lstm_forward_t;

/* The caller sets d_initial and d_initial_cells to zero. cell_gradient, `detached` and `deltas` may be null. `detached`
 * is 1 for each step whose gates pass no gradient to the previous state. */
typedef struct {
    walk_t walk;
    int64_t hidden, inputs;
    const REAL *gradient, *cell_gradient, *x, *states, *cells, *gates, *U, *initial, *initial_cells;
    const uint8_t *detached;
    REAL *deltas, *d_U, *d_W, *d_bias, *d_initial, *d_initial_cells;
    int64_t slices;
} lstm_backward_t;

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

static int lstm_forward_slice(const void *arguments, part_t *part) {
    const lstm_forward_t *given = arguments;
    int64_t N = given->hidden, I = given->inputs;
    EACH_SPAN(span, &given->walk, part, 0) {
        int64_t here = span.here;
        const REAL *h = previous_rows(&span, given->initial, given->states, N, part->room);
        REAL *room = part->room ? part->room + span.rows * N : NULL;
        const REAL *c = previous_rows(&span, given->initial_cells, given->cells, N, room);
        REAL *gates = given->gates + here * 4 * N;
        product(span.rows, 4 * N, rows_of(given->x + here * I, I), rows_of(h, N), part->packed[0], gates, 4 * N, 0);
        lstm_activate(span.rows, N, given->bias, gates, c, given->cells + here * N, given->states + here * N);
    }
    return 0;
}

static int NAME(lstm_forward)(const lstm_forward_t *given) {
    int64_t N = given->hidden;
    setup_t setup = {1, {pack(4 * N, transposed(given->W, given->inputs), transposed(given->U, N))}, {0}, 2 * N};
    return run_walk(&given->walk, given->slices, lstm_forward_slice, given, &setup);
}

/* Backward pass, in reverse order of the steps. d_initial and d_initial_cells carry the gradients from step to step; at
 * the end they are the gradients of h_0 and c_0. */
static int lstm_backward_slice(const void *arguments, part_t *part) {
    const lstm_backward_t *given = arguments;
    int64_t N = given->hidden;
    EACH_SPAN(span, &given->walk, part, 1) {
        int64_t here = span.here, rows = span.rows;
        const REAL *h, *c = previous_rows(&span, given->initial_cells, given->cells, N, part->room);
        int64_t place = outer_reserve_span(&part->outer, &span, given->initial, given->states, given->x, &h);
        const REAL *cell_gradient = given->cell_gradient ? given->cell_gradient + here * N : NULL;
        REAL *deltas = part->outer.deltas + place * 4 * N;
        REAL *carried = given->d_initial + span.from * N, *d_cells = given->d_initial_cells + span.from * N;
        lstm_activation_backward(rows, N, given->gates + here * 4 * N, given->cells + here * N, c,
                                 given->gradient + here * N, carried, cell_gradient, d_cells, deltas, part->d_bias);
        if (given->deltas) memcpy(given->deltas + here * 4 * N, deltas, (size_t)(rows * 4 * N) * sizeof(REAL));
        if (given->detached && given->detached[span.t]) memset(carried, 0, (size_t)(rows * N) * sizeof(REAL));
        else product(rows, N, no_rows(), rows_of(deltas, 4 * N), part->packed[0], carried, N, 0);
        stop_gradient(&span, carried, N);
        stop_gradient(&span, d_cells, N);
    }
    return 0;
}

static int NAME(lstm_backward)(const lstm_backward_t *given) {
    int64_t N = given->hidden;
    sums_t sums = {4 * N, N, given->inputs, 4 * N, given->d_U, given->d_W, given->d_bias};
    setup_t setup = {1, {pack_one(N, plain(given->U, 4 * N, N))}, sums, N};
    return run_walk(&given->walk, given->slices, lstm_backward_slice, given, &setup);
}
