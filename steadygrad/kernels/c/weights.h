/* Gradients of the weights and biases of a walk.
 *
 * Each slice computes its own sums: `width` × (hidden + inputs) numbers for the weights, then `biases` numbers for the
 * biases. sums_close adds those of all slices into d_hidden (width × hidden), d_input (width × inputs) and d_bias
 * (biases). */
typedef struct {
    int64_t width, hidden, inputs, biases; /* width: of a δ, so 1, 3 or 4 times hidden */
    REAL *d_hidden, *d_input, *d_bias;
    enum reset reset;
    int64_t slices;
    REAL *data;
} sums_t;

static REAL *borrow_reals(int64_t count) { return borrow((size_t)count * sizeof(REAL)); }

INLINE int64_t sums_weights(const sums_t *sums) { return sums->width * (sums->hidden + sums->inputs); }
INLINE int64_t sums_size(const sums_t *sums) { return sums_weights(sums) + sums->biases; }

static int sums_open(sums_t *sums, int64_t slices) {
    sums->slices = slices;
    sums->data = borrow_reals(sums_size(sums) * slices);
    return sums->data != NULL;
}

/* The weight gradient of one slice, followed by its bias gradient; sums_clear sets both to zero. */
static REAL *sums_weight(const sums_t *sums, int slice) { return sums->data + slice * sums_size(sums); }
static REAL *sums_bias(const sums_t *sums, int slice) { return sums_weight(sums, slice) + sums_weights(sums); }
static void sums_clear(const sums_t *sums, int slice) {
    memset(sums_weight(sums, slice), 0, (size_t)sums_size(sums) * sizeof(REAL));
}

INLINE void sum_slices(REAL *to, const REAL *from, int64_t apart, int64_t slices, int64_t count) {
    for (int64_t k = 0; k < count; k++) {
        REAL sum = from[k];
        for (int64_t slice = 1; slice < slices; slice++) sum += from[slice * apart + k];
        to[k] = sum;
    }
}

/* Add the sums of all slices, and free their memory. */
static void sums_close(const sums_t *sums) {
    int64_t N = sums->hidden, I = sums->inputs, apart = sums_size(sums);
    const REAL *row = sums->data;
    for (int64_t r = 0; r < sums->width; r++, row += N + I) {
        sum_slices(sums->d_hidden + r * N, row, apart, sums->slices, N);
        sum_slices(sums->d_input + r * I, row + N, apart, sums->slices, I);
    }
    if (sums->biases) sum_slices(sums->d_bias, row, apart, sums->slices, sums->biases);
    give_back(sums->data);
}

/* The weight gradient of a walk, Σ δ ⊗ [h_before | x], computed while δ and h are still in cache. The walk writes its δ
 * to `deltas`. Whenever `deltas` is full, it is multiplied with the corresponding states and inputs. The last third of
 * a GRU's δ belongs to the candidate, whose gradient depends on the reset: it is δ ⊗ r∘h if the reset acts before the
 * product and r∘δ ⊗ h if it acts after. The walk writes r∘h or r∘δ to `resets`. */
typedef struct {
    int64_t rows;
    const REAL *states, *inputs;
} chunk_t;

typedef struct {
    const sums_t *sums;
    int64_t room, filled, chunks;
    REAL *deltas, *resets, *panel, *total; /* total: width × (hidden + inputs) */
    REAL *before;                          /* previous states of spans in which rows begin anew; null without resets */
    chunk_t *chunk;
} outer_t;

static int outer_open(outer_t *outer, const sums_t *sums, int slice, int64_t most_rows, int with_resets) {
    int64_t room = at_least(DEPTH, most_rows);
    sums_clear(sums, slice);
    *outer = (outer_t){.sums = sums, .room = room, .total = sums_weight(sums, slice)};
    outer->deltas = borrow_reals(room * sums->width);
    outer->resets = sums->reset ? borrow_reals(room * sums->hidden) : NULL;
    outer->before = with_resets ? borrow_reals(room * sums->hidden) : NULL;
    outer->panel = borrow_reals(room * PANEL);
    outer->chunk = borrow((size_t)room * sizeof(chunk_t));
    int ready = outer->deltas && outer->panel && outer->chunk;
    return ready && (outer->resets || !sums->reset) && (outer->before || !with_resets);
}

