/* r = σ(W_r x + U_r h + b_r),  u = σ(W_u x + U_u h + b_u),  c = φ(W_c x + U_c (r∘h) + b_c),  h ← (1 − u)∘h + u∘c
 * or, with the reset after the product,                     c = φ(W_c x + r∘(U_c h + b_hn) + b_c)
 *
 * The rows of W (3N × I), U (3N × N), bias (3N) and the saved gates are in the order reset, update, candidate. If
 * `products` is not null, the reset acts after the product, and `products` holds U_c h + b_hn. */
typedef struct {
    walk_t walk;
    int64_t hidden, inputs, activation;
    const REAL *x, *W, *bias, *U, *modulus, *bias_hn, *initial; /* bias, modulus and bias_hn may be null */
    REAL *states, *gates, *products;
    int64_t slices;
} gru_forward_t;

/* The caller sets d_initial to zero. d_bias (5 hidden) holds the gradients of the three gates' biases, then those of the
 * bias of modReLU and of b_hn, which is zero if the reset acts before the product. `deltas` may be null. */
typedef struct {
    walk_t walk;
    int64_t hidden, inputs, activation;
    const REAL *gradient, *x, *states, *gates, *products, *U, *initial;
    REAL *deltas, *d_U, *d_W, *d_bias, *d_initial;
    int64_t slices;
} gru_backward_t;

/* Compute the reset gate r in place, and r∘h, from the products of the gates and the previous states h. */
INLINE void gru_reset(int64_t rows, int64_t N, const REAL *bias, REAL *gates, const REAL *before, REAL *reset) {
    for (int64_t row = 0; row < rows; row++)
        EACH_VECTOR(j, left, N) {
            REAL *gate = gates + row * 3 * N + j;
            vec r = load_part(gate, left);
            if (bias) r += load_part(bias + j, left);
            r = vec_sigmoid(r);
            store_part(gate, r, left);
            store_part(reset + row * N + j, r * load_part(before + row * N + j, left), left);
        }
}

/* Compute update gate and candidate in place, and the next states. `after` may be `before`. */
INLINE void gru_next(int64_t rows, int64_t N, int64_t activation, const REAL *bias, const REAL *modulus, REAL *gates,
                     const REAL *before, REAL *after) {
    for (int64_t row = 0; row < rows; row++)
        EACH_VECTOR(j, left, N) {
            REAL *gate = gates + row * 3 * N + j;
            vec u = load_part(gate + N, left), c = load_part(gate + 2 * N, left), b = {0};
            vec old = load_part(before + row * N + j, left);
            if (bias) {
                u += load_part(bias + N + j, left);
                c += load_part(bias + 2 * N + j, left);
            }
            if (modulus) b = load_part(modulus + j, left);
            u = vec_sigmoid(u);
            c = activate((int)activation, c, b);
            store_part(gate + N, u, left);
            store_part(gate + 2 * N, c, left);
            store_part(after + row * N + j, old + u * (c - old), left);
        }
}

static int gru_forward_slice(const void *arguments, part_t *part) {
    const gru_forward_t *given = arguments;
    int64_t N = given->hidden, I = given->inputs;
    REAL *scratch = borrow_reals((part->last - part->first) * N);
    if (!scratch) return NO_MEMORY;
    EACH_SPAN(span, &given->walk, part, 0) {
        int64_t here = span.here, rows = span.rows;
        const REAL *before = previous_rows(&span, given->initial, given->states, N, part->room);
        REAL *gates = given->gates + here * 3 * N;
        left_t x = rows_of(given->x + here * I, I), h = rows_of(before, N), reset = rows_of(scratch, N);
        product(rows, N, x, h, part->packed[0], gates, 3 * N, 0);
        product(rows, N, x, h, part->packed[1], gates + N, 3 * N, 0);
        gru_reset(rows, N, given->bias, gates, before, scratch);
        product(rows, N, x, reset, part->packed[2], gates + 2 * N, 3 * N, 0);
        gru_next(rows, N, given->activation, given->bias, given->modulus, gates, before, given->states + here * N);
    }
    give_back(scratch);
    return 0;
}

