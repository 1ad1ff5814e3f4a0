/* h_t = φ(U x_t + bias + W h_{t−1}) */
typedef struct {
    walk_t walk;
    int64_t hidden, inputs;
    int activation;
    const int64_t *bounds;
    const REAL *x, *bias, *initial, *packed, *gradient;
    REAL *states, *deltas, *d_initial;
    NAME(sums_t) sums;
    atomic_int failed;
} NAME(elman_t);

/* Apply φ to rows of h in place. After inlining `activation` is a constant, here and below: the loop has no switch. */
INLINE void NAME(elman_activate)(const int activation, int64_t rows, int64_t N, const REAL *bias, REAL *h) {
    for (int64_t r = 0; r < rows; r++, h += N) EACH_VECTOR(j, left, N) {
        vec z = NAME(load_part)(h + j, left), b = {0};
        if (bias) b = NAME(load_part)(bias + j, left);
        if (activation != MODRELU) z += b;
        NAME(store_part)(h + j, NAME(activate)(activation, z, b), left);
    }
}

/* Compute delta = φ'(h) ∘ (gradient + carried) on rows, and add its part of the bias gradient to d_bias. `carried` and
 * d_bias may be null. */
INLINE void NAME(elman_deactivate)(const int activation, int64_t rows, int64_t N, const REAL *h, const REAL *gradient,
                                   const REAL *carried, REAL *delta, REAL *d_bias) {
    EACH_VECTOR(j, left, N) {
        vec sum = {0};
        for (int64_t k = j; k < j + rows * N; k += N) {
            vec y = NAME(load_part)(h + k, left);
            vec d = NAME(load_part)(gradient + k, left);
            if (carried) d += NAME(load_part)(carried + k, left);
            d = NAME(deactivate)(activation, y, d);
            NAME(store_part)(delta + k, d, left);
            sum += NAME(bias_part)(activation, y, d);
        }
        if (d_bias) NAME(store_part)(d_bias + j, NAME(load_part)(d_bias + j, left) + sum, left);
    }
}

/* Complex units: z → (|z| + b) z/|z|, or 0 where |z| + b ≤ 0.
 * The first half of a row holds the real parts, the second half the imaginary parts; there are N/2 biases. */
INLINE void NAME(complex_activate)(int64_t rows, int64_t N, const REAL *bias, REAL *h) {
    int64_t half = N / 2;
    vec zero = {0};
    for (int64_t r = 0; r < rows; r++, h += N) EACH_VECTOR(j, left, half) {
        vec re = NAME(load_part)(h + j, left), im = NAME(load_part)(h + half + j, left), b = zero;
        if (bias) b = NAME(load_part)(bias + j, left);
        vec size = NAME(root)(re * re + im * im), scale = (size + b) / size;
        scale = NAME(select)((mask)(size + b <= zero) | (mask)(size == zero), zero, scale);
        NAME(store_part)(h + j, re * scale, left);
        NAME(store_part)(h + half + j, im * scale, left);
    }
}

/* With u = y/|y| and |z| = |y| − b: the part of the gradient along u is unchanged, the part orthogonal to u is
 * multiplied by |y|/|z|. */
INLINE void NAME(complex_deactivate)(int64_t rows, int64_t N, const REAL *bias, const REAL *h, const REAL *gradient,
                                     const REAL *carried, REAL *delta, REAL *d_bias) {
    int64_t half = N / 2;
    vec zero = {0};
    EACH_VECTOR(j, left, half) {
        vec b = zero, sum = zero;
        if (bias) b = NAME(load_part)(bias + j, left);
        for (int64_t k = j; k < j + rows * N; k += N) {
            vec re = NAME(load_part)(h + k, left), im = NAME(load_part)(h + k + half, left);
            vec d_re = NAME(load_part)(gradient + k, left), d_im = NAME(load_part)(gradient + k + half, left);
            if (carried) d_re += NAME(load_part)(carried + k, left), d_im += NAME(load_part)(carried + k + half, left);
            vec size = NAME(root)(re * re + im * im);
            mask silent = (mask)(size == zero);
            vec before = size - b, least = size * (sizeof(REAL) == 4 ? (REAL)1.1920929e-7 : (REAL)2.220446049250313e-16);
            before = NAME(select)((mask)(before < least), least, before); /* |z| > 0, but rounding may give ≤ 0 */
            vec along = (re * d_re + im * d_im) / size, scale = size / before;
            along = NAME(select)(silent, zero, along);
            scale = NAME(select)(silent, zero, scale);
            vec rest = NAME(select)(silent, zero, along * (1 - scale) / size);
            NAME(store_part)(delta + k, scale * d_re + rest * re, left);
            NAME(store_part)(delta + k + half, scale * d_im + rest * im, left);
            sum += along;
        }
        if (d_bias) NAME(store_part)(d_bias + j, NAME(load_part)(d_bias + j, left) + sum, left);
    }
}

