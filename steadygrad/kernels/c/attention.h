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
    int64_t shorts, longs, carried;
} memory_t;

/* Arguments of the forward pass. On entry `states` and `keys` contain the carried states and their keys after the rows
 * of the steps. received, scores, members, times and ages contain the carried values on entry and the final values on
 * return. cells, gates and initial_cells are null for an Elman unit. */
typedef struct {
    walk_t walk;
    int64_t hidden, inputs;
    memory_t memory;
    int64_t activation, exponentials; /* exponentials: keys and queries hold e^{2k} and e^{2q} */
    double factor;
    const REAL *x, *U, *bias, *W, *A, *B, *v, *initial, *initial_cells, *initial_macro;
    REAL *states, *cells, *gates, *macro, *keys, *queries, *weights;
    int64_t *kept;           /* rows × longs: rows of the states in R at each step, −1 for an empty place */
    REAL *received, *scores; /* batch × shorts, batch × longs */
    int64_t *members;        /* batch × longs: rows of the states in R */
    int64_t *times;          /* batch × longs: their time steps */
    int64_t *ages;           /* batch: number of states so far */
    int64_t slices;
} attention_forward_t;

/* Arguments of the backward pass. On entry d_states is the gradient of the output `states`; on return it includes the
 * effect of each state on all later steps. The caller sets d_keys, d_initial, d_initial_cells, d_initial_macro and d_v
 * (slices × hidden) to zero. `ages` has the values from before the forward pass. */
typedef struct {
    walk_t walk;
    int64_t hidden;
    memory_t memory;
    int64_t activation, exponentials;
    double factor;
    const REAL *W, *A, *B, *v, *initial_cells, *states, *cells, *gates, *keys, *queries, *weights;
    const int64_t *kept, *ages;
    const REAL *cell_gradient, *macro_gradient;
    REAL *d_states, *deltas, *d_keys, *d_queries, *d_initial, *d_initial_cells, *d_initial_macro, *d_v;
    int64_t slices;
} attention_backward_t;

/* With |q|, |k| ≤ LARGE the product e^{2q} e^{2k} does not overflow. */
#define LARGE (sizeof(REAL) == 4 ? (REAL)20 : (REAL)170)

