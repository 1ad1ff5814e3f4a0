/* h_t = cell(x_t, s_t),  s_t = f · (h_{t−1} + Σ α_m m),  α = softmax over m ∈ S ∪ R of a(s_{t−1}, m)
 *
 * S holds the last `shorts` states. R holds up to `longs` of the states that left S: those that received most attention
 * while in S. The cell is an Elman unit or an LSTM with s_t in the place of h_{t−1}. `states` holds the states of all
 * steps, in the usual order of rows. After them it holds, for each sequence of the batch, the `carried` + `longs`
 * states that the call started with. So a row number identifies any state m, and its key and its gradient have the same
 * row number.
 *
 * a(s, m) = v · tanh(q + k) would need an exponential for every unit of every m at every step. But
 * e^{2(q + k)} = e^{2q} e^{2k}. So queries and keys are stored as exponentials, one for each unit of each state, and
 * tanh(q + k) = 1 − 2 / (1 + e^{2q} e^{2k}) costs only a division. If the modulus of a query or key exceeds `LARGE`,
 * attention_forward returns 2, and the caller repeats the call with `exponentials` = 0. */
typedef struct {
    walk_t walk;
    int64_t hidden, inputs, shorts, longs, carried;
    int activation, gated, exponentials; /* gated: an LSTM; exponentials: keys and queries hold e^{2k} and e^{2q} */
    REAL factor;
    const int64_t *bounds;
    const REAL *x, *bias, *v, *initial, *initial_cells, *initial_macro, *packed, *packed_queries, *packed_keys;
    REAL *states, *cells, *gates, *macro, *keys, *queries, *weights;
    int64_t *kept;                   /* rows × longs: rows of the states in R at each step, −1 for an empty place */
    REAL *received, *scores;         /* batch × shorts, batch × longs: current values */
    int64_t *members, *times, *ages; /* batch × longs: rows of the states in R; batch × longs: their time steps;
                                         batch: number of states so far */
    const REAL *cell_gradient, *macro_gradient;
    REAL *d_states, *deltas, *d_keys, *d_queries, *d_initial, *d_initial_cells, *d_initial_macro, *d_v;
    atomic_int failed, large;
} attention_t;

/* With |q|, |k| ≤ LARGE the product e^{2q} e^{2k} does not overflow. */
#define LARGE (sizeof(REAL) == 4 ? (REAL)20 : (REAL)170)

/* The row of the state j steps before step t of sequence b, which has had `own` steps in this call. */
INLINE int64_t recent_row(const attention_t *job, int64_t t, int64_t b, int64_t own, int64_t j) {
    if (j <= own) return job->walk.offsets[job->walk.reverse ? t + j : t - j] + b;
    return job->walk.offsets[job->walk.steps] + b * (job->carried + job->longs) + job->carried - (j - own);
}

/* The number of steps of sequence b in this call before step t. In reverse a binary search finds its last step;
 * sequences are sorted by decreasing length. */
INLINE int64_t steps_before(const walk_t *walk, int64_t t, int64_t b) {
    if (!walk->reverse) return t;
    int64_t last = walk->steps - 1; /* upper bound in the search for its last step, which is processed first */
    int64_t low = t;
    while (low < last) {
        int64_t middle = (low + last + 1) / 2;
        if (rows_at(walk, middle) > b) low = middle;
        else last = middle - 1;
    }
    return low - t;
}

INLINE REAL dot(const REAL *a, const REAL *b, int64_t N) {
    vec sum = {0};
    EACH_VECTOR(j, left, N) sum += load_part(a + j, left) * load_part(b + j, left);
    REAL total = 0;
    for (int k = 0; k < LANES; k++) total += sum[k];
    return total;
}

/* to += scale · from */
INLINE void add_scaled(REAL *to, REAL scale, const REAL *from, int64_t N) {
    EACH_VECTOR(j, left, N) store_part(to + j, load_part(to + j, left) + scale * load_part(from + j, left), left);
}

