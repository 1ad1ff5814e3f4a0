/* h_t = φ(U x_t + bias + W h_{t−1}) */
typedef struct {
    walk_t walk;
    int64_t hidden, inputs;
    int activation;
    const int64_t *bounds;
    const REAL *x, *bias, *initial, *packed, *gradient;
    REAL *states, *deltas, *d_initial;
    sums_t sums;
    atomic_int failed;
} elman_t;

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
            vec before = size - b,
                least = size * (sizeof(REAL) == 4 ? (REAL)1.1920929e-7 : (REAL)2.220446049250313e-16);
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

static void elman_activate_any(int activation, int64_t rows, int64_t N, const REAL *bias, REAL *h) {
    if (activation == IDENTITY && !bias) return;
    if (activation == COMPLEX_MODRELU) complex_activate(rows, N, bias, h);
    else FOR_ACTIVATION(activation, elman_activate, rows, N, bias, h)
}

static void elman_forward_slice(void *argument, int slice) {
    elman_t *job = argument;
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
            product(rows, N, (left_t){I, job->x + here * I, I}, (left_t){N, before, N}, job->packed, h, N, 0);
            elman_activate_any(job->activation, rows, N, job->bias, h);
        }
    }
}

static int NAME(elman_forward)(walk_t walk, int64_t hidden, int64_t inputs, int activation, const REAL *x,
                               const REAL *U, const REAL *bias, const REAL *W, const REAL *initial, REAL *states,
                               int slices) {
    int64_t bounds[slices + 1];
    balance(&walk, slices, bounds);
    REAL *packed = pack(hidden, transposed(U, inputs), transposed(W, hidden));
    if (!packed) return 1;
    elman_t job = {.walk = walk,
                   .hidden = hidden,
                   .inputs = inputs,
                   .activation = activation,
                   .bounds = bounds,
                   .x = x,
                   .bias = bias,
                   .initial = initial,
                   .packed = packed,
                   .states = states};
    run_slices(elman_forward_slice, &job, slices);
    give_back(packed);
    return 0;
}

static void elman_activation_backward_any(int activation, int64_t rows, int64_t N, const REAL *bias, const REAL *h,
                                          const REAL *gradient, const REAL *carried, REAL *delta, REAL *d_bias) {
    if (activation == COMPLEX_MODRELU) complex_activation_backward(rows, N, bias, h, gradient, carried, delta, d_bias);
    else FOR_ACTIVATION(activation, elman_activation_backward, rows, N, h, gradient, carried, delta, d_bias)
}
#undef FOR_ACTIVATION

/* Backward pass, in reverse order of the steps: delta_t = φ'(h_t) ∘ (gradient_t + carried),  carried ← delta_t W.
 * d_initial stores `carried`: it is zero at the start and the gradient of h_0 at the end. */
static void elman_backward_slice(void *argument, int slice) {
    elman_t *job = argument;
    int64_t N = job->hidden, I = job->inputs, first = job->bounds[slice], last = job->bounds[slice + 1];
    REAL *d_bias = job->sums.biases ? sums_bias(&job->sums, slice) : NULL;
    outer_t outer;
    if (!outer_open(&outer, &job->sums, slice, last - first, 0)) {
        atomic_store(&job->failed, 1);
        outer_close(&outer);
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
            REAL *deltas = outer.deltas + outer_reserve(&outer, rows, before, job->x + here * I) * N;
            REAL *carried = job->d_initial + span.from * N;
            elman_activation_backward_any(job->activation, rows, N, job->bias, job->states + here * N,
                                          job->gradient + here * N, carried, deltas, d_bias);
            if (job->deltas) memcpy(job->deltas + here * N, deltas, (size_t)(rows * N) * sizeof(REAL));
            product(rows, N, (left_t){0, NULL, 0}, (left_t){N, deltas, N}, job->packed, carried, N, 0);
        }
    }
    outer_flush(&outer);
    outer_close(&outer);
}

/* The caller sets d_initial to zero. `deltas` (the gradients before the activation), d_bias and bias may be null. Only
 * complex modReLU uses the bias. */
static int NAME(elman_backward)(walk_t walk, int64_t hidden, int64_t inputs, int activation, const REAL *gradient,
                                const REAL *x, const REAL *states, const REAL *bias, const REAL *W, const REAL *initial,
                                REAL *deltas, REAL *d_W, REAL *d_U, REAL *d_bias, REAL *d_initial, int slices) {
    int64_t bounds[slices + 1];
    balance(&walk, slices, bounds);
    int64_t biases = activation == COMPLEX_MODRELU ? hidden / 2 : hidden;
    sums_t sums = {hidden, hidden, inputs, d_bias ? biases : 0, slices, NULL};
    REAL *packed = pack(hidden, plain(NULL, 0, 0), plain(W, hidden, hidden));
    int ready = sums_open(&sums) && packed;
    elman_t job = {.walk = walk,
                   .hidden = hidden,
                   .inputs = inputs,
                   .activation = activation,
                   .bounds = bounds,
                   .packed = packed,
                   .bias = bias,
                   .gradient = gradient,
                   .x = x,
                   .initial = initial,
                   .states = (REAL *)states,
                   .deltas = deltas,
                   .sums = sums,
                   .d_initial = d_initial};
    if (ready) run_slices(elman_backward_slice, &job, slices);
    give_back(packed);
    sums_close(&sums, d_W, d_U, d_bias);
    return !ready || atomic_load(&job.failed);
}