static void outer_close(outer_t *outer) {
    give_back(outer->deltas);
    give_back(outer->resets);
    give_back(outer->before);
    give_back(outer->panel);
    give_back(outer->chunk);
}

/* Add δᵀ [states | inputs] to `total`, from row `first` on and in columns begin … end − 1. The states are those in
 * `resets` if it is not null, otherwise those of the chunks. */
static void outer_add(outer_t *outer, left_t deltas, int64_t first, int64_t begin, int64_t end, const REAL *resets) {
    int64_t N = outer->sums->hidden, I = outer->sums->inputs;
    gemm_t job = {.rows = deltas.depth,
                  .columns = end,
                  .depth = outer->filled,
                  .alpha = 1,
                  .a = deltas.data,
                  .a_row = 1,
                  .a_k = deltas.stride,
                  .c = outer->total + first * (N + I),
                  .c_row = N + I,
                  .accumulate = 1};
    for (int64_t column = begin; column < end; column += PANEL) {
        int64_t width = at_most(PANEL, end - column), of_states = at_most(width, at_least(0, N - column)), done = 0;
        REAL *to = outer->panel;
        if (width < PANEL) memset(to, 0, (size_t)(outer->filled * PANEL) * sizeof(REAL));
        for (int64_t c = 0; c < outer->chunks; c++) {
            chunk_t chunk = outer->chunk[c];
            const REAL *states = resets ? resets + done * N : chunk.states;
            done += chunk.rows;
            if (of_states == PANEL) {
                pack_panel(to, chunk.rows, PANEL, states + column, N, 1);
                to += chunk.rows * PANEL;
                continue;
            }
            for (int64_t k = 0; k < chunk.rows; k++, to += PANEL) {
                for (int64_t j = 0; j < of_states; j++) to[j] = states[k * N + column + j];
                for (int64_t j = of_states; j < width; j++) to[j] = chunk.inputs[k * I + column + j - N];
            }
        }
        gemm_rows(&job, 0, deltas.depth, 0, outer->filled, outer->panel, column);
    }
}

static void outer_flush(outer_t *outer) {
    const sums_t *sums = outer->sums;
    int64_t N = sums->hidden, all = N + sums->inputs, ordinary = sums->reset ? sums->width - N : sums->width;
    left_t gates = {ordinary, outer->deltas, sums->width}, candidate = {N, outer->deltas + ordinary, sums->width};
    if (outer->filled) outer_add(outer, gates, 0, 0, all, NULL);
    if (outer->filled && sums->reset == RESET_BEFORE) outer_add(outer, candidate, ordinary, 0, all, outer->resets);
    if (outer->filled && sums->reset == RESET_AFTER) {
        outer_add(outer, rows_of(outer->resets, N), ordinary, 0, N, NULL);
        outer_add(outer, candidate, ordinary, N, all, NULL);
    }
    outer->filled = outer->chunks = 0;
}

/* Reserve room for the deltas of `rows` rows with the given previous states and inputs. Returns the first row of the
 * room in `deltas`; the room for r∘h or r∘δ has the same rows in `resets`. */
static int64_t outer_reserve(outer_t *outer, int64_t rows, const REAL *states, const REAL *inputs) {
    if (outer->filled + rows > outer->room) outer_flush(outer);
    int64_t place = outer->filled;
    outer->chunk[outer->chunks++] = (chunk_t){rows, states, inputs};
    outer->filled += rows;
    return place;
}

/* Reserve room for the deltas of a span, whose previous states are then in `before`. */
static int64_t outer_reserve_span(outer_t *outer, const span_t *span, const REAL *initial, const REAL *states,
                                  const REAL *inputs, const REAL **before) {
    int64_t N = outer->sums->hidden;
    const REAL *rows = (span->starts ? initial : states) + span->before * N;
    int64_t place = outer_reserve(outer, span->rows, rows, inputs + span->here * outer->sums->inputs);
    *before = outer->chunk[outer->chunks - 1].states =
        previous_rows(span, initial, states, N, outer->before ? outer->before + place * N : NULL);
    return place;
}
