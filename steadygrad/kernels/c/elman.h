/* h_t = φ(U x_t + bias + W h_{t−1}) */
typedef struct {
    walk_t walk;
    int64_t hidden, inputs, activation;
    const REAL *x, *U, *bias, *W, *initial; /* bias may be null */
    REAL *states;
    int64_t slices;
} elman_forward_t;

/* The caller sets d_initial to zero. bias, `deltas` (the gradients before the activation) and d_bias may be null. Only
 * complex modReLU uses the bias. */
typedef struct {
    walk_t walk;
    int64_t hidden, inputs, activation;
    const REAL *gradient, *x, *states, *bias, *W, *initial;
    REAL *deltas, *d_W, *d_U, *d_bias, *d_initial;
    int64_t slices;
} elman_backward_t;

/* Apply φ to rows of h in place. After inlining `activation` is a constant, here and below: the loop has no switch. */
INLINE void elman_activate(const int activation, int64_t rows, int64_t N, const REAL *bias, REAL *h) {
    for (int64_t r = 0; r < rows; r++, h += N)
        EACH_VECTOR(j, left, N) {
            vec z = load_part(h + j, left), b = {0};
            if (bias) b = load_part(bias + j, left);
            if (activation != MODRELU) z += b;
            store_part(h + j, activate(activation, z, b), left);
        }
}

/* Compute delta = φ'(h) ∘ (gradient + carried) on rows, and add its part of the bias gradient to d_bias. `carried` and
 * d_bias may be null. */
INLINE void elman_activation_backward(const int activation, int64_t rows, int64_t N, const REAL *h,
                                      const REAL *gradient, const REAL *carried, REAL *delta, REAL *d_bias) {
    EACH_VECTOR(j, left, N) {
        vec sum = {0};
        for (int64_t k = j; k < j + rows * N; k += N) {
            vec y = load_part(h + k, left);
            vec d = load_part(gradient + k, left);
            if (carried) d += load_part(carried + k, left);
            d = activation_backward(activation, y, d);
            store_part(delta + k, d, left);
            sum += bias_gradient(activation, y, d);
        }
        if (d_bias) store_part(d_bias + j, load_part(d_bias + j, left) + sum, left);
    }
}

/* Complex units: z → (|z| + b) z/|z|, or 0 where |z| + b ≤ 0.
 * The first half of a row holds the real parts, the second half the imaginary parts; there are N/2 biases. */
INLINE void complex_activate(int64_t rows, int64_t N, const REAL *bias, REAL *h) {
    int64_t half = N / 2;
    vec zero = {0};
    for (int64_t r = 0; r < rows; r++, h += N)
        EACH_VECTOR(j, left, half) {
            vec re = load_part(h + j, left), im = load_part(h + half + j, left), b = zero;
            if (bias) b = load_part(bias + j, left);
            vec size = vec_sqrt(re * re + im * im), scale = (size + b) / size;
            scale = vec_select((mask)(size + b <= zero) | (mask)(size == zero), zero, scale);
            store_part(h + j, re * scale, left);
            store_part(h + half + j, im * scale, left);
        }
}

/* With u = y/|y| and |z| = |y| − b: the part of the gradient along u is unchanged, the part orthogonal to u is
 * multiplied by |y|/|z|. */
INLINE void complex_activation_backward(int64_t rows, int64_t N, const REAL *bias, const REAL *h, const REAL *gradient,
                                        const REAL *carried, REAL *delta, REAL *d_bias) {
    int64_t half = N / 2;
    vec zero = {0};
    EACH_VECTOR(j, left, half) {
        vec b = zero, sum = zero;
        if (bias) b = load_part(bias + j, left);
        for (int64_t k = j; k < j + rows * N; k += N) {
            vec re = load_part(h + k, left), im = load_part(h + k + half, left);
            vec d_re = load_part(gradient + k, left), d_im = load_part(gradient + k + half, left);
            if (carried) d_re += load_part(carried + k, left), d_im += load_part(carried + k + half, left);
            vec size = vec_sqrt(re * re + im * im);
            mask silent = (mask)(size == zero);
            const REAL epsilon = sizeof(REAL) == 4 ? (REAL)1.1920929e-7 : (REAL)2.220446049250313e-16;
            vec before = size - b, least = size * epsilon;
            before = vec_select((mask)(before < least), least, before); /* |z| > 0, but rounding may give ≤ 0 */
            vec along = (re * d_re + im * d_im) / size, scale = size / before;
            along = vec_select(silent, zero, along);
            scale = vec_select(silent, zero, scale);
            vec rest = vec_select(silent, zero, along * (1 - scale) / size);
            store_part(delta + k, scale * d_re + rest * re, left);
            store_part(delta + k + half, scale * d_im + rest * im, left);
            sum += along;
        }
        if (d_bias) store_part(d_bias + j, load_part(d_bias + j, left) + sum, left);
    }
}

