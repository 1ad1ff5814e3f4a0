/* C = α A B (+ C): the threads divide C, B is packed panel by panel, A is read in place.
 *
 * A BLAS is not used because it is slow next to other programs: its threads wait for each other a dozen times per call,
 * and each wait takes milliseconds if another program occupies a core. */
#define DEPTH 256 /* rows of a panel that fit in the L1 cache */

typedef struct {
    int64_t rows, columns, depth;
    REAL alpha;
    const REAL *a, *b;
    int64_t a_row, a_k, b_k, b_column;
    REAL *c;
    int64_t c_row;
    int accumulate, slices;
    atomic_int failed;
} gemm_t;

/* Multiply `height` rows by one packed panel; see `tile` in product.h. */
INLINE void gemm_tile(const int height, const int wide, int64_t depth, const REAL *a, int64_t a_row, int64_t a_k,
                      const REAL *panel, REAL alpha, REAL *c, int64_t c_row, int64_t columns, int accumulate) {
    vec sums[TILE_ROWS][2];
#pragma GCC unroll 16
    for (int i = 0; i < height; i++) {
        sums[i][0] = (vec){0};
        sums[i][1] = (vec){0};
    }
    for (int64_t k = 0; k < depth; k++, panel += PANEL) {
        vec left = *(const vec *)panel, right = *(const vec *)(panel + LANES);
#pragma GCC unroll 16
        for (int i = 0; i < height; i++) {
            REAL value = a[i * a_row];
            sums[i][0] += value * left;
            if (wide) sums[i][1] += value * right;
        }
        a += a_k;
    }
#pragma GCC unroll 16
    for (int i = 0; i < height; i++) {
        REAL *to = c + i * c_row;
        vec left = alpha * sums[i][0], right = alpha * sums[i][1];
        if (accumulate) {
            left += load_part(to, columns);
            if (wide) right += load_part(to + LANES, columns - LANES);
        }
        store_part(to, left, columns);
        if (wide) store_part(to + LANES, right, columns - LANES);
    }
}

/* Multiply rows [first, last) of A, in columns [from, from + depth), by one packed panel, which starts at `column`. */
static __attribute__((noinline)) void gemm_rows(const gemm_t *job, int64_t first, int64_t last, int64_t from,
                                                int64_t depth, const REAL *panel, int64_t column) {
    int64_t rows = last - first, groups = (rows + TILE_ROWS - 1) / TILE_ROWS, row = first;
    int64_t columns = job->columns - column;
    int accumulate = job->accumulate || from > 0;
    for (int64_t g = 0; g < groups; g++) {
        int height = (int)(rows / groups + (g < rows % groups));
        const REAL *a = job->a + row * job->a_row + from * job->a_k;
        REAL *c = job->c + row * job->c_row + column;
#define VARIANT(n, wide) \
    gemm_tile(n, wide, depth, a, job->a_row, job->a_k, panel, job->alpha, c, job->c_row, columns, accumulate)
#define TILE(n)                             \
    case n:                                 \
        if (columns > LANES) VARIANT(n, 1); \
        else VARIANT(n, 0);                 \
        break;
        switch (height) {
            TILE(1)
            TILE(2) TILE(3) TILE(4) TILE(5) TILE(6)
#if TILE_ROWS > 6
                TILE(7) TILE(8) TILE(9) TILE(10) TILE(11) TILE(12)
#endif
        }
#undef TILE
#undef VARIANT
        row += height;
    }
}

/* Gradients of the weights and biases that the slices of a walk compute: for each slice `width` × (hidden + inputs)
 * numbers for the weights, then `biases` numbers for the biases. */
typedef struct {
    int64_t width, hidden, inputs, biases;
    int slices;
    REAL *found;
} sums_t;

static REAL *borrow_reals(int64_t count) { return borrow((size_t)count * sizeof(REAL)); }

INLINE int64_t sums_weights(const sums_t *sums) { return sums->width * (sums->hidden + sums->inputs); }
INLINE int64_t sums_size(const sums_t *sums) { return sums_weights(sums) + sums->biases; }

static int sums_open(sums_t *sums) {
    sums->found = borrow_reals(sums_size(sums) * sums->slices);
    return sums->found != NULL;
}

/* The weight gradient of one slice, followed by its bias gradient; sums_clear sets both to zero. */
static REAL *sums_weight(const sums_t *sums, int slice) { return sums->found + slice * sums_size(sums); }
static REAL *sums_bias(const sums_t *sums, int slice) { return sums_weight(sums, slice) + sums_weights(sums); }
static void sums_clear(const sums_t *sums, int slice) {
    memset(sums_weight(sums, slice), 0, (size_t)sums_size(sums) * sizeof(REAL));
}

INLINE void sum_slices(REAL *to, const REAL *from, int64_t apart, int slices, int64_t count) {
    for (int64_t k = 0; k < count; k++) {
        REAL sum = from[k];
        for (int slice = 1; slice < slices; slice++) sum += from[slice * apart + k];
        to[k] = sum;
    }
}

