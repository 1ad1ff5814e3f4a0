/* r = σ(W_r x + U_r h + b_r),  u = σ(W_u x + U_u h + b_u),  c = φ(W_c x + U_c (r∘h) + b_c),  h ← (1 − u)∘h + u∘c
 * or, with the reset after the product,                     c = φ(W_c x + r∘(U_c h) + b_c)
 *
 * The rows of W (3N × I), U (3N × N), bias (3N) and the saved gates are in the order reset, update, candidate. If
 * `products` is not null, the reset acts after the product, and `products` holds U_c h. */
typedef struct {
    walk_t walk;
    int64_t hidden, inputs;
    int activation;
    const int64_t *bounds;
    const REAL *x, *bias, *modulus, *initial, *gradient;
    const REAL *packed[4];
    REAL *states, *gates, *products, *deltas, *d_initial;
    sums_t sums;
    atomic_int failed;
} gru_t;

static void gru_forward_slice(void *argument, int slice) {
    gru_t *job = argument;
    int64_t N = job->hidden, I = job->inputs, first = job->bounds[slice], last = job->bounds[slice + 1];
    if (first >= last) return;
    REAL *scratch = borrow((size_t)((last - first) * N) * sizeof(REAL));
    if (!scratch) {
        atomic_store(&job->failed, 1);
        return;
    }
    span_t spans[2];
    for (int64_t s = 0; s < job->walk.steps; s++) {
        int count = spans_of(&job->walk, s, first, last, spans);
        for (int i = 0; i < count; i++) {
            span_t span = spans[i];
            int64_t here = job->walk.offsets[span.t] + span.from, rows = span.to - span.from;
            const REAL *before = span.previous < 0 ? job->initial + span.from * N
                                                   : job->states + (job->walk.offsets[span.previous] + span.from) * N;
            REAL *gates = job->gates + here * 3 * N;
            left_t x = {I, job->x + here * I, I}, h = {N, before, N}, reset = {N, scratch, N};
            product(rows, N, x, h, job->packed[0], gates, 3 * N, 0);
            product(rows, N, x, h, job->packed[1], gates + N, 3 * N, 0);
            for (int64_t row = 0; row < rows; row++)
                EACH_VECTOR(j, left, N) {
                    REAL *gate = gates + row * 3 * N + j;
                    vec r = load_part(gate, left);
                    if (job->bias) r += load_part(job->bias + j, left);
                    r = vec_sigmoid(r);
                    store_part(gate, r, left);
                    store_part(scratch + row * N + j, r * load_part(before + row * N + j, left), left);
                }
            product(rows, N, x, reset, job->packed[2], gates + 2 * N, 3 * N, 0);
            REAL *after = job->states + here * N;
            for (int64_t row = 0; row < rows; row++)
                EACH_VECTOR(j, left, N) {
                    REAL *gate = gates + row * 3 * N + j;
                    vec u = load_part(gate + N, left), c = load_part(gate + 2 * N, left), b = {0};
                    vec old = load_part(before + row * N + j, left);
                    if (job->bias) {
                        u += load_part(job->bias + N + j, left);
                        c += load_part(job->bias + 2 * N + j, left);
                    }
                    if (job->modulus) b = load_part(job->modulus + j, left);
                    u = vec_sigmoid(u);
                    c = activate(job->activation, c, b);
                    store_part(gate + N, u, left);
                    store_part(gate + 2 * N, c, left);
                    store_part(after + row * N + j, old + u * (c - old), left);
                }
        }
    }
    give_back(scratch);
}