/* Replace x by e^{2x}, and set job->large if an |x| exceeds LARGE. */
static void exp_2x(attention_t *job, int64_t count, REAL *x) {
    vec limit = (vec){0} + LARGE;
    mask beyond = {0};
    EACH_VECTOR(j, left, count) {
        vec z = load_part(x + j, left);
        beyond |= (mask)(z > limit) | (mask)(z < -limit);
        store_part(x + j, vec_exp(z + z), left);
    }
    for (int k = 0; k < LANES; k++)
        if (beyond[k]) atomic_store(&job->large, 1);
}

/* a(s, m). With exponentials the constant Σ v is left out: it is the same for all m, so it does not change softmax. */
INLINE REAL logit(const attention_t *job, const REAL *query, const REAL *key) {
    int64_t N = job->hidden;
    if (!job->v) return dot(query, key, N) / (REAL)sqrt((double)N);
    vec sum = {0};
    if (job->exponentials) {
        EACH_VECTOR(j, left, N)
            sum -= 2 * load_part(job->v + j, left) / (1 + load_part(query + j, left) * load_part(key + j, left));
    } else {
        EACH_VECTOR(j, left, N)
            sum += load_part(job->v + j, left) * vec_tanh(load_part(query + j, left) + load_part(key + j, left));
    }
    REAL total = 0;
    for (int k = 0; k < LANES; k++) total += sum[k];
    return total;
}

INLINE REAL scalar_exp(REAL x) { return sizeof(REAL) == 4 ? (REAL)expf((float)x) : (REAL)exp((double)x); }

/* Write the rows of the states in the memory to `items`: first S, the latest last, then R. Returns their number. */
INLINE int64_t items_of(const attention_t *job, int64_t t, int64_t b, int64_t own, int64_t age, const int64_t *kept,
                        int64_t *items) {
    int64_t recent = at_most(age, job->shorts), distant = at_least(0, at_most(age - job->shorts, job->longs));
    for (int64_t i = 0; i < recent; i++) items[i] = recent_row(job, t, b, own, recent - i);
    for (int64_t i = 0; i < distant; i++) items[recent + i] = kept[i];
    return recent + distant;
}

/* Compute s and α of one row from the state before it. In α the places of S are filled from the end, those of R from
 * the beginning. */
static void attend(const attention_t *job, int64_t t, int64_t b, int64_t own, int64_t age, int64_t row,
                   const REAL *before, int64_t *items) {
    int64_t N = job->hidden, shorts = job->shorts, longs = job->longs;
    REAL *weights = job->weights + row * (shorts + longs), *s = job->macro + row * N;
    const REAL *query = job->queries + row * N;
    int64_t *kept = job->kept + row * longs, *members = job->members + b * longs;
    memset(weights, 0, (size_t)(shorts + longs) * sizeof(REAL));
    for (int64_t r = 0; r < longs; r++) kept[r] = r < age - shorts ? members[r] : -1;
    int64_t count = items_of(job, t, b, own, age, kept, items);
    if (!count) {
        memcpy(s, before, (size_t)N * sizeof(REAL));
        return;
    }
    REAL highest = -INFINITY, total = 0, *w = weights + at_least(0, shorts - age); /* the taken places are contiguous */
    for (int64_t i = 0; i < count; i++) {
        w[i] = logit(job, query, job->keys + items[i] * N);
        if (!(w[i] <= highest)) highest = w[i]; /* true for NaN, so NaN passes through */
    }
    for (int64_t i = 0; i < count; i++) total += w[i] = scalar_exp(w[i] - highest);
    for (int64_t i = 0; i < count; i++) w[i] /= total;
    EACH_VECTOR(j, left, N) {
        vec sum = load_part(before + j, left);
        for (int64_t i = 0; i < count; i++) sum += w[i] * load_part(job->states + items[i] * N + j, left);
        store_part(s + j, job->factor * sum, left);
    }
}

