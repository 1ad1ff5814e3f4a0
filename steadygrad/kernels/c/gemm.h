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
    atomic_int codes;
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
        switch (height) { EACH_HEIGHT(TILE) }
#undef TILE
#undef VARIANT
        row += height;
    }
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
    if (!panel) atomic_fetch_or(&job->codes, NO_MEMORY);
    watch_t watch = {.codes = &job->codes};
    for (int64_t from = 0; from < job->depth && panel; from += DEPTH) {
        int64_t depth = at_most(DEPTH, job->depth - from);
        for (int64_t column = begin; column < end && !must_stop(&watch); column += PANEL) {
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
    gemm_t job = {rows, columns, depth, (REAL)alpha, a, b, a_row, a_k, b_k, b_column, c, c_row, accumulate, slices, 0};
    run_slices(gemm_slice, &job, slices);
    return atomic_load(&job.codes);
}