/* Forward pass with the reset after the product. No product depends on the reset gate, so all products come first. */
static void gru_after_forward_slice(void *argument, int slice) {
    gru_t *job = argument;
    int64_t N = job->hidden, I = job->inputs;
    left_t none = {0, NULL, 0};
    span_t spans[2];
    for (int64_t s = 0; s < job->walk.steps; s++) {
        int count = spans_of(&job->walk, s, job->bounds[slice], job->bounds[slice + 1], spans);
        for (int i = 0; i < count; i++) {
            span_t span = spans[i];
            int64_t here = job->walk.offsets[span.t] + span.from, rows = span.to - span.from;
            const REAL *before = span.previous < 0 ? job->initial + span.from * N
                                                   : job->states + (job->walk.offsets[span.previous] + span.from) * N;
            REAL *gates = job->gates + here * 3 * N, *products = job->products + here * N,
                 *after = job->states + here * N;
            left_t x = {I, job->x + here * I, I}, h = {N, before, N};
            product(rows, N, x, h, job->packed[0], gates, 3 * N, 0);
            product(rows, N, x, h, job->packed[1], gates + N, 3 * N, 0);
            product(rows, N, x, none, job->packed[2], gates + 2 * N, 3 * N, 0);
            product(rows, N, none, h, job->packed[3], products, N, 0);
            for (int64_t row = 0; row < rows; row++)
                EACH_VECTOR(j, left, N) {
                    REAL *gate = gates + row * 3 * N + j;
                    vec r = load_part(gate, left), u = load_part(gate + N, left);
                    vec c = load_part(gate + 2 * N, left), b = {0};
                    vec old = load_part(before + row * N + j, left);
                    if (job->bias) {
                        r += load_part(job->bias + j, left);
                        u += load_part(job->bias + N + j, left);
                        c += load_part(job->bias + 2 * N + j, left);
                    }
                    if (job->modulus) b = load_part(job->modulus + j, left);
                    r = vec_sigmoid(r);
                    u = vec_sigmoid(u);
                    c = activate(job->activation, c + r * load_part(products + row * N + j, left), b);
                    store_part(gate, r, left);
                    store_part(gate + N, u, left);
                    store_part(gate + 2 * N, c, left);
                    store_part(after + row * N + j, old + u * (c - old), left);
                }
        }
    }
}

static int NAME(gru_forward)(walk_t walk, int64_t hidden, int64_t inputs, int activation, const REAL *x, const REAL *W,
                             const REAL *bias, const REAL *U, const REAL *modulus, const REAL *initial, REAL *states,
                             REAL *gates, REAL *products, int slices) {
    int64_t bounds[slices + 1];
    balance(&walk, slices, bounds);
    gru_t job = {.walk = walk,
                 .hidden = hidden,
                 .inputs = inputs,
                 .activation = activation,
                 .bounds = bounds,
                 .x = x,
                 .bias = bias,
                 .modulus = modulus,
                 .initial = initial,
                 .states = states,
                 .gates = gates,
                 .products = products};
    int failed = 0, packs = products ? 4 : 3; /* W_c and U_c packed together, or separately */
    source_t nothing = plain(NULL, 0, 0);
    for (int k = 0; k < packs; k++) {
        int64_t g = k < 3 ? k : 2;
        source_t from_x = transposed(W + g * hidden * inputs, inputs);
        source_t from_h = transposed(U + g * hidden * hidden, hidden);
        job.packed[k] = pack(hidden, k == 3 ? nothing : from_x, k == 2 && products ? nothing : from_h);
        failed |= !job.packed[k];
    }
    if (!failed) run_slices(products ? gru_after_forward_slice : gru_forward_slice, &job, slices);
    for (int k = 0; k < packs; k++) give_back((void *)job.packed[k]);
    return failed || atomic_load(&job.failed);
}

/* Backward pass, in reverse order of the steps. d_initial carries the gradient of the state from step to step; at the
 * end it is the gradient of h_0. */