/* Update the memory after a step: add the attention that S received, and move the oldest state of S to R if its score
 * is high enough. */
static void update_memory(const attention_t *job, int64_t t, int64_t b, int64_t own, int64_t row) {
    int64_t shorts = job->shorts, longs = job->longs, left = job->ages[b]++ - shorts; /* states that left S before */
    if (!longs) return;
    const REAL *weights = job->weights + row * (shorts + longs);
    REAL *received = job->received + b * shorts, *scores = job->scores + b * longs;
    for (int64_t j = 0; j < shorts; j++) received[j] += weights[j];
    if (left >= 0) {
        int64_t place = 0;
        if (left < longs) place = left;
        else
            for (int64_t r = 1; r < longs; r++)
                if (scores[r] < scores[place]) place = r;
        if (left < longs || received[0] > scores[place]) {
            scores[place] = received[0];
            job->members[b * longs + place] = recent_row(job, t, b, own, shorts);
            job->times[b * longs + place] = left;
        }
    }
    memmove(received, received + 1, (size_t)(shorts - 1) * sizeof(REAL));
    received[shorts - 1] = 0;
}

static void attention_forward_slice(void *argument, int slice) {
    attention_t *job = argument;
    int64_t N = job->hidden, I = job->inputs, first = job->bounds[slice], last = job->bounds[slice + 1];
    left_t none = {0, NULL, 0};
    int64_t *items = borrow((size_t)(job->shorts + job->longs) * sizeof(int64_t));
    span_t spans[2];
    if (!items) atomic_store(&job->failed, 1);
    for (int64_t s = 0; s < job->walk.steps && items && !atomic_load(&job->large); s++) {
        int count = spans_of(&job->walk, s, first, last, spans);
        for (int i = 0; i < count; i++) {
            span_t span = spans[i];
            int64_t here = job->walk.offsets[span.t] + span.from, rows = span.to - span.from;
            int64_t past = span.previous < 0 ? span.from : job->walk.offsets[span.previous] + span.from;
            const REAL *before = (span.previous < 0 ? job->initial : job->states) + past * N;
            const REAL *asking = (span.previous < 0 ? job->initial_macro : job->macro) + past * N;
            REAL *h = job->states + here * N, *macro = job->macro + here * N;
            product(rows, N, none, (left_t){N, asking, N}, job->packed_queries, job->queries + here * N, N, 0);
            if (job->exponentials) exp_2x(job, rows * N, job->queries + here * N);
            for (int64_t row = 0; row < rows; row++) {
                int64_t b = span.from + row, own = span.previous < 0 ? 0 : steps_before(&job->walk, span.t, b);
                attend(job, span.t, b, own, job->ages[b], here + row, before + row * N, items);
            }
            left_t x = {I, job->x + here * I, I}, from = {N, macro, N};
            if (job->gated) {
                const REAL *c = (span.previous < 0 ? job->initial_cells : job->cells) + past * N;
                REAL *gates = job->gates + here * 4 * N;
                product(rows, 4 * N, x, from, job->packed, gates, 4 * N, 0);
                lstm_activate(rows, N, job->bias, gates, c, job->cells + here * N, h);
            } else {
                product(rows, N, x, from, job->packed, h, N, 0);
                elman_activate_any(job->activation, rows, N, job->bias, h);
            }
            product(rows, N, none, (left_t){N, h, N}, job->packed_keys, job->keys + here * N, N, 0);
            if (job->exponentials) exp_2x(job, rows * N, job->keys + here * N);
            for (int64_t row = 0; row < rows; row++) {
                int64_t b = span.from + row, own = span.previous < 0 ? 0 : steps_before(&job->walk, span.t, b);
                update_memory(job, span.t, b, own, here + row);
            }
        }
    }
    give_back(items);
}

