/* The C functions that Python calls, for one floating-point type. All return 0 on success, or codes. */
#define EXPORT(function) JOIN3(steadygrad, function, REAL_TAG)
#define EXPORT_WALK(function) \
    int EXPORT(function)(const void *arguments) { DISPATCH(function, REAL_TAG, arguments) }

EXPORT_WALK(elman_forward)
EXPORT_WALK(elman_backward)
EXPORT_WALK(gru_forward)
EXPORT_WALK(gru_backward)
EXPORT_WALK(lstm_forward)
EXPORT_WALK(lstm_backward)
EXPORT_WALK(attention_forward)
EXPORT_WALK(attention_backward)

int EXPORT(gemm)(int64_t rows, int64_t columns, int64_t depth, double alpha, const REAL *a, int64_t a_row, int64_t a_k,
                 const REAL *b, int64_t b_k, int64_t b_column, REAL *c, int64_t c_row, int64_t accumulate,
                 int64_t slices) {
    DISPATCH(gemm, REAL_TAG, rows, columns, depth, alpha, a, a_row, a_k, b, b_k, b_column, c, c_row, (int)accumulate,
             (int)slices)
}

int EXPORT(exponential_forward)(int64_t n, const REAL *table, const REAL *A, const REAL *A2, REAL *X, REAL *S, REAL *E,
                                REAL *B4, int64_t slices) {
    DISPATCH(exponential_forward, REAL_TAG, n, table, A, A2, X, S, E, B4, (int)slices)
}

int EXPORT(exponential_backward)(int64_t n, const REAL *table, const REAL *G, const REAL *A, const REAL *S,
                                 const REAL *E, const REAL *B4, REAL *dA, int64_t slices) {
    DISPATCH(exponential_backward, REAL_TAG, n, table, G, A, S, E, B4, dA, (int)slices)
}

int EXPORT(stream_open)(const void *levels, int64_t count, int64_t batch, int64_t found) {
    DISPATCH(stream_open, REAL_TAG, levels, count, batch, (void **)(uintptr_t)found)
}
#undef EXPORT
#undef EXPORT_WALK