static void gru_backward_slice(void *argument, int slice) {
    gru_t *job = argument;
    int64_t N = job->hidden, I = job->inputs, first = job->bounds[slice], last = job->bounds[slice + 1];
    REAL *d_bias = sums_bias(&job->sums, slice); /* of reset, update, candidate and modReLU */
    REAL *scratch = borrow_reals((last - first) * N + 1);
    outer_t outer;
    int open = outer_open(&outer, &job->sums, slice, last - first, RESET_BEFORE);
    if (!open || !scratch) atomic_store(&job->failed, 1);
    left_t none = {0, NULL, 0};
    span_t spans[2];
    for (int64_t s = job->walk.steps - 1; s >= 0 && open && scratch; s--) {
        int count = spans_of(&job->walk, s, first, last, spans);
        for (int i = 0; i < count; i++) {
            span_t span = spans[i];
            int64_t here = job->walk.offsets[span.t] + span.from, rows = span.to - span.from;
            const REAL *before = span.previous < 0 ? job->initial + span.from * N
                                                   : job->states + (job->walk.offsets[span.previous] + span.from) * N;
            const REAL *gates = job->gates + here * 3 * N, *gradient = job->gradient + here * N;
            int64_t place = outer_reserve(&outer, rows, before, job->x + here * I);
            REAL *deltas = outer.deltas + place * 3 * N, *resets = outer.resets + place * N;
            REAL *carried = job->d_initial + span.from * N;
            for (int64_t row = 0; row < rows; row++)
                EACH_VECTOR(j, left, N) {
                    const REAL *gate = gates + row * 3 * N + j;
                    REAL *delta = deltas + row * 3 * N + j, *carry = carried + row * N + j;
                    vec u = load_part(gate + N, left), c = load_part(gate + 2 * N, left);
                    vec d = load_part(gradient + row * N + j, left) + load_part(carry, left);
                    vec old = load_part(before + row * N + j, left);
                    vec d_u = d * (c - old) * u * (1 - u), d_c = activation_backward(job->activation, c, d * u);
                    store_part(delta + N, d_u, left);
                    store_part(delta + 2 * N, d_c, left);
                    store_part(carry, d * (1 - u), left);
                    store_part(d_bias + N + j, load_part(d_bias + N + j, left) + d_u, left);
                    store_part(d_bias + 2 * N + j, load_part(d_bias + 2 * N + j, left) + d_c, left);
                    vec modulus = load_part(d_bias + 3 * N + j, left) + bias_gradient(MODRELU, c, d_c);
                    store_part(d_bias + 3 * N + j, modulus, left);
                }
            product(rows, N, none, (left_t){N, deltas + 2 * N, 3 * N}, job->packed[1], scratch, N, 0);
            for (int64_t row = 0; row < rows; row++)
                EACH_VECTOR(j, left, N) {
                    REAL *carry = carried + row * N + j;
                    vec d = load_part(scratch + row * N + j, left); /* gradient of r∘h */
                    vec r = load_part(gates + row * 3 * N + j, left), old = load_part(before + row * N + j, left);
                    vec d_r = d * old * r * (1 - r);
                    store_part(deltas + row * 3 * N + j, d_r, left);
                    store_part(resets + row * N + j, r * old, left);
                    store_part(carry, load_part(carry, left) + d * r, left);
                    store_part(d_bias + j, load_part(d_bias + j, left) + d_r, left);
                }
            if (job->deltas) memcpy(job->deltas + here * 3 * N, deltas, (size_t)(rows * 3 * N) * sizeof(REAL));
            product(rows, N, none, (left_t){2 * N, deltas, 3 * N}, job->packed[0], carried, N, 1);
        }
    }
    if (open) outer_flush(&outer);
    outer_close(&outer);
    give_back(scratch);
}