/* On entry `states` and `keys` contain the carried states and their keys after the rows of the steps. received, scores,
 * members, times and ages contain the carried values on entry and the final values on return. cells, gates and
 * initial_cells are null for an Elman unit. Returns 2 if a query or key is too large for `exponentials`. */
static int NAME(attention_forward)(walk_t walk, int64_t hidden, int64_t inputs, int64_t shorts, int64_t longs,
                                   int64_t carried, int activation, int exponentials, double factor, const REAL *x,
                                   const REAL *U, const REAL *bias, const REAL *W, const REAL *A, const REAL *B,
                                   const REAL *v, const REAL *initial, const REAL *initial_cells,
                                   const REAL *initial_macro, REAL *states, REAL *cells, REAL *gates, REAL *macro,
                                   REAL *keys, REAL *queries, REAL *weights, int64_t *kept, REAL *received,
                                   REAL *scores, int64_t *members, int64_t *times, int64_t *ages, int slices) {
    int64_t bounds[slices + 1], width = gates ? 4 * hidden : hidden;
    balance(&walk, slices, bounds);
    source_t nothing = plain(NULL, 0, 0);
    REAL *packed = pack(width, transposed(U, inputs), transposed(W, hidden));
    REAL *packed_queries = pack(hidden, nothing, transposed(A, hidden));
    REAL *packed_keys = pack(hidden, nothing, transposed(B, hidden));
    int ready = packed && packed_queries && packed_keys;
    attention_t job = {.walk = walk,
                       .hidden = hidden,
                       .inputs = inputs,
                       .shorts = shorts,
                       .longs = longs,
                       .carried = carried,
                       .activation = activation,
                       .gated = gates != NULL,
                       .exponentials = exponentials,
                       .factor = (REAL)factor,
                       .bounds = bounds,
                       .x = x,
                       .bias = bias,
                       .v = v,
                       .initial = initial,
                       .initial_cells = initial_cells,
                       .initial_macro = initial_macro,
                       .packed = packed,
                       .packed_queries = packed_queries,
                       .packed_keys = packed_keys,
                       .states = states,
                       .cells = cells,
                       .gates = gates,
                       .macro = macro,
                       .keys = keys,
                       .queries = queries,
                       .weights = weights,
                       .kept = kept,
                       .received = received,
                       .scores = scores,
                       .members = members,
                       .times = times,
                       .ages = ages};
    if (ready && exponentials)
        exp_2x(&job, walk.batch * (carried + longs) * hidden, keys + walk.offsets[walk.steps] * hidden);
    if (ready) run_slices(attention_forward_slice, &job, slices);
    give_back(packed);
    give_back(packed_queries);
    give_back(packed_keys);
    return !ready || atomic_load(&job.failed) ? 1 : atomic_load(&job.large) ? 2 : 0;
}

/* Backward pass of the attention of one row: from the gradient ds of its s, add to the gradients of the states and keys
 * that it attended to, of the state before it (d_before) and of v, and compute the gradient of its query. ds is
 * overwritten. */
