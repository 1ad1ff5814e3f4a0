/* The time axis of a call. A walk is one pass over all time steps, by each thread for its own rows of the batch.
 *
 * A batch of sequences of unequal length is stored as in torch's PackedSequence: sequences are sorted by decreasing
 * length, and rows offsets[t] … offsets[t + 1] − 1 belong to step t. In a padded batch all steps have the same number
 * of rows. */
typedef struct {
    int64_t steps, batch;
    const int64_t *offsets; /* steps + 1 entries */
    int64_t reverse;        /* 1: each sequence is processed from its end to its beginning */
    const uint8_t *resets;  /* 1 for each row whose previous state is zero instead; null if there is none */
} walk_t;

INLINE int64_t rows_at(const walk_t *walk, int64_t t) { return walk->offsets[t + 1] - walk->offsets[t]; }

/* Rows [from, from + rows) of the batch at step t, out of rows [first, last). Either all of them have their previous
 * state in the same step, or all start here. */
typedef struct {
    int64_t from, rows, t;
    int64_t here;   /* first row of the span in arrays with a row for each step of each sequence */
    int64_t before; /* first row of the previous states in such an array, or in the initial states if `starts` */
    int starts;
    const walk_t *walk;
    int64_t first, last, visited; /* visited: two for each step, for the rows that continue and those that start */
    int backward;
    watch_t watch;
} span_t;

/* Go to the next span that is not empty. Returns 0 if there is none, or if the call must stop. */
INLINE int next_span(span_t *span) {
    const walk_t *walk = span->walk;
    if (must_stop(&span->watch)) return 0;
    while (span->visited < 2 * walk->steps) {
        int64_t s = span->visited / 2; /* counts steps in the order of processing, or in the opposite order */
        int starts = (int)(span->visited++ % 2);
        if (span->backward) s = walk->steps - 1 - s;
        int64_t t = walk->reverse ? walk->steps - 1 - s : s;
        int64_t previous = s == 0 ? -1 : walk->reverse ? t + 1 : t - 1;
        int64_t end = at_most(span->last, rows_at(walk, t));
        int64_t continuing = previous < 0 ? span->first : at_least(span->first, at_most(end, rows_at(walk, previous)));
        int64_t from = starts ? continuing : span->first, to = starts ? end : continuing;
        if (from >= to) continue;
        span->from = from, span->rows = to - from, span->t = t, span->starts = starts;
        span->here = walk->offsets[t] + from;
        span->before = starts ? from : walk->offsets[previous] + from;
        return 1;
    }
    return 0;
}

/* Whether this row of the span begins anew: its previous state is zero, whatever came before. */
INLINE int begins_anew(const span_t *span, int64_t row) {
    return span->walk->resets && span->walk->resets[span->here + row];
}
INLINE int any_begins_anew(const span_t *span) {
    return span->walk->resets && memchr(span->walk->resets + span->here, 1, (size_t)span->rows);
}

/* Loop over the spans of a part of the batch, forward or backward in the order of processing. */
#define EACH_SPAN(span, walk_, part, backward_)             \
    for (span_t span = {.walk = (walk_),                    \
                        .first = (part)->first,             \
                        .last = (part)->last,               \
                        .backward = (backward_),            \
                        .watch = {.codes = (part)->codes}}; \
         next_span(&span);)

/* Find slice boundaries such that all slices have about the same number of rows, summed over time. */
static void balance(const walk_t *walk, int64_t slices, int64_t *bounds) {
    int64_t total = walk->offsets[walk->steps] - walk->offsets[0], done = 0, t = walk->steps, slice = 1;
    bounds[0] = 0;
    for (int64_t row = 0; row < walk->batch; row++) {
        while (t > 0 && rows_at(walk, t - 1) <= row) t--; /* t is now the length of this row's sequence */
        done += t;
        while (slice < slices && done * slices >= total * slice) bounds[slice++] = row + 1;
    }
    while (slice <= slices) bounds[slice++] = walk->batch;
}
