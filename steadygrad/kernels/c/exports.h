/* The C functions that Python calls, for one floating-point type. All return 0 on success and 1 if memory ran out.
 * attention_forward also returns 2, see attention.h. */
#define EXPORT(function) JOIN3(steadygrad, function, REAL_TAG)
#define WALK int64_t steps, int64_t batch, const int64_t *offsets, int64_t reverse
#define THE_WALK ((walk_t){steps, batch, offsets, (int)reverse})

int EXPORT(elman_forward)(WALK, int64_t hidden, int64_t inputs, int64_t activation, const REAL *x, const REAL *U,
                          const REAL *bias, const REAL *W, const REAL *initial, REAL *states, int64_t slices) {
    DISPATCH(elman_forward, REAL_TAG, THE_WALK, hidden, inputs, (int)activation, x, U, bias, W, initial, states,
             (int)slices)
}

int EXPORT(elman_backward)(WALK, int64_t hidden, int64_t inputs, int64_t activation, const REAL *gradient,
                           const REAL *x, const REAL *states, const REAL *bias, const REAL *W, const REAL *initial,
                           REAL *deltas, REAL *d_W, REAL *d_U, REAL *d_bias, REAL *d_initial, int64_t slices) {
    DISPATCH(elman_backward, REAL_TAG, THE_WALK, hidden, inputs, (int)activation, gradient, x, states, bias, W, initial,
             deltas, d_W, d_U, d_bias, d_initial, (int)slices)
}

int EXPORT(gru_forward)(WALK, int64_t hidden, int64_t inputs, int64_t activation, const REAL *x, const REAL *W,
                        const REAL *bias, const REAL *U, const REAL *modulus, const REAL *initial, REAL *states,
                        REAL *gates, REAL *products, int64_t slices) {
    DISPATCH(gru_forward, REAL_TAG, THE_WALK, hidden, inputs, (int)activation, x, W, bias, U, modulus, initial, states,
             gates, products, (int)slices)
}

int EXPORT(gru_backward)(WALK, int64_t hidden, int64_t inputs, int64_t activation, const REAL *gradient, const REAL *x,
                         const REAL *states, const REAL *gates, const REAL *products, const REAL *U,
                         const REAL *initial, REAL *deltas, REAL *d_U, REAL *d_W, REAL *d_bias, REAL *d_initial,
                         int64_t slices) {
    DISPATCH(gru_backward, REAL_TAG, THE_WALK, hidden, inputs, (int)activation, gradient, x, states, gates, products, U,
             initial, deltas, d_U, d_W, d_bias, d_initial, (int)slices)
}

int EXPORT(lstm_forward)(WALK, int64_t hidden, int64_t inputs, const REAL *x, const REAL *W, const REAL *bias,
                         const REAL *U, const REAL *initial, const REAL *initial_cells, REAL *states, REAL *cells,
                         REAL *gates, int64_t slices) {
    DISPATCH(lstm_forward, REAL_TAG, THE_WALK, hidden, inputs, x, W, bias, U, initial, initial_cells, states, cells,
             gates, (int)slices)
}

int EXPORT(lstm_backward)(WALK, int64_t hidden, int64_t inputs, const REAL *gradient, const REAL *cell_gradient,
                          const REAL *x, const REAL *states, const REAL *cells, const REAL *gates, const REAL *U,
                          const REAL *initial, const REAL *initial_cells, const uint8_t *detached, REAL *deltas,
                          REAL *d_U, REAL *d_W, REAL *d_bias, REAL *d_initial, REAL *d_initial_cells, int64_t slices) {
    DISPATCH(lstm_backward, REAL_TAG, THE_WALK, hidden, inputs, gradient, cell_gradient, x, states, cells, gates, U,
             initial, initial_cells, detached, deltas, d_U, d_W, d_bias, d_initial, d_initial_cells, (int)slices)
}

int EXPORT(attention_forward)(WALK, int64_t hidden, int64_t inputs, int64_t shorts, int64_t longs, int64_t carried,
                              int64_t activation, int64_t exponentials, double factor, const REAL *x, const REAL *U,
                              const REAL *bias, const REAL *W, const REAL *A, const REAL *B, const REAL *v,
                              const REAL *initial, const REAL *initial_cells, const REAL *initial_macro, REAL *states,
                              REAL *cells, REAL *gates, REAL *macro, REAL *keys, REAL *queries, REAL *weights,
                              int64_t *kept, REAL *received, REAL *scores, int64_t *members, int64_t *times,
                              int64_t *ages, int64_t slices) {
    DISPATCH(attention_forward, REAL_TAG, THE_WALK, hidden, inputs, shorts, longs, carried, (int)activation,
             (int)exponentials, factor, x, U, bias, W, A, B, v, initial, initial_cells, initial_macro, states, cells,
             gates, macro, keys, queries, weights, kept, received, scores, members, times, ages, (int)slices)
}

int EXPORT(attention_backward)(WALK, int64_t hidden, int64_t shorts, int64_t longs, int64_t carried, int64_t activation,
                               int64_t exponentials, double factor, const REAL *W, const REAL *A, const REAL *B,
                               const REAL *v, const REAL *initial_cells, const REAL *states, const REAL *cells,
                               const REAL *gates, const REAL *keys, const REAL *queries, const REAL *weights,
                               const int64_t *kept, const int64_t *ages, const REAL *cell_gradient,
                               const REAL *macro_gradient, REAL *d_states, REAL *deltas, REAL *d_keys, REAL *d_queries,
                               REAL *d_initial, REAL *d_initial_cells, REAL *d_initial_macro, REAL *d_v,
                               int64_t slices) {
    DISPATCH(attention_backward, REAL_TAG, THE_WALK, hidden, shorts, longs, carried, (int)activation, (int)exponentials,
             factor, W, A, B, v, initial_cells, states, cells, gates, keys, queries, weights, kept, ages, cell_gradient,
             macro_gradient, d_states, deltas, d_keys, d_queries, d_initial, d_initial_cells, d_initial_macro, d_v,
             (int)slices)
}

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
#undef EXPORT
#undef WALK
#undef THE_WALK