static void attend_backward(const attention_t *job, int64_t t, int64_t b, int64_t own, int64_t age, int64_t row,
                            REAL *ds, REAL *d_before, REAL *d_v, REAL *d_logits, int64_t *items) {
    int64_t N = job->hidden, shorts = job->shorts, longs = job->longs;
    const REAL *query = job->queries + row * N, sqrt_N = (REAL)sqrt((double)N);
    REAL *d_query = job->d_queries + row * N, mean = 0;
    int64_t count = items_of(job, t, b, own, age, job->kept + row * longs, items);
    memset(d_query, 0, (size_t)N * sizeof(REAL));
    if (!count) {
        add_scaled(d_before, 1, ds, N);
        return;
    }
    EACH_VECTOR(j, left, N) store_part(ds + j, job->factor * load_part(ds + j, left), left);
    add_scaled(d_before, 1, ds, N);
    const REAL *w = job->weights + row * (shorts + longs) + at_least(0, shorts - age);
    for (int64_t i = 0; i < count; i++) {
        d_logits[i] = dot(ds, job->states + items[i] * N, N);
        mean += w[i] * d_logits[i];
        add_scaled(job->d_states + items[i] * N, w[i], ds, N);
    }
    for (int64_t i = 0; i < count; i++) d_logits[i] = w[i] * (d_logits[i] - mean);
    if (!job->v) {
        for (int64_t i = 0; i < count; i++) {
            add_scaled(d_query, d_logits[i] / sqrt_N, job->keys + items[i] * N, N);
            add_scaled(job->d_keys + items[i] * N, d_logits[i] / sqrt_N, query, N);
        }
        return;
    }
    EACH_VECTOR(j, left, N) {
        vec q = load_part(query + j, left), v = load_part(job->v + j, left), dq = {0}, dv = {0};
        for (int64_t i = 0; i < count; i++) {
            vec key = load_part(job->keys + items[i] * N + j, left), y, slope;
            if (job->exponentials) {
                vec r = 1 / (1 + q * key);
                y = 1 - 2 * r, slope = 4 * r * (1 - r);
            } else {
                y = vec_tanh(q + key), slope = 1 - y * y;
            }
            vec dz = d_logits[i] * v * slope;
            REAL *d_key = job->d_keys + items[i] * N + j;
            dv += d_logits[i] * y;
            dq += dz;
            store_part(d_key, load_part(d_key, left) + dz, left);
        }
        store_part(d_query + j, dq, left);
        store_part(d_v + j, load_part(d_v + j, left) + dv, left);
    }
}

static void attention_backward_slice(void *argument, int slice) {
    attention_t *job = argument;
    int64_t N = job->hidden, first = job->bounds[slice], last = job->bounds[slice + 1], width = job->gated ? 4 * N : N;
    left_t none = {0, NULL, 0};
    REAL *d_macro = borrow_reals(at_least(1, last - first) * N), *d_v = job->d_v ? job->d_v + slice * N : NULL;
    REAL *d_logits = borrow_reals(job->shorts + job->longs);
    int64_t *items = borrow((size_t)(job->shorts + job->longs) * sizeof(int64_t));
    span_t spans[2];
    int ready = d_macro && d_logits && items;
    if (!ready) atomic_store(&job->failed, 1);
    for (int64_t s = job->walk.steps - 1; s >= 0 && ready; s--) {
        int count = spans_of(&job->walk, s, first, last, spans);
        for (int i = 0; i < count; i++) {
            span_t span = spans[i];
            int64_t here = job->walk.offsets[span.t] + span.from, rows = span.to - span.from;
            int64_t past = span.previous < 0 ? span.from : job->walk.offsets[span.previous] + span.from;
            REAL *dh = job->d_states + here * N, *deltas = job->deltas + here * width;
            /* all later steps are done, so the gradient of the state is complete once that of its key is added */
            product(rows, N, none, (left_t){N, job->d_keys + here * N, N}, job->packed_keys, dh, N, 1);
            if (job->gated) {
                const REAL *c = (span.previous < 0 ? job->initial_cells : job->cells) + past * N;
                const REAL *cell_gradient = job->cell_gradient ? job->cell_gradient + here * N : NULL;
                lstm_activation_backward(rows, N, job->gates + here * 4 * N, job->cells + here * N, c, dh, NULL,
                                         cell_gradient, job->d_initial_cells + span.from * N, deltas, NULL);
            } else {
                elman_activation_backward_any(job->activation, rows, N, NULL, job->states + here * N, dh, NULL, deltas,
                                              NULL);
            }
            /* the gradient of s_t has three parts: from the cell, from the query of the next step, which is in
             * d_initial_macro, and from the output s (macro_gradient) */
            REAL *carried = job->d_initial_macro + span.from * N;
            product(rows, N, none, (left_t){width, deltas, width}, job->packed, carried, N, 1);
            memcpy(d_macro, carried, (size_t)(rows * N) * sizeof(REAL));
            if (job->macro_gradient) add_scaled(d_macro, 1, job->macro_gradient + here * N, rows * N);
            REAL *d_before = (span.previous < 0 ? job->d_initial : job->d_states) + past * N;
            for (int64_t row = 0; row < rows; row++) {
                int64_t b = span.from + row, own = span.previous < 0 ? 0 : steps_before(&job->walk, span.t, b);
                attend_backward(job, span.t, b, own, job->ages[b] + own, here + row, d_macro + row * N,
                                d_before + row * N, d_v, d_logits, items);
            }
            product(rows, N, none, (left_t){N, job->d_queries + here * N, N}, job->packed_queries, carried, N, 0);
        }
    }
    give_back(d_macro);
    give_back(d_logits);
    give_back(items);
}