#define FOR_ACTIVATION(activation, call, ...)            \
    switch (activation) {                                \
        case MODRELU: call(MODRELU, __VA_ARGS__); break; \
        case TANH: call(TANH, __VA_ARGS__); break;       \
        case RELU: call(RELU, __VA_ARGS__); break;       \
        default: call(IDENTITY, __VA_ARGS__);            \
    }

static void elman_activate_any(int64_t activation, int64_t rows, int64_t N, const REAL *bias, REAL *h) {
    if (activation == IDENTITY && !bias) return;
    if (activation == COMPLEX_MODRELU) complex_activate(rows, N, bias, h);
    else FOR_ACTIVATION(activation, elman_activate, rows, N, bias, h)
}

static void elman_activation_backward_any(int64_t activation, int64_t rows, int64_t N, const REAL *bias, const REAL *h,
                                          const REAL *gradient, const REAL *carried, REAL *delta, REAL *d_bias) {
    if (activation == COMPLEX_MODRELU) complex_activation_backward(rows, N, bias, h, gradient, carried, delta, d_bias);
    else FOR_ACTIVATION(activation, elman_activation_backward, rows, N, h, gradient, carried, delta, d_bias)
}
#undef FOR_ACTIVATION

static int elman_forward_slice(const void *arguments, part_t *part) {
    const elman_forward_t *given = arguments;
    int64_t N = given->hidden, I = given->inputs;
    EACH_SPAN(span, &given->walk, part, 0) {
        left_t x = rows_of(given->x + span.here * I, I);
        left_t before = rows_of(previous_rows(&span, given->initial, given->states, N, part->room), N);
        REAL *h = given->states + span.here * N;
        product(span.rows, N, x, before, part->packed[0], h, N, 0);
        elman_activate_any(given->activation, span.rows, N, given->bias, h);
    }
    return 0;
}

static int NAME(elman_forward)(const elman_forward_t *given) {
    int64_t N = given->hidden;
    setup_t setup = {1, {pack(N, transposed(given->U, given->inputs), transposed(given->W, N))}, {0}, N};
    return run_walk(&given->walk, given->slices, elman_forward_slice, given, &setup);
}

/* Backward pass, in reverse order of the steps: delta_t = φ'(h_t) ∘ (gradient_t + carried),  carried ← delta_t W.
 * d_initial stores `carried`: it is zero at the start and the gradient of h_0 at the end. */
static int elman_backward_slice(const void *arguments, part_t *part) {
    const elman_backward_t *given = arguments;
    int64_t N = given->hidden;
    EACH_SPAN(span, &given->walk, part, 1) {
        int64_t here = span.here, rows = span.rows;
        const REAL *before;
        int64_t place = outer_reserve_span(&part->outer, &span, given->initial, given->states, given->x, &before);
        REAL *deltas = part->outer.deltas + place * N;
        REAL *carried = given->d_initial + span.from * N;
        elman_activation_backward_any(given->activation, rows, N, given->bias, given->states + here * N,
                                      given->gradient + here * N, carried, deltas, part->d_bias);
        if (given->deltas) memcpy(given->deltas + here * N, deltas, (size_t)(rows * N) * sizeof(REAL));
        product(rows, N, no_rows(), rows_of(deltas, N), part->packed[0], carried, N, 0);
        stop_gradient(&span, carried, N);
    }
    return 0;
}

static int NAME(elman_backward)(const elman_backward_t *given) {
    int64_t N = given->hidden, biases = given->activation == COMPLEX_MODRELU ? N / 2 : N;
    sums_t sums = {N, N, given->inputs, given->d_bias ? biases : 0, given->d_W, given->d_U, given->d_bias};
    setup_t setup = {1, {pack_one(N, plain(given->W, N, N))}, sums};
    return run_walk(&given->walk, given->slices, elman_backward_slice, given, &setup);
}