/* The row of the state j steps before step t of sequence b, which has had `own` steps in this call. */
INLINE int64_t recent_row(const walk_t *walk, memory_t memory, int64_t t, int64_t b, int64_t own, int64_t j) {
    if (j <= own) return walk->offsets[walk->reverse ? t + j : t - j] + b;
    return walk->offsets[walk->steps] + b * (memory.carried + memory.longs) + memory.carried - (j - own);
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

/* The number of states in the memory of sequence b before step t: the steps since a reset that is at most `places` steps
 * ago. Without one it is `age`, or more than `places`, and then the number makes no difference. */
INLINE int64_t age_after_resets(const walk_t *walk, int64_t places, int64_t t, int64_t b, int64_t own, int64_t age) {
    if (!walk->resets) return age;
    for (int64_t j = 0; j <= at_most(own, places); j++)
        if (walk->resets[walk->offsets[t - j] + b]) return j;
    return age;
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

/* Replace x by e^{2x}. Returns TOO_LARGE if an |x| exceeds LARGE, otherwise 0. */
static int exp_2x(int64_t count, REAL *x) {
    vec limit = (vec){0} + LARGE;
    mask beyond = {0};
    EACH_VECTOR(j, left, count) {
        vec z = load_part(x + j, left);
        beyond |= (mask)(z > limit) | (mask)(z < -limit);
        store_part(x + j, vec_exp(z + z), left);
    }
    int code = 0;
    for (int k = 0; k < LANES; k++)
        if (beyond[k]) code = TOO_LARGE;
    return code;
}

/* a(s, m). With exponentials the constant Σ v is left out: it is the same for all m, so it does not change softmax. */
INLINE REAL logit(const attention_forward_t *given, const REAL *query, const REAL *key) {
    int64_t N = given->hidden;
    if (!given->v) return dot(query, key, N) / (REAL)sqrt((double)N);
    vec sum = {0};
    if (given->exponentials) {
        EACH_VECTOR(j, left, N)
            sum -= 2 * load_part(given->v + j, left) / (1 + load_part(query + j, left) * load_part(key + j, left));
    } else {
        EACH_VECTOR(j, left, N)
            sum += load_part(given->v + j, left) * vec_tanh(load_part(query + j, left) + load_part(key + j, left));
    }
    REAL total = 0;
    for (int k = 0; k < LANES; k++) total += sum[k];
    return total;
}

INLINE REAL scalar_exp(REAL x) { return sizeof(REAL) == 4 ? (REAL)expf((float)x) : (REAL)exp((double)x); }

/* Write the rows of the states in the memory to `items`: first S, the latest last, then R. Returns their number. */
INLINE int64_t items_of(const walk_t *walk, memory_t memory, int64_t t, int64_t b, int64_t own, int64_t age,
                        const int64_t *kept, int64_t *items) {
    int64_t recent = at_most(age, memory.shorts), distant = at_least(0, at_most(age - memory.shorts, memory.longs));
    for (int64_t i = 0; i < recent; i++) items[i] = recent_row(walk, memory, t, b, own, recent - i);
    for (int64_t i = 0; i < distant; i++) items[recent + i] = kept[i];
    return recent + distant;
}

/* Compute α of `count` > 0 states, given by their rows, and s = f · (before + Σ α_m m) of one sequence. */
static void attend_to(const attention_forward_t *given, int64_t count, const int64_t *items, const REAL *query,
                      const REAL *before, REAL *w, REAL *s) {
    int64_t N = given->hidden;
    REAL highest = -INFINITY, total = 0;
    for (int64_t i = 0; i < count; i++) {
        w[i] = logit(given, query, given->keys + items[i] * N);
        if (!(w[i] <= highest)) highest = w[i]; /* true for NaN, so NaN passes through */
    }
    for (int64_t i = 0; i < count; i++) total += w[i] = scalar_exp(w[i] - highest);
    for (int64_t i = 0; i < count; i++) w[i] /= total;
    EACH_VECTOR(j, left, N) {
        vec sum = load_part(before + j, left);
        for (int64_t i = 0; i < count; i++) sum += w[i] * load_part(given->states + items[i] * N + j, left);
        store_part(s + j, (REAL)given->factor * sum, left);
    }
}

/* Compute s and α of one row from the state before it. In α the places of S are filled from the end, those of R from
 * the beginning. */
static void attend(const attention_forward_t *given, int64_t t, int64_t b, int64_t own, int64_t age, int64_t row,
                   const REAL *before, int64_t *items) {
    int64_t N = given->hidden, shorts = given->memory.shorts, longs = given->memory.longs;
    REAL *weights = given->weights + row * (shorts + longs), *s = given->macro + row * N;
    const REAL *query = given->queries + row * N;
    int64_t *kept = given->kept + row * longs, *members = given->members + b * longs;
    memset(weights, 0, (size_t)(shorts + longs) * sizeof(REAL));
    for (int64_t r = 0; r < longs; r++) kept[r] = r < age - shorts ? members[r] : -1;
    int64_t count = items_of(&given->walk, given->memory, t, b, own, age, kept, items);
    if (!count) {
        memcpy(s, before, (size_t)N * sizeof(REAL));
        return;
    }
    attend_to(given, count, items, query, before, weights + at_least(0, shorts - age),
              s); /* taken places are together */
}

/* Update the memory after a step: add the attention that S received, and move the oldest state of S to R if its score
 * is high enough. */
static void update_memory(const attention_forward_t *given, int64_t t, int64_t b, int64_t own, int64_t row) {
    int64_t shorts = given->memory.shorts, longs = given->memory.longs;
    int64_t left = given->ages[b]++ - shorts; /* states that left S before */
    if (!longs) return;
    const REAL *weights = given->weights + row * (shorts + longs);
    REAL *received = given->received + b * shorts, *scores = given->scores + b * longs;
    for (int64_t j = 0; j < shorts; j++) received[j] += weights[j];
    if (left >= 0) {
        int64_t place = 0;
        if (left < longs) place = left;
        else
            for (int64_t r = 1; r < longs; r++)
                if (scores[r] < scores[place]) place = r;
        if (left < longs || received[0] > scores[place]) {
            scores[place] = received[0];
            given->members[b * longs + place] = recent_row(&given->walk, given->memory, t, b, own, shorts);
            given->times[b * longs + place] = left;
        }
    }
    memmove(received, received + 1, (size_t)(shorts - 1) * sizeof(REAL));
    received[shorts - 1] = 0;
}

/* Empty the memory of sequence b. */
static void empty_memory(const attention_forward_t *given, int64_t b) {
    int64_t shorts = given->memory.shorts, longs = given->memory.longs;
    given->ages[b] = 0;
    if (!longs) return;
    memset(given->received + b * shorts, 0, (size_t)shorts * sizeof(REAL));
    memset(given->scores + b * longs, 0, (size_t)longs * sizeof(REAL));
    memset(given->times + b * longs, 0, (size_t)longs * sizeof(int64_t));
}

static int attention_forward_slice(const void *arguments, part_t *part) {
    const attention_forward_t *given = arguments;
    int64_t N = given->hidden, I = given->inputs;
    int64_t *items = borrow((size_t)(given->memory.shorts + given->memory.longs) * sizeof(int64_t));
    int code = 0;
    if (!items) return NO_MEMORY;
    EACH_SPAN(span, &given->walk, part, 0) {
        if (code) break;
        int64_t here = span.here, rows = span.rows;
        REAL *room = part->room, *second = room ? room + rows * N : NULL, *third = room ? second + rows * N : NULL;
        const REAL *before = previous_rows(&span, given->initial, given->states, N, room);
        const REAL *macro_before = previous_rows(&span, given->initial_macro, given->macro, N, second);
        for (int64_t row = 0; row < rows; row++)
            if (begins_anew(&span, row)) empty_memory(given, span.from + row);
        REAL *h = given->states + here * N, *queries = given->queries + here * N, *keys = given->keys + here * N;
        product(rows, N, no_rows(), rows_of(macro_before, N), part->packed[QUERIES], queries, N, 0);
        if (given->exponentials) code |= exp_2x(rows * N, queries);
        for (int64_t row = 0; row < rows; row++) {
            int64_t b = span.from + row, own = span.starts ? 0 : steps_before(&given->walk, span.t, b);
            attend(given, span.t, b, own, given->ages[b], here + row, before + row * N, items);
        }
        left_t x = rows_of(given->x + here * I, I), macro = rows_of(given->macro + here * N, N);
        if (given->gates) {
            const REAL *c = previous_rows(&span, given->initial_cells, given->cells, N, third);
            REAL *gates = given->gates + here * 4 * N;
            product(rows, 4 * N, x, macro, part->packed[CELL], gates, 4 * N, 0);
            lstm_activate(rows, N, given->bias, gates, c, given->cells + here * N, h);
        } else {
            product(rows, N, x, macro, part->packed[CELL], h, N, 0);
            elman_activate_any(given->activation, rows, N, given->bias, h);
        }
        product(rows, N, no_rows(), rows_of(h, N), part->packed[KEYS], keys, N, 0);
        if (given->exponentials) code |= exp_2x(rows * N, keys);
        for (int64_t row = 0; row < rows; row++) {
            int64_t b = span.from + row, own = span.starts ? 0 : steps_before(&given->walk, span.t, b);
            update_memory(given, span.t, b, own, here + row);
        }
    }
    give_back(items);
    return code;
}

static int NAME(attention_forward)(const attention_forward_t *given) {
    int64_t N = given->hidden, carried = given->walk.batch * (given->memory.carried + given->memory.longs);
    REAL *keys = given->keys + given->walk.offsets[given->walk.steps] * N;
    int code = given->exponentials ? exp_2x(carried * N, keys) : 0;
    if (code) return code;
    setup_t setup = {3, {NULL}, {0}, 3 * N};
    setup.packed[CELL] = pack(given->gates ? 4 * N : N, transposed(given->U, given->inputs), transposed(given->W, N));
    setup.packed[QUERIES] = pack_one(N, transposed(given->A, N));
    setup.packed[KEYS] = pack_one(N, transposed(given->B, N));
    return run_walk(&given->walk, given->slices, attention_forward_slice, given, &setup);
}

/* Backward pass of the attention of one row: from the gradient ds of its s, add to the gradients of the states and keys
 * that it attended to, of the state before it (d_before, null if the row begins anew) and of v, and compute the gradient of its query. ds is
 * overwritten. */
static void attend_backward(const attention_backward_t *given, int64_t t, int64_t b, int64_t own, int64_t age,
                            int64_t row, REAL *ds, REAL *d_before, REAL *d_v, REAL *d_logits, int64_t *items) {
    int64_t N = given->hidden, shorts = given->memory.shorts, longs = given->memory.longs;
    const REAL *query = given->queries + row * N, sqrt_N = (REAL)sqrt((double)N);
    REAL *d_query = given->d_queries + row * N, mean = 0;
    int64_t count = items_of(&given->walk, given->memory, t, b, own, age, given->kept + row * longs, items);
    memset(d_query, 0, (size_t)N * sizeof(REAL));
    if (!count) {
        if (d_before) add_scaled(d_before, 1, ds, N);
        return;
    }
    EACH_VECTOR(j, left, N) store_part(ds + j, (REAL)given->factor * load_part(ds + j, left), left);
    add_scaled(d_before, 1, ds, N);
    const REAL *w = given->weights + row * (shorts + longs) + at_least(0, shorts - age);
    for (int64_t i = 0; i < count; i++) {
        d_logits[i] = dot(ds, given->states + items[i] * N, N);
        mean += w[i] * d_logits[i];
        add_scaled(given->d_states + items[i] * N, w[i], ds, N);
    }
    for (int64_t i = 0; i < count; i++) d_logits[i] = w[i] * (d_logits[i] - mean);
    if (!given->v) {
        for (int64_t i = 0; i < count; i++) {
            add_scaled(d_query, d_logits[i] / sqrt_N, given->keys + items[i] * N, N);
            add_scaled(given->d_keys + items[i] * N, d_logits[i] / sqrt_N, query, N);
        }
        return;
    }
    EACH_VECTOR(j, left, N) {
        vec q = load_part(query + j, left), v = load_part(given->v + j, left), dq = {0}, dv = {0};
        for (int64_t i = 0; i < count; i++) {
            vec key = load_part(given->keys + items[i] * N + j, left), y, slope;
            if (given->exponentials) {
                vec r = 1 / (1 + q * key);
                y = 1 - 2 * r, slope = 4 * r * (1 - r);
            } else {
                y = vec_tanh(q + key), slope = 1 - y * y;
            }
            vec dz = d_logits[i] * v * slope;
            REAL *d_key = given->d_keys + items[i] * N + j;
            dv += d_logits[i] * y;
            dq += dz;
            store_part(d_key, load_part(d_key, left) + dz, left);
        }
        store_part(d_query + j, dq, left);
        store_part(d_v + j, load_part(d_v + j, left) + dv, left);
    }
}

static int attention_backward_slice(const void *arguments, part_t *part) {
    const attention_backward_t *given = arguments;
    int64_t N = given->hidden, width = given->gates ? 4 * N : N, places = given->memory.shorts + given->memory.longs;
    REAL *d_macro = borrow_reals((part->last - part->first) * N), *d_logits = borrow_reals(places);
    REAL *d_v = given->d_v ? given->d_v + part->slice * N : NULL;
    int64_t *items = borrow((size_t)places * sizeof(int64_t));
    int ready = d_macro && d_logits && items;
    EACH_SPAN(span, &given->walk, part, 1) {
        if (!ready) break;
        int64_t here = span.here, rows = span.rows;
        REAL *dh = given->d_states + here * N, *deltas = given->deltas + here * width;
        /* all later steps are done, so the gradient of the state is complete once that of its key is added */
        product(rows, N, no_rows(), rows_of(given->d_keys + here * N, N), part->packed[KEYS], dh, N, 1);
        if (given->gates) {
            const REAL *c = previous_rows(&span, given->initial_cells, given->cells, N, part->room);
            const REAL *cell_gradient = given->cell_gradient ? given->cell_gradient + here * N : NULL;
            REAL *d_cells = given->d_initial_cells + span.from * N;
            lstm_activation_backward(rows, N, given->gates + here * 4 * N, given->cells + here * N, c, dh, NULL,
                                     cell_gradient, d_cells, deltas, NULL);
            stop_gradient(&span, d_cells, N);
        } else {
            const REAL *h = given->states + here * N;
            elman_activation_backward_any(given->activation, rows, N, NULL, h, dh, NULL, deltas, NULL);
        }
        /* the gradient of s_t has three parts: from the cell, from the query of the next step, which is in
         * d_initial_macro, and from the output s (macro_gradient) */
        REAL *carried = given->d_initial_macro + span.from * N;
        product(rows, N, no_rows(), rows_of(deltas, width), part->packed[CELL], carried, N, 1);
        memcpy(d_macro, carried, (size_t)(rows * N) * sizeof(REAL));
        if (given->macro_gradient) add_scaled(d_macro, 1, given->macro_gradient + here * N, rows * N);
        REAL *d_before = (span.starts ? given->d_initial : given->d_states) + span.before * N;
        for (int64_t row = 0; row < rows; row++) {
            int64_t b = span.from + row, own = span.starts ? 0 : steps_before(&given->walk, span.t, b);
            int64_t age = age_after_resets(&given->walk, places, span.t, b, own, given->ages[b] + own);
            attend_backward(given, span.t, b, own, age, here + row, d_macro + row * N,
                            begins_anew(&span, row) ? NULL : d_before + row * N, d_v, d_logits, items);
        }
        product(rows, N, no_rows(), rows_of(given->d_queries + here * N, N), part->packed[QUERIES], carried, N, 0);
    }
    give_back(d_macro);
    give_back(d_logits);
    give_back(items);
    return ready ? 0 : NO_MEMORY;
}

static int NAME(attention_backward)(const attention_backward_t *given) {
    int64_t N = given->hidden;
    setup_t setup = {3, {NULL}, {0}, N};
    setup.packed[CELL] = pack_one(N, plain(given->W, given->gates ? 4 * N : N, N));
    setup.packed[QUERIES] = pack_one(N, plain(given->A, N, N));
    setup.packed[KEYS] = pack_one(N, plain(given->B, N, N));
    return run_walk(&given->walk, given->slices, attention_backward_slice, given, &setup);
}
#undef LARGE
