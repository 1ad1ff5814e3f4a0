/* One time step a call, on weights that were packed once: a chain of levels, each a recurrent cell or a linear map.
 *
 * stream_open packs the weights of all levels into one block of memory. The block also holds the numbers between two
 * products, so a step needs no memory and cannot fail. The recurrent states are tensors of Python, to which the levels
 * point. A stream keeps the instruction set for which it was packed. It runs on the thread that calls it.
 *
 * One row times a matrix reads each weight once and is limited by memory, if enough sums are computed at a time: two
 * vectors of a panel at four successive k are 8 sums, which do not wait for each other. */

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
