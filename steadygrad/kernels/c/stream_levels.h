/* The levels of a stream, their memory, and their products with the packed weights: see stream.h. */

/* One level, as Python describes it: all fields have 8 bytes. W multiplies the input and U the state, in the layouts of
 * elman.h, gru.h and lstm.h. `bias` is added before the activation, `modulus` is the bias of modReLU, `bias_hn` that
 * of U_c h. These three and v may be null. A linear map has `hidden` outputs and no U. A, B and v are null without
 * attention.
 * The states after v are written by each step. Those from s on are of attention: `states` is batch × (shorts + longs) ×
 * hidden. Its first `shorts` places are a ring; `oldest` is the place that the next state overwrites. `received` is
 * arranged in the same way. */
typedef struct {
    int64_t kind, hidden, inputs, activation, shorts, longs;
    double factor;
    const REAL *W, *U, *bias, *modulus, *bias_hn, *A, *B, *v;
    REAL *h, *c, *s, *states, *received, *scores;
    int64_t *times, *ages, *oldest;
} stream_level_t;

/* A packed level. Its products are in the order of stream_products. */
typedef struct {
    stream_level_t given;
    REAL *packed[3];
    REAL *weights;                 /* of attention: a number for each place of a sequence */
    int64_t *items;                /* places that are taken */
    attention_forward_t attention; /* what attend_to reads */
} stream_cell_t;

typedef struct {
    stream_head_t head;
    int64_t batch, levels;
    REAL *room; /* for the products of one level */
    stream_cell_t *cells;
} stream_t;

typedef struct {
    int64_t columns;
    source_t first, second;
} stream_product_t;

/* Describe the products of a level. Returns their number. */
static int stream_products(const stream_level_t *given, stream_product_t *found) {
    int64_t N = given->hidden, I = given->inputs;
    source_t none = plain(NULL, 0, 0), x = transposed(given->W, I), h = transposed(given->U, N);
    switch (given->kind) {
        case LINEAR: found[CELL] = (stream_product_t){N, x, none}; return 1;
        case HENAFF:
            found[0] = (stream_product_t){N, x, none};
            found[1] = (stream_product_t){N, none, h};
            return 2;
        case GRU_BEFORE:
        case GRU_AFTER: {
            source_t x_c = transposed(given->W + 2 * N * I, I), h_c = transposed(given->U + 2 * N * N, N);
            found[0] = (stream_product_t){2 * N, x, h};
            found[1] = (stream_product_t){N, x_c, given->kind == GRU_BEFORE ? h_c : none};
            found[2] = (stream_product_t){N, none, h_c};
            return given->kind == GRU_BEFORE ? 2 : 3;
        }
        default: found[CELL] = (stream_product_t){given->kind == GATED ? 4 * N : N, x, h};
    }
    if (!given->A) return 1;
    found[QUERIES] = (stream_product_t){N, none, transposed(given->A, N)};
    found[KEYS] = (stream_product_t){N, none, transposed(given->B, N)};
    return 3;
}

static REAL *arena_reals(arena_t *arena, int64_t count) { return arena_take(arena, (size_t)count * sizeof(REAL)); }

/* Place the arrays of a level in the block. */
static void stream_place(arena_t *arena, const stream_level_t *given, int64_t batch, stream_cell_t *cell) {
    int64_t N = given->hidden, places = given->shorts + given->longs;
    stream_product_t products[3];
    int count = stream_products(given, products);
    *cell = (stream_cell_t){.given = *given};
    for (int k = 0; k < count; k++) {
        stream_product_t *one = &products[k];
        cell->packed[k] = arena_reals(arena, packed_size(one->columns, one->first, one->second));
    }
    if (given->kind == LINEAR) cell->given.h = arena_reals(arena, batch * N);
    if (!given->A) return;
    cell->weights = arena_reals(arena, places);
    cell->items = arena_take(arena, (size_t)places * sizeof(int64_t));
    cell->attention = (attention_forward_t){.hidden = N,
                                            .memory = {given->shorts, given->longs, 0},
                                            .factor = given->factor,
                                            .v = given->v,
                                            .states = given->states,
                                            .queries = arena_reals(arena, batch * N),
                                            .keys = arena_reals(arena, batch * places * N)};
}

/* Place all parts of a stream in the block, whose size is then arena->used. */
static stream_t *stream_place_all(arena_t *arena, const stream_level_t *levels, int64_t count, int64_t batch) {
    stream_t *stream = arena_take(arena, sizeof(stream_t));
    stream_cell_t *cells = arena_take(arena, (size_t)count * sizeof(stream_cell_t)), dummy;
    int64_t widest = 0;
    for (int64_t k = 0; k < count; k++) {
        stream_place(arena, &levels[k], batch, cells ? &cells[k] : &dummy);
        widest = at_least(widest, levels[k].hidden);
    }
    REAL *room = arena_reals(arena, 4 * widest * batch);
    if (stream) *stream = (stream_t){.batch = batch, .levels = count, .room = room, .cells = cells};
    return stream;
}

/* Add the products of one row with a panel at `depth` successive k to four sums, in turn. Returns the panel's next k. */
INLINE const REAL *row_sums(vec sums[4][2], const REAL *row, int64_t depth, const REAL *panel) {
    int64_t k = 0;
    for (; k + 4 <= depth; k += 4) {
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++, panel += PANEL) {
            REAL value = row[k + i];
            sums[i][0] += value * *(const vec *)panel;
            sums[i][1] += value * *(const vec *)(panel + LANES);
        }
    }
    for (; k < depth; k++, panel += PANEL) {
        sums[0][0] += row[k] * *(const vec *)panel;
        sums[0][1] += row[k] * *(const vec *)(panel + LANES);
    }
    return panel;
}

/* z = [a | b] P, as `product`; a single row has more sums at a time. */
static void stream_product(int64_t rows, int64_t columns, left_t a, left_t b, const REAL *packed, REAL *z,
                           int64_t stride) {
    if (rows > 1) {
        product(rows, columns, a, b, packed, z, stride, 0);
        return;
    }
    for (int64_t j = 0; j < columns; j += PANEL) {
        vec sums[4][2] = {{{0}}};
        packed = row_sums(sums, a.data, a.depth, packed);
        packed = row_sums(sums, b.data, b.depth, packed);
        for (int half = 0; half < 2; half++) {
            vec sum = (sums[0][half] + sums[1][half]) + (sums[2][half] + sums[3][half]);
            if (j + half * LANES < columns) store_part(z + j + half * LANES, sum, columns - j - half * LANES);
        }
    }
}

/* Add a bias to rows. */
INLINE void add_bias(int64_t rows, int64_t N, const REAL *bias, REAL *z) {
    if (bias)
        for (int64_t row = 0; row < rows; row++) add_scaled(z + row * N, 1, bias, N);
}
