/* Attention in a stream: see stream.h, and attention.h for the equations. */

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
