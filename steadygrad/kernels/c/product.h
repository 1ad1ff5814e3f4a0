/* z = [a | b] P for a few rows at a time. P is packed into panels that are two vectors wide. */
#define LANES ((int)(VECTOR_BYTES / sizeof(REAL)))
#define PANEL (2 * LANES)
typedef REAL vec __attribute__((vector_size(VECTOR_BYTES), aligned(__alignof__(REAL)), may_alias));
typedef INTEGER mask __attribute__((vector_size(VECTOR_BYTES)));

/* Expands CASE for each number of rows of a tile. */
#undef EACH_HEIGHT
#if TILE_ROWS == 6
#define EACH_HEIGHT(CASE) CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6)
#else
#define EACH_HEIGHT(CASE) \
    CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12)
#endif

INLINE int64_t panel_count(int64_t columns) { return (columns + PANEL - 1) / PANEL; }

/* One source of a packed matrix: entry (k, column) is data[k · by_k + column · by_column]. */
typedef struct {
    int64_t depth;
    const REAL *data;
    int64_t by_k, by_column;
} source_t;

INLINE source_t transposed(const REAL *W, int64_t depth) { /* z = a Wᵀ */ return (source_t){depth, W, 1, depth}; }

INLINE source_t plain(const REAL *W, int64_t depth, int64_t columns) { /* z = a W */
    return (source_t){depth, W, columns, 1};
}

/* Fill entry (k, column) of the panel with data[k · by_k + column · by_column]; columns beyond `width` are zero. */
static void pack_panel(REAL *panel, int64_t depth, int64_t width, const REAL *data, int64_t by_k, int64_t by_column) {
    if (width == PANEL && by_column == 1) {
        for (int64_t k = 0; k < depth; k++, panel += PANEL, data += by_k) {
            *(vec *)panel = *(const vec *)data;
            *(vec *)(panel + LANES) = *(const vec *)(data + LANES);
        }
        return;
    }
    if (width < PANEL) memset(panel, 0, (size_t)(depth * PANEL) * sizeof(REAL));
    if (by_column == 1) {
        for (int64_t k = 0; k < depth; k++)
            for (int64_t j = 0; j < width; j++) panel[k * PANEL + j] = data[k * by_k + j];
    } else {
        enum { BLOCK = 8 }; /* a transposition in blocks, so that each cache line is fetched once */
        int64_t blocks = depth / BLOCK * BLOCK;
        for (int64_t k = 0; k < blocks; k += BLOCK)
            for (int64_t j = 0; j < width; j++) {
                REAL *to = panel + k * PANEL + j;
                const REAL *from = data + k * by_k + j * by_column;
#pragma GCC unroll 8
                for (int i = 0; i < BLOCK; i++) to[i * PANEL] = from[i * by_k];
            }
        for (int64_t k = blocks; k < depth; k++)
            for (int64_t j = 0; j < width; j++) panel[k * PANEL + j] = data[k * by_k + j * by_column];
    }
}

INLINE int64_t packed_size(int64_t columns, source_t first, source_t second) { /* in numbers */
    return panel_count(columns) * (first.depth + second.depth) * PANEL;
}

/* Pack the matrix of the rows of `first`, then of `second`, into packed_size numbers. */
static void pack_into(REAL *packed, int64_t columns, source_t first, source_t second) {
    int64_t depth = first.depth + second.depth;
    for (int64_t p = 0; p < panel_count(columns); p++) {
        int64_t width = at_most(PANEL, columns - p * PANEL);
        REAL *to = packed + p * depth * PANEL;
        for (int which = 0; which < 2; which++) {
            source_t source = which ? second : first;
            const REAL *from = source.data + p * PANEL * source.by_column;
            pack_panel(to, source.depth, width, from, source.by_k, source.by_column);
            to += source.depth * PANEL;
        }
    }
}

/* Return the packed matrix of the rows of `first`, then of `second`, or NULL. The caller frees it with give_back. */
static REAL *pack(int64_t columns, source_t first, source_t second) {
    REAL *packed = borrow((size_t)packed_size(columns, first, second) * sizeof(REAL));
    if (packed) pack_into(packed, columns, first, second);
    return packed;
}