/* Forward pass with the reset after the product. No product depends on the reset gate, so all products come first. */
static int gru_after_forward_slice(const void *arguments, part_t *part) {
    const gru_forward_t *given = arguments;
    int64_t N = given->hidden, I = given->inputs;
    EACH_SPAN(span, &given->walk, part, 0) {
        int64_t here = span.here, rows = span.rows;
        const REAL *before = previous_rows(&span, given->initial, given->states, N, part->room);
        REAL *gates = given->gates + here * 3 * N, *products = given->products + here * N;
        REAL *after = given->states + here * N;
        left_t x = rows_of(given->x + here * I, I), h = rows_of(before, N);
        product(rows, N, x, h, part->packed[0], gates, 3 * N, 0);
        product(rows, N, x, h, part->packed[1], gates + N, 3 * N, 0);
        product(rows, N, x, no_rows(), part->packed[2], gates + 2 * N, 3 * N, 0);
        product(rows, N, no_rows(), h, part->packed[3], products, N, 0);
        for (int64_t row = 0; row < rows; row++)
            EACH_VECTOR(j, left, N) {
                REAL *gate = gates + row * 3 * N + j, *inner = products + row * N + j;
                vec r = load_part(gate, left), u = load_part(gate + N, left);
                vec c = load_part(gate + 2 * N, left), b = {0}, from_h = load_part(inner, left);
                vec old = load_part(before + row * N + j, left);
                if (given->bias) {
                    r += load_part(given->bias + j, left);
                    u += load_part(given->bias + N + j, left);
                    c += load_part(given->bias + 2 * N + j, left);
                }
                if (given->modulus) b = load_part(given->modulus + j, left);
                if (given->bias_hn) {
                    from_h += load_part(given->bias_hn + j, left);
                    store_part(inner, from_h, left);
                }
                r = vec_sigmoid(r);
                u = vec_sigmoid(u);
                c = activate(given->activation, c + r * from_h, b);
                store_part(gate, r, left);
                store_part(gate + N, u, left);
                store_part(gate + 2 * N, c, left);
                store_part(after + row * N + j, old + u * (c - old), left);
            }
    }
    return 0;
}

static int NAME(gru_forward)(const gru_forward_t *given) {
    int64_t N = given->hidden, I = given->inputs;
    setup_t setup = {given->products ? 4 : 3, {NULL}, {0}, N}; /* W_c and U_c packed together, or separately */
    for (int k = 0; k < setup.packs; k++) {
        int64_t gate = k < 3 ? k : 2;
        source_t nothing = plain(NULL, 0, 0), from_x = transposed(given->W + gate * N * I, I);
        source_t from_h = transposed(given->U + gate * N * N, N);
        setup.packed[k] = pack(N, k == 3 ? nothing : from_x, k == 2 && given->products ? nothing : from_h);
    }
    run_part_t run = given->products ? gru_after_forward_slice : gru_forward_slice;
    return run_walk(&given->walk, given->slices, run, given, &setup);
}

/* Backward pass, in reverse order of the steps. d_initial carries the gradient of the state from step to step; at the
 * end it is the gradient of h_0. */
static int gru_backward_slice(const void *arguments, part_t *part) {
    const gru_backward_t *given = arguments;
    int64_t N = given->hidden;
    REAL *d_bias = part->d_bias; /* of reset, update, candidate, modReLU and b_hn */
    REAL *scratch = borrow_reals((part->last - part->first) * N);
    if (!scratch) return NO_MEMORY;
    EACH_SPAN(span, &given->walk, part, 1) {
        int64_t here = span.here, rows = span.rows;
        const REAL *before;
        const REAL *gates = given->gates + here * 3 * N, *gradient = given->gradient + here * N;
        int64_t place = outer_reserve_span(&part->outer, &span, given->initial, given->states, given->x, &before);
        REAL *deltas = part->outer.deltas + place * 3 * N, *resets = part->outer.resets + place * N;
        REAL *carried = given->d_initial + span.from * N;
        for (int64_t row = 0; row < rows; row++)
            EACH_VECTOR(j, left, N) {
                const REAL *gate = gates + row * 3 * N + j;
                REAL *delta = deltas + row * 3 * N + j, *carry = carried + row * N + j;
                vec u = load_part(gate + N, left), c = load_part(gate + 2 * N, left);
                vec d = load_part(gradient + row * N + j, left) + load_part(carry, left);
                vec old = load_part(before + row * N + j, left);
                vec d_u = d * (c - old) * u * (1 - u), d_c = activation_backward(given->activation, c, d * u);
                store_part(delta + N, d_u, left);
                store_part(delta + 2 * N, d_c, left);
                store_part(carry, d * (1 - u), left);
                store_part(d_bias + N + j, load_part(d_bias + N + j, left) + d_u, left);
                store_part(d_bias + 2 * N + j, load_part(d_bias + 2 * N + j, left) + d_c, left);
                vec modulus = load_part(d_bias + 3 * N + j, left) + bias_gradient(MODRELU, c, d_c);
                store_part(d_bias + 3 * N + j, modulus, left);
            }
        product(rows, N, no_rows(), (left_t){N, deltas + 2 * N, 3 * N}, part->packed[1], scratch, N, 0);
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
        if (given->deltas) memcpy(given->deltas + here * 3 * N, deltas, (size_t)(rows * 3 * N) * sizeof(REAL));
        product(rows, N, no_rows(), (left_t){2 * N, deltas, 3 * N}, part->packed[0], carried, N, 1);
        stop_gradient(&span, carried, N);
    }
    give_back(scratch);
    return 0;
}