/* Add the gradients of all slices into d_hidden (width × hidden), d_input (width × inputs) and d_bias (biases; may be
 * null), and free the memory. */
static void sums_close(sums_t *sums, REAL *d_hidden, REAL *d_input, REAL *d_bias) {
    int64_t N = sums->hidden, I = sums->inputs, apart = sums_size(sums);
    const REAL *row = sums->found;
    if (!row) return;
    for (int64_t r = 0; r < sums->width; r++, row += N + I) {
        sum_slices(d_hidden + r * N, row, apart, sums->slices, N);
        sum_slices(d_input + r * I, row + N, apart, sums->slices, I);
    }
    if (d_bias) sum_slices(d_bias, row, apart, sums->slices, sums->biases);
    give_back(sums->found);
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
    int64_t width, hidden, inputs, room, filled, chunks; /* width: of a δ, so 1, 3 or 4 times hidden */
    REAL *deltas, *resets, *panel, *total;               /* total: width × (hidden + inputs) */
    chunk_t *chunk;
    int reset;
} outer_t;

static int outer_open(outer_t *outer, const sums_t *sums, int slice, int64_t most_rows, int reset) {
    int64_t room = at_least(DEPTH, most_rows), width = sums->width, hidden = sums->hidden;
    sums_clear(sums, slice);
    *outer = (outer_t){.width = width,
                       .hidden = hidden,
                       .inputs = sums->inputs,
                       .room = room,
                       .total = sums_weight(sums, slice),
                       .reset = reset};
    outer->deltas = borrow_reals(room * width);
    outer->resets = reset ? borrow_reals(room * hidden) : NULL;
    outer->panel = borrow_reals(room * PANEL);
    outer->chunk = borrow((size_t)room * sizeof(chunk_t));
    return outer->deltas && outer->panel && outer->chunk && (outer->resets || !reset);
}

static void outer_close(outer_t *outer) {
    give_back(outer->deltas);
    give_back(outer->resets);
    give_back(outer->panel);
    give_back(outer->chunk);
}

/* Add δᵀ [states | inputs] to `total`, from row `first` on and in columns begin … end − 1. The states are those in
 * `resets` if it is not null, otherwise those of the chunks. */
static void outer_add(outer_t *outer, left_t deltas, int64_t first, int64_t begin, int64_t end, const REAL *resets) {
    int64_t N = outer->hidden, I = outer->inputs;
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
    int64_t N = outer->hidden, all = N + outer->inputs, ordinary = outer->reset ? outer->width - N : outer->width;
    left_t gates = {ordinary, outer->deltas, outer->width}, candidate = {N, outer->deltas + ordinary, outer->width};
    if (outer->filled) outer_add(outer, gates, 0, 0, all, NULL);
    if (outer->filled && outer->reset == RESET_BEFORE) outer_add(outer, candidate, ordinary, 0, all, outer->resets);
    if (outer->filled && outer->reset == RESET_AFTER) {
        outer_add(outer, (left_t){N, outer->resets, N}, ordinary, 0, N, NULL);
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

static void gemm_slice(void *argument, int slice) {
    gemm_t *job = argument;
    int64_t first = 0, last = job->rows, begin = 0, end = job->columns;
    if (job->rows >= 8 * job->slices) {
        first = job->rows * slice / job->slices, last = job->rows * (slice + 1) / job->slices;
    } else { /* few rows: divide the panels instead */
        int64_t panels = panel_count(job->columns);
        begin = panels * slice / job->slices * PANEL, end = at_most(end, panels * (slice + 1) / job->slices * PANEL);
    }
    REAL *panel = borrow(DEPTH * PANEL * sizeof(REAL));
    if (!panel) {
        atomic_store(&job->failed, 1);
        return;
    }
    for (int64_t from = 0; from < job->depth; from += DEPTH) {
        int64_t depth = at_most(DEPTH, job->depth - from);
        for (int64_t column = begin; column < end; column += PANEL) {
            int64_t width = at_most(PANEL, job->columns - column);
            const REAL *b = job->b + from * job->b_k + column * job->b_column;
            pack_panel(panel, depth, width, b, job->b_k, job->b_column);
            gemm_rows(job, first, last, from, depth, panel, column);
        }
    }
    give_back(panel);
}

static int NAME(gemm)(int64_t rows, int64_t columns, int64_t depth, double alpha, const REAL *a, int64_t a_row,
                      int64_t a_k, const REAL *b, int64_t b_k, int64_t b_column, REAL *c, int64_t c_row, int accumulate,
                      int slices) {
    gemm_t job = {.rows = rows,
                  .columns = columns,
                  .depth = depth,
                  .alpha = (REAL)alpha,
                  .a = a,
                  .a_row = a_row,
                  .a_k = a_k,
                  .b = b,
                  .b_k = b_k,
                  .b_column = b_column,
                  .c = c,
                  .c_row = c_row,
                  .accumulate = accumulate,
                  .slices = slices};
    run_slices(gemm_slice, &job, slices);
    return atomic_load(&job.failed);
}
