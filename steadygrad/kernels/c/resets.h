/* Resets inside a sequence: rows whose previous state is zero. Without resets these functions cost nothing. */

/* The previous states of a span: its rows of `initial` or `states`, or a copy in `room` with zeros where it begins
 * anew. */
INLINE const REAL *previous_rows(const span_t *span, const REAL *initial, const REAL *states, int64_t N, REAL *room) {
    const REAL *before = (span->starts ? initial : states) + span->before * N;
    if (!any_begins_anew(span)) return before;
    memcpy(room, before, (size_t)(span->rows * N) * sizeof(REAL));
    for (int64_t row = 0; row < span->rows; row++)
        if (begins_anew(span, row)) memset(room + row * N, 0, (size_t)N * sizeof(REAL));
    return room;
}

/* Set the gradient of the previous states to zero where the span begins anew. */
INLINE void stop_gradient(const span_t *span, REAL *carried, int64_t N) {
    if (!any_begins_anew(span)) return;
    for (int64_t row = 0; row < span->rows; row++)
        if (begins_anew(span, row)) memset(carried + row * N, 0, (size_t)N * sizeof(REAL));
}