/* Backward pass with the reset after the product; packed[0] is the whole of U. */
static int gru_after_backward_slice(const void *arguments, part_t *part) {
    const gru_backward_t *given = arguments;
    int64_t N = given->hidden;
    REAL *d_bias = part->d_bias;
    EACH_SPAN(span, &given->walk, part, 1) {
        int64_t here = span.here, rows = span.rows;
        const REAL *before;
        const REAL *gates = given->gates + here * 3 * N, *gradient = given->gradient + here * N;
        int64_t place = outer_reserve_span(&part->outer, &span, given->initial, given->states, given->x, &before);
        REAL *deltas = part->outer.deltas + place * 3 * N, *resets = part->outer.resets + place * N;
        REAL *carried = given->d_initial + span.from * N;
        for (int64_t row = 0; row < rows; row++)
            EACH_VECTOR(j, left, N) {
                const REAL *gate = gates + row * 3 * N + j;
                REAL *carry = carried + row * N + j;
                vec r = load_part(gate, left), u = load_part(gate + N, left);
                vec c = load_part(gate + 2 * N, left), old = load_part(before + row * N + j, left);
                vec d = load_part(gradient + row * N + j, left) + load_part(carry, left);
                vec d_u = d * (c - old) * u * (1 - u), d_c = activation_backward(given->activation, c, d * u);
                vec d_r = d_c * load_part(given->products + (here + row) * N + j, left) * r * (1 - r);
                vec parts[5] = {d_r, d_u, d_c, bias_gradient(MODRELU, c, d_c), r * d_c};
                for (int k = 0; k < 5; k++) {
                    if (k < 3) store_part(deltas + row * 3 * N + k * N + j, parts[k], left);
                    store_part(d_bias + k * N + j, load_part(d_bias + k * N + j, left) + parts[k], left);
                }
                store_part(resets + row * N + j, parts[4], left); /* gradient of U_c h + b_hn */
                store_part(carry, d * (1 - u), left);
            }
        if (given->deltas) memcpy(given->deltas + here * 3 * N, deltas, (size_t)(rows * 3 * N) * sizeof(REAL));
        product(rows, N, (left_t){2 * N, deltas, 3 * N}, rows_of(resets, N), part->packed[0], carried, N, 1);
        stop_gradient(&span, carried, N);
    }
    return 0;
}

static int NAME(gru_backward)(const gru_backward_t *given) {
    int64_t N = given->hidden;
    const REAL *U = given->U;
    enum reset reset = given->products ? RESET_AFTER : RESET_BEFORE;
    setup_t setup = {.sums = {3 * N, N, given->inputs, 5 * N, given->d_U, given->d_W, given->d_bias, reset}, .room = N};
    if (given->products) {
        setup.packed[setup.packs++] = pack_one(N, plain(U, 3 * N, N));
    } else {
        setup.packed[setup.packs++] = pack_one(N, plain(U, 2 * N, N));
        setup.packed[setup.packs++] = pack_one(N, plain(U + 2 * N * N, N, N));
    }
    run_part_t run = given->products ? gru_after_backward_slice : gru_backward_slice;
    return run_walk(&given->walk, given->slices, run, given, &setup);
}