/* On entry d_states is the gradient of the output `states`; on return it includes the effect of each state on all later
 * steps. The caller sets d_keys, d_initial, d_initial_cells, d_initial_macro and d_v (slices × hidden) to zero. `ages`
 * has the values from before the forward pass. */
static int NAME(attention_backward)(walk_t walk, int64_t hidden, int64_t shorts, int64_t longs, int64_t carried,
                                    int activation, int exponentials, double factor, const REAL *W, const REAL *A,
                                    const REAL *B, const REAL *v, const REAL *initial_cells, const REAL *states,
                                    const REAL *cells, const REAL *gates, const REAL *keys, const REAL *queries,
                                    const REAL *weights, const int64_t *kept, const int64_t *ages,
                                    const REAL *cell_gradient, const REAL *macro_gradient, REAL *d_states, REAL *deltas,
                                    REAL *d_keys, REAL *d_queries, REAL *d_initial, REAL *d_initial_cells,
                                    REAL *d_initial_macro, REAL *d_v, int slices) {
    int64_t bounds[slices + 1], width = gates ? 4 * hidden : hidden;
    balance(&walk, slices, bounds);
    source_t nothing = plain(NULL, 0, 0);
    REAL *packed = pack(hidden, nothing, plain(W, width, hidden));
    REAL *packed_queries = pack(hidden, nothing, plain(A, hidden, hidden));
    REAL *packed_keys = pack(hidden, nothing, plain(B, hidden, hidden));
    int ready = packed && packed_queries && packed_keys;
    attention_t job = {.walk = walk,
                       .hidden = hidden,
                       .shorts = shorts,
                       .longs = longs,
                       .carried = carried,
                       .activation = activation,
                       .gated = gates != NULL,
                       .exponentials = exponentials,
                       .factor = (REAL)factor,
                       .bounds = bounds,
                       .v = v,
                       .initial_cells = initial_cells,
                       .packed = packed,
                       .packed_queries = packed_queries,
                       .packed_keys = packed_keys,
                       .states = (REAL *)states,
                       .cells = (REAL *)cells,
                       .gates = (REAL *)gates,
                       .keys = (REAL *)keys,
                       .queries = (REAL *)queries,
                       .weights = (REAL *)weights,
                       .kept = (int64_t *)kept,
                       .ages = (int64_t *)ages,
                       .cell_gradient = cell_gradient,
                       .macro_gradient = macro_gradient,
                       .d_states = d_states,
                       .deltas = deltas,
                       .d_keys = d_keys,
                       .d_queries = d_queries,
                       .d_initial = d_initial,
                       .d_initial_cells = d_initial_cells,
                       .d_initial_macro = d_initial_macro,
                       .d_v = d_v};
    if (ready) run_slices(attention_backward_slice, &job, slices);
    give_back(packed);
    give_back(packed_queries);
    give_back(packed_keys);
    return !ready || atomic_load(&job.failed);
}
#undef LARGE