static REAL *pack_one(int64_t columns, source_t source) { return pack(columns, plain(NULL, 0, 0), source); }

/* Left factors: rows of `depth` numbers, `stride` apart. */
typedef struct {
    int64_t depth;
    const REAL *data;
    int64_t stride;
} left_t;

INLINE left_t rows_of(const REAL *data, int64_t depth) { return (left_t){depth, data, depth}; } /* without gaps */
INLINE left_t no_rows(void) { return (left_t){0, NULL, 0}; }

/* Store the first `count` lanes of a vector, all if count is larger. */
INLINE void store_part(REAL *to, vec value, int64_t count) {
    if (count >= LANES) {
        *(vec *)to = value;
    } else {
        for (int64_t j = 0; j < count; j++) to[j] = value[j];
    }
}

/* Load the first `count` lanes of a vector, all if count is larger; the other lanes are zero. */
INLINE vec load_part(const REAL *from, int64_t count) {
    if (count >= LANES) return *(const vec *)from;
    vec value = {0};
    for (int64_t j = 0; j < count; j++) value[j] = from[j];
    return value;
}

/* Multiply `rows` rows by one panel; all sums stay in registers. After inlining `rows` and `wide` are compile-time
 * constants. `wide` is 0 if the panel has no more columns than a vector has lanes: its right half is then skipped. */
INLINE void tile(const int rows, const int wide, left_t a, left_t b, const REAL *panel, REAL *z, int64_t stride,
                 int64_t columns, int accumulate) {
    vec sums[TILE_ROWS][2];
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++) {
        sums[i][0] = (vec){0};
        sums[i][1] = (vec){0};
    }
    for (int64_t k = 0; k < a.depth; k++, panel += PANEL) {
        vec left = *(const vec *)panel, right = *(const vec *)(panel + LANES);
#pragma GCC unroll 16
        for (int i = 0; i < rows; i++) {
            REAL value = a.data[i * a.stride + k];
            sums[i][0] += value * left;
            if (wide) sums[i][1] += value * right;
        }
    }
    for (int64_t k = 0; k < b.depth; k++, panel += PANEL) {
        vec left = *(const vec *)panel, right = *(const vec *)(panel + LANES);
#pragma GCC unroll 16
        for (int i = 0; i < rows; i++) {
            REAL value = b.data[i * b.stride + k];
            sums[i][0] += value * left;
            if (wide) sums[i][1] += value * right;
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++) {
        REAL *to = z + i * stride;
        if (accumulate) {
            sums[i][0] += load_part(to, columns);
            if (wide) sums[i][1] += load_part(to + LANES, columns - LANES);
        }
        store_part(to, sums[i][0], columns);
        if (wide) store_part(to + LANES, sums[i][1], columns - LANES);
    }
}

/* z = [a | b] P, or z += [a | b] P if `accumulate`. z is rows × columns, with rows `stride` apart. */
static __attribute__((noinline)) void product(int64_t rows, int64_t columns, left_t a, left_t b, const REAL *packed,
                                              REAL *z, int64_t stride, int accumulate) {
    int64_t groups = (rows + TILE_ROWS - 1) / TILE_ROWS;
    for (int64_t p = 0; p < panel_count(columns); p++) {
        const REAL *panel = packed + p * (a.depth + b.depth) * PANEL;
        int64_t width = columns - p * PANEL, row = 0;
        for (int64_t g = 0; g < groups; g++) { /* groups of nearly equal height use the multipliers best */
            int height = (int)(rows / groups + (g < rows % groups));
            left_t a_rows = {a.depth, a.data + row * a.stride, a.stride};
            left_t b_rows = {b.depth, b.data + row * b.stride, b.stride};
            REAL *to = z + row * stride + p * PANEL;
#define TILE(n)                                                                              \
    case n:                                                                                  \
        if (width > LANES) tile(n, 1, a_rows, b_rows, panel, to, stride, width, accumulate); \
        else tile(n, 0, a_rows, b_rows, panel, to, stride, width, accumulate);               \
        break;
            switch (height) { EACH_HEIGHT(TILE) }
#undef TILE
            row += height;
        }
    }
}