/* Backward pass with the reset after the product; packed[0] is the whole of U. */
static void gru_after_backward_slice(void *argument, int slice) {
    gru_t *job = argument;
    int64_t N = job->hidden, I = job->inputs, first = job->bounds[slice], last = job->bounds[slice + 1];
    REAL *d_bias = sums_bias(&job->sums, slice);
    outer_t outer;
    int open = outer_open(&outer, &job->sums, slice, last - first, RESET_AFTER);
    if (!open) atomic_store(&job->failed, 1);
    span_t spans[2];
    for (int64_t s = job->walk.steps - 1; s >= 0 && open; s--) {
        int count = spans_of(&job->walk, s, first, last, spans);
        for (int i = 0; i < count; i++) {
            span_t span = spans[i];
            int64_t here = job->walk.offsets[span.t] + span.from, rows = span.to - span.from;
            const REAL *before = span.previous < 0 ? job->initial + span.from * N
                                                   : job->states + (job->walk.offsets[span.previous] + span.from) * N;
            const REAL *gates = job->gates + here * 3 * N, *gradient = job->gradient + here * N;
            int64_t place = outer_reserve(&outer, rows, before, job->x + here * I);
            REAL *deltas = outer.deltas + place * 3 * N, *resets = outer.resets + place * N;
            REAL *carried = job->d_initial + span.from * N;
            for (int64_t row = 0; row < rows; row++)
                EACH_VECTOR(j, left, N) {
                    const REAL *gate = gates + row * 3 * N + j;
                    REAL *carry = carried + row * N + j;
                    vec r = load_part(gate, left), u = load_part(gate + N, left);
                    vec c = load_part(gate + 2 * N, left), old = load_part(before + row * N + j, left);
                    vec d = load_part(gradient + row * N + j, left) + load_part(carry, left);
                    vec d_u = d * (c - old) * u * (1 - u), d_c = activation_backward(job->activation, c, d * u);
                    vec d_r = d_c * load_part(job->products + (here + row) * N + j, left) * r * (1 - r);
                    vec parts[4] = {d_r, d_u, d_c, bias_gradient(MODRELU, c, d_c)};
                    for (int k = 0; k < 4; k++) {
                        if (k < 3) store_part(deltas + row * 3 * N + k * N + j, parts[k], left);
                        store_part(d_bias + k * N + j, load_part(d_bias + k * N + j, left) + parts[k], left);
                    }
                    store_part(resets + row * N + j, r * d_c, left); /* gradient of U_c h */
                    store_part(carry, d * (1 - u), left);
                }
            if (job->deltas) memcpy(job->deltas + here * 3 * N, deltas, (size_t)(rows * 3 * N) * sizeof(REAL));
            product(rows, N, (left_t){2 * N, deltas, 3 * N}, (left_t){N, resets, N}, job->packed[0], carried, N, 1);
        }
    }
    if (open) outer_flush(&outer);
    outer_close(&outer);
}

/* The caller sets d_initial to zero. d_bias (4 hidden) holds the gradients of the three gates' biases, then that of the
 * bias of modReLU. `deltas` may be null. `products` is null if the reset acts before the product. */
static int NAME(gru_backward)(walk_t walk, int64_t hidden, int64_t inputs, int activation, const REAL *gradient,
                              const REAL *x, const REAL *states, const REAL *gates, const REAL *products, const REAL *U,
                              const REAL *initial, REAL *deltas, REAL *d_U, REAL *d_W, REAL *d_bias, REAL *d_initial,
                              int slices) {
    int64_t bounds[slices + 1];
    balance(&walk, slices, bounds);
    sums_t sums = {3 * hidden, hidden, inputs, 4 * hidden, slices, NULL};
    source_t nothing = plain(NULL, 0, 0);
    REAL *gates_U = pack(hidden, nothing, plain(U, (products ? 3 : 2) * hidden, hidden)), *candidate_U = NULL;
    if (!products) candidate_U = pack(hidden, nothing, plain(U + 2 * hidden * hidden, hidden, hidden));
    int ready = sums_open(&sums) && gates_U && (candidate_U || products);
    gru_t job = {.walk = walk,
                 .hidden = hidden,
                 .inputs = inputs,
                 .activation = activation,
                 .bounds = bounds,
                 .gradient = gradient,
                 .x = x,
                 .initial = initial,
                 .states = (REAL *)states,
                 .gates = (REAL *)gates,
                 .products = (REAL *)products,
                 .packed = {gates_U, candidate_U},
                 .deltas = deltas,
                 .sums = sums,
                 .d_initial = d_initial};
    if (ready) run_slices(products ? gru_after_backward_slice : gru_backward_slice, &job, slices);
    give_back(gates_U);
    give_back(candidate_U);
    sums_close(&sums, d_U, d_W, d_bias);
    return !ready || atomic_load(&job.failed);
}
