/* One time step a call, on weights that were packed once: a chain of levels, each a recurrent cell or a linear map.
 *
 * stream_open packs the weights of all levels into one block of memory. The block also holds the numbers between two
 * products, so a step needs no memory and cannot fail. The recurrent states are tensors of Python, to which the levels
 * point. A stream keeps the instruction set for which it was packed. It runs on the thread that calls it.
 *
 * One row times a matrix reads each weight once and is limited by memory, if enough sums are computed at a time: two
 * vectors of a panel at four successive k are 8 sums, which do not wait for each other. */

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
    source_t x_c = transposed(given->W + 2 * N * I, I), h_c = given->U ? transposed(given->U + 2 * N * N, N) : none;
    switch (given->kind) {
        case LINEAR: found[CELL] = (stream_product_t){N, x, none}; return 1;
        case HENAFF:
            found[0] = (stream_product_t){N, x, none};
            found[1] = (stream_product_t){N, none, h};
            return 2;
        case GRU_BEFORE:
            found[0] = (stream_product_t){2 * N, x, h};
            found[1] = (stream_product_t){N, x_c, h_c};
            return 2;
        case GRU_AFTER:
            found[0] = (stream_product_t){2 * N, x, h};
            found[1] = (stream_product_t){N, x_c, none};
            found[2] = (stream_product_t){N, none, h_c};
            return 3;
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

/* Apply bias and activation of an Elman unit to rows. */
static void stream_activate(const stream_level_t *given, int64_t rows, REAL *z) {
    int of_modulus = given->activation == MODRELU || given->activation == COMPLEX_MODRELU;
    if (of_modulus) add_bias(rows, given->hidden, given->bias, z);
    elman_activate_any(given->activation, rows, given->hidden, of_modulus ? given->modulus : given->bias, z);
}

static void stream_elman(const stream_cell_t *cell, int64_t rows, left_t x, left_t before, REAL *room) {
    const stream_level_t *given = &cell->given;
    int64_t N = given->hidden;
    stream_product(rows, N, x, before, cell->packed[CELL], room, N);
    stream_activate(given, rows, room);
    memcpy(given->h, room, (size_t)(rows * N) * sizeof(REAL));
}

/* h ← φ(W x + b) + U h */
static void stream_henaff(const stream_cell_t *cell, int64_t rows, left_t x, left_t before, REAL *room) {
    const stream_level_t *given = &cell->given;
    int64_t N = given->hidden;
    REAL *inputs = room + rows * N;
    stream_product(rows, N, no_rows(), before, cell->packed[1], room, N);
    stream_product(rows, N, x, no_rows(), cell->packed[0], inputs, N);
    stream_activate(given, rows, inputs);
    add_scaled(inputs, 1, room, rows * N);
    memcpy(given->h, inputs, (size_t)(rows * N) * sizeof(REAL));
}

static void stream_lstm(const stream_cell_t *cell, int64_t rows, left_t x, left_t before, REAL *gates) {
    const stream_level_t *given = &cell->given;
    int64_t N = given->hidden;
    stream_product(rows, 4 * N, x, before, cell->packed[CELL], gates, 4 * N);
    lstm_activate(rows, N, given->bias, gates, given->c, given->c, given->h);
}

static void stream_gru_before(const stream_cell_t *cell, int64_t rows, left_t x, left_t before, REAL *gates) {
    const stream_level_t *given = &cell->given;
    int64_t N = given->hidden;
    REAL *reset = gates + rows * 3 * N;
    stream_product(rows, 2 * N, x, before, cell->packed[0], gates, 3 * N);
    gru_reset(rows, N, given->bias, gates, before.data, reset);
    stream_product(rows, N, x, rows_of(reset, N), cell->packed[1], gates + 2 * N, 3 * N);
    gru_next(rows, N, given->activation, given->bias, given->modulus, gates, before.data, given->h);
}

/* The reset acts after the product: W_c x + r∘(U_c h + b_hn) is the candidate before its bias and activation. */
static void stream_gru_after(const stream_cell_t *cell, int64_t rows, left_t x, left_t before, REAL *gates) {
    const stream_level_t *given = &cell->given;
    int64_t N = given->hidden;
    REAL *products = gates + rows * 3 * N;
    stream_product(rows, 2 * N, x, before, cell->packed[0], gates, 3 * N);
    stream_product(rows, N, x, no_rows(), cell->packed[1], gates + 2 * N, 3 * N);
    stream_product(rows, N, no_rows(), before, cell->packed[2], products, N);
    add_bias(rows, N, given->bias_hn, products);
    gru_reset(rows, N, given->bias, gates, products, products);
    for (int64_t row = 0; row < rows; row++) add_scaled(gates + row * 3 * N + 2 * N, 1, products + row * N, N);
    gru_next(rows, N, given->activation, given->bias, given->modulus, gates, before.data, given->h);
}

/* Compute rows a Pᵀ that are queries or keys, as exponentials if the level uses them. Returns 0 or TOO_LARGE. */
static int stream_scores(const stream_cell_t *cell, int which, int64_t rows, const REAL *a, REAL *z) {
    int64_t N = cell->given.hidden;
    stream_product(rows, N, no_rows(), rows_of(a, N), cell->packed[which], z, N);
    return cell->attention.exponentials ? exp_2x(rows * N, z) : 0;
}

/* Compute the keys of all states in the memory. */
static int stream_memory_keys(stream_cell_t *cell, int64_t batch) {
    int64_t rows = batch * (cell->given.shorts + cell->given.longs);
    return stream_scores(cell, KEYS, rows, cell->given.states, cell->attention.keys);
}

/* As stream_scores. From the first query or key that is too large on, the level uses no exponentials. */
static void stream_safe_scores(stream_cell_t *cell, int which, int64_t batch, const REAL *a, REAL *z) {
    if (!stream_scores(cell, which, batch, a, z)) return;
    cell->attention.exponentials = 0;
    stream_memory_keys(cell, batch);
    stream_scores(cell, which, batch, a, z);
}

/* Write the places in the memory of sequence b that are taken to `items`: the ring, the latest last, then the others.
 * Returns their number. */
static int64_t stream_items(const stream_cell_t *cell, int64_t b, int64_t *items) {
    const stream_level_t *given = &cell->given;
    int64_t shorts = given->shorts, age = given->ages[b], first = b * (shorts + given->longs);
    int64_t recent = at_most(age, shorts), distant = at_least(0, at_most(age - shorts, given->longs));
    int64_t place = *given->oldest + shorts - recent;
    for (int64_t i = 0; i < recent; i++, place++) items[i] = first + (place < shorts ? place : place - shorts);
    for (int64_t i = 0; i < distant; i++) items[recent + i] = first + shorts + i;
    return recent + distant;
}

/* Replace s of all sequences by the next one, which attends to the memory. */
static void stream_attend(stream_cell_t *cell, int64_t batch) {
    const stream_level_t *given = &cell->given;
    int64_t N = given->hidden, shorts = given->shorts, places = shorts + given->longs;
    stream_safe_scores(cell, QUERIES, batch, given->s, cell->attention.queries);
    for (int64_t b = 0; b < batch; b++) {
        const REAL *before = given->h + b * N, *query = cell->attention.queries + b * N;
        int64_t count = stream_items(cell, b, cell->items), recent = at_most(given->ages[b], shorts);
        if (count) attend_to(&cell->attention, count, cell->items, query, before, cell->weights, given->s + b * N);
        else memcpy(given->s + b * N, before, (size_t)N * sizeof(REAL));
        if (!given->longs) continue;
        for (int64_t i = 0; i < recent; i++)
            given->received[b * shorts + cell->items[i] - b * places] += cell->weights[i];
    }
}

/* Copy a state and its key from one place in the memory to another. */
static void stream_move(stream_cell_t *cell, int64_t from, int64_t to) {
    int64_t N = cell->given.hidden;
    memcpy(cell->given.states + to * N, cell->given.states + from * N, (size_t)N * sizeof(REAL));
    memcpy(cell->attention.keys + to * N, cell->attention.keys + from * N, (size_t)N * sizeof(REAL));
}

/* The oldest state of the ring leaves it. Move it to the other places if one is free or its score is high enough. */
static void stream_screen(stream_cell_t *cell, int64_t b) {
    const stream_level_t *given = &cell->given;
    int64_t shorts = given->shorts, longs = given->longs, left = given->ages[b] - shorts, first = b * (shorts + longs);
    REAL *received = given->received + b * shorts + *given->oldest, *scores = given->scores + b * longs;
    int64_t place = left < longs ? left : 0;
    if (left >= longs)
        for (int64_t r = 1; r < longs; r++)
            if (scores[r] < scores[place]) place = r;
    if (left >= 0 && (left < longs || *received > scores[place])) {
        scores[place] = *received;
        given->times[b * longs + place] = left;
        stream_move(cell, first + *given->oldest, first + shorts + place);
    }
    *received = 0;
}

/* Enter the new states h into the memory. */
static void stream_remember(stream_cell_t *cell, int64_t batch) {
    const stream_level_t *given = &cell->given;
    int64_t N = given->hidden, places = given->shorts + given->longs;
    REAL *keys = cell->attention.queries; /* the queries of this step have been used */
    stream_safe_scores(cell, KEYS, batch, given->h, keys);
    for (int64_t b = 0; b < batch; b++) {
        int64_t place = b * places + *given->oldest;
        if (given->longs) stream_screen(cell, b);
        given->ages[b]++;
        memcpy(given->states + place * N, given->h + b * N, (size_t)N * sizeof(REAL));
        memcpy(cell->attention.keys + place * N, keys + b * N, (size_t)N * sizeof(REAL));
    }
    *given->oldest = *given->oldest + 1 < given->shorts ? *given->oldest + 1 : 0;
}

static void NAME(stream_step)(void *opaque, const void *x, void *y) {
    stream_t *stream = opaque;
    int64_t rows = stream->batch;
    const stream_level_t *given = NULL;
    for (int64_t k = 0; k < stream->levels; k++) {
        stream_cell_t *cell = &stream->cells[k];
        given = &cell->given;
        if (given->A) stream_attend(cell, rows);
        left_t input = rows_of(x, given->inputs), before = rows_of(given->A ? given->s : given->h, given->hidden);
        switch (given->kind) {
            case LINEAR:
                stream_product(rows, given->hidden, input, no_rows(), cell->packed[CELL], given->h, given->hidden);
                add_bias(rows, given->hidden, given->bias, given->h);
                break;
            case HENAFF: stream_henaff(cell, rows, input, before, stream->room); break;
            case GATED: stream_lstm(cell, rows, input, before, stream->room); break;
            case GRU_BEFORE: stream_gru_before(cell, rows, input, before, stream->room); break;
            case GRU_AFTER: stream_gru_after(cell, rows, input, before, stream->room); break;
            default: stream_elman(cell, rows, input, before, stream->room);
        }
        if (given->A) stream_remember(cell, rows);
        x = given->h;
    }
    memcpy(y, x, (size_t)(rows * given->hidden) * sizeof(REAL));
}

/* Compute what follows from the states, after Python has changed them. */
static void NAME(stream_renew)(void *opaque) {
    stream_t *stream = opaque;
    for (int64_t k = 0; k < stream->levels; k++) {
        stream_cell_t *cell = &stream->cells[k];
        if (!cell->given.A) continue;
        cell->attention.exponentials = cell->given.v != NULL;
        if (stream_memory_keys(cell, stream->batch)) {
            cell->attention.exponentials = 0;
            stream_memory_keys(cell, stream->batch);
        }
    }
}

/* Make a stream of `count` levels and store its address. Returns 0 or NO_MEMORY. */
static int NAME(stream_open)(const void *levels, int64_t count, int64_t batch, void **found) {
    arena_t arena = {NULL, 0};
    stream_place_all(&arena, levels, count, batch);
    if (!(arena.memory = own(arena.used))) return NO_MEMORY;
    arena.used = 0;
    stream_t *stream = stream_place_all(&arena, levels, count, batch);
    stream->head = (stream_head_t){NAME(stream_step), NAME(stream_renew)};
    for (int64_t k = 0; k < count; k++) {
        stream_product_t products[3];
        int number = stream_products(&stream->cells[k].given, products);
        for (int i = 0; i < number; i++)
            pack_into(stream->cells[k].packed[i], products[i].columns, products[i].first, products[i].second);
    }
    NAME(stream_renew)(stream);
    *found = stream;
    return 0;
}