#define FOR_ACTIVATION(activation, call, ...)             \
    switch (activation) {                                 \
        case MODRELU: NAME(call)(MODRELU, __VA_ARGS__); break; \
        case TANH: NAME(call)(TANH, __VA_ARGS__); break;  \
        case RELU: NAME(call)(RELU, __VA_ARGS__); break;  \
        default: NAME(call)(IDENTITY, __VA_ARGS__);       \
    }

static void NAME(elman_activate_any)(int activation, int64_t rows, int64_t N, const REAL *bias, REAL *h) {
    if (activation == IDENTITY && !bias) return;
    if (activation == COMPLEX_MODRELU) NAME(complex_activate)(rows, N, bias, h);
    else FOR_ACTIVATION(activation, elman_activate, rows, N, bias, h)
}

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
            NAME(elman_activate_any)(job->activation, rows, N, job->bias, h);
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

static void NAME(elman_deactivate_any)(int activation, int64_t rows, int64_t N, const REAL *bias, const REAL *h,
                                       const REAL *gradient, const REAL *carried, REAL *delta, REAL *d_bias) {
    if (activation == COMPLEX_MODRELU) NAME(complex_deactivate)(rows, N, bias, h, gradient, carried, delta, d_bias);
    else FOR_ACTIVATION(activation, elman_deactivate, rows, N, h, gradient, carried, delta, d_bias)
}
#undef FOR_ACTIVATION

/* Backward pass, in reverse order of the steps: delta_t = φ'(h_t) ∘ (gradient_t + carried),  carried ← delta_t W.
 * d_initial stores `carried`: it is zero at the start and the gradient of h_0 at the end. */
static void NAME(elman_backward_slice)(void *argument, int slice) {
    NAME(elman_t) *job = argument;
    int64_t N = job->hidden, I = job->inputs, first = job->bounds[slice], last = job->bounds[slice + 1];
    REAL *d_bias = job->sums.biases ? NAME(sums_bias)(&job->sums, slice) : NULL;
    NAME(outer_t) outer;
    if (!NAME(outer_open)(&outer, &job->sums, slice, last - first, 0)) {
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
            NAME(elman_deactivate_any)(job->activation, rows, N, job->bias, job->states + here * N, job->gradient + here * N,
                                       carried, deltas, d_bias);
            if (job->deltas) memcpy(job->deltas + here * N, deltas, (size_t)(rows * N) * sizeof(REAL));
            NAME(product)(rows, N, (NAME(left_t)){0, NULL, 0}, (NAME(left_t)){N, deltas, N}, job->packed, carried, N, 0);
        }
    }
    NAME(outer_flush)(&outer);
    NAME(outer_close)(&outer);
}

/* The caller sets d_initial to zero. `deltas` (the gradients before the activation), d_bias and bias may be null. Only
 * complex modReLU uses the bias. */
static int NAME(elman_backward)(walk_t walk, int64_t hidden, int64_t inputs, int activation, const REAL *gradient,
                                const REAL *x, const REAL *states, const REAL *bias, const REAL *W, const REAL *initial, REAL *deltas,
                                REAL *d_W, REAL *d_U, REAL *d_bias, REAL *d_initial, int slices) {
    int64_t bounds[slices + 1];
    balance(&walk, slices, bounds);
    int64_t biases = activation == COMPLEX_MODRELU ? hidden / 2 : hidden;
    NAME(sums_t) sums = {hidden, hidden, inputs, d_bias ? biases : 0, slices, NULL};
    REAL *packed = NAME(pack)(hidden, NAME(plain)(NULL, 0, 0), NAME(plain)(W, hidden, hidden));
    int ready = NAME(sums_open)(&sums) && packed;
    NAME(elman_t) job = {.walk = walk, .hidden = hidden, .inputs = inputs, .activation = activation, .bounds = bounds,
                         .packed = packed, .bias = bias, .gradient = gradient, .x = x, .initial = initial, .states = (REAL *)states,
                         .deltas = deltas, .sums = sums, .d_initial = d_initial};
    if (ready) run_slices(NAME(elman_backward_slice), &job, slices);
    give_back(packed);
    NAME(sums_close)(&sums, d_W, d_U, d_bias);
    return !ready || atomic_load(&job.failed);
}
