/* Calls the walks of several kernels from several threads at once, for ThreadSanitizer: see tests/sanitize.py.
 *
 * Each call divides its batch among threads of its own. There is no OpenMP here, so the library starts plain pthreads.
 * The exit code is 1 if two threads got different numbers. */
#include "../steadygrad/kernels/c/steadygrad.c"

#undef REAL
#undef REAL_TAG
#define REAL float
#define REAL_TAG f32
#define ISA base

enum { STEPS = 12, BATCH = 6, HIDDEN = 20, INPUTS = 3, SLICES = 3, CALLERS = 4, ROUNDS = 3, SHORTS = 3, LONGS = 2 };
enum { ROWS = 60, CARRIED = BATCH * (SHORTS + LONGS), WIDE = 4 * HIDDEN, ARRAY = 8 * 1024 };
static const int64_t offsets[STEPS + 1] = {0, 6, 12, 18, 24, 30, 36, 42, 47, 51, 55, 58, 60};

/* Arrays that are all large enough for any argument: some with numbers, the others zero. */
typedef struct {
    REAL given[12][ARRAY], found[16][ARRAY];
    int64_t kept[ROWS * LONGS], members[BATCH * LONGS], times[BATCH * LONGS], ages[BATCH], before[BATCH];
} arrays_t;

static void fill(arrays_t *a) {
    memset(a, 0, sizeof *a);
    for (int k = 0; k < 12; k++)
        for (int i = 0; i < ARRAY; i++) a->given[k][i] = (REAL)(0.2 * sin(1.0 + k + 0.37 * i));
    for (int b = 0; b < BATCH; b++)
        for (int r = 0; r < LONGS; r++) a->members[b * LONGS + r] = ROWS + b * (SHORTS + LONGS) + SHORTS + r;
}

static int cells(arrays_t *a, int64_t reverse) {
    walk_t walk = {STEPS, BATCH, offsets, reverse};
    REAL(*g)[ARRAY] = a->given, (*f)[ARRAY] = a->found;
    elman_forward_t elman = {walk, HIDDEN, INPUTS, TANH, g[0], g[1], g[2], g[3], g[4], f[0], SLICES};
    elman_backward_t elman_back = {walk, HIDDEN, INPUTS, TANH, g[5], g[0], f[0], NULL,
                                   g[3], g[4],   f[1],   f[2], f[3], f[4], f[5], SLICES};
    gru_forward_t gru = {walk, HIDDEN, INPUTS, TANH, g[0], g[1], g[2], g[3], NULL, NULL, g[4], f[6], f[7], NULL, SLICES};
    gru_backward_t gru_back = {walk, HIDDEN, INPUTS, TANH, g[5], g[0], f[6], f[7],  NULL,
                               g[3], g[4],   f[1],   f[2], f[3], f[4], f[5], SLICES};
    lstm_forward_t lstm = {walk, HIDDEN, INPUTS, g[0], g[1], g[2], g[3], g[4], g[6], f[8], f[9], f[10], SLICES};
    lstm_backward_t lstm_back = {walk, HIDDEN, INPUTS, g[5], NULL, g[0], f[8], f[9],  f[10], g[3],
                                 g[4], g[6],   NULL,   f[1], f[2], f[3], f[4], f[11], f[12], SLICES};
    return steadygrad_elman_forward_f32(&elman) | steadygrad_elman_backward_f32(&elman_back) |
           steadygrad_gru_forward_f32(&gru) | steadygrad_gru_backward_f32(&gru_back) |
           steadygrad_lstm_forward_f32(&lstm) | steadygrad_lstm_backward_f32(&lstm_back);
}

static int attention(arrays_t *a, int64_t reverse) {
    walk_t walk = {STEPS, BATCH, offsets, reverse};
    memory_t memory = {SHORTS, LONGS, SHORTS};
    REAL(*g)[ARRAY] = a->given, (*f)[ARRAY] = a->found;
    attention_forward_t forward = {.walk = walk,
                                   .hidden = HIDDEN,
                                   .inputs = INPUTS,
                                   .memory = memory,
                                   .activation = TANH,
                                   .exponentials = 1,
                                   .factor = 0.5,
                                   .x = g[0],
                                   .U = g[1],
                                   .bias = g[2],
                                   .W = g[3],
                                   .A = g[4],
                                   .B = g[5],
                                   .v = g[6],
                                   .initial = g[7],
                                   .initial_macro = g[8],
                                   .states = f[0],
                                   .macro = f[1],
                                   .keys = f[2],
                                   .queries = f[3],
                                   .weights = f[4],
                                   .kept = a->kept,
                                   .received = f[5],
                                   .scores = f[6],
                                   .members = a->members,
                                   .times = a->times,
                                   .ages = a->ages,
                                   .slices = SLICES};
    attention_backward_t backward = {.walk = walk,
                                     .hidden = HIDDEN,
                                     .memory = memory,
                                     .activation = TANH,
                                     .exponentials = 1,
                                     .factor = 0.5,
                                     .W = g[3],
                                     .A = g[4],
                                     .B = g[5],
                                     .v = g[6],
                                     .states = f[0],
                                     .keys = f[2],
                                     .queries = f[3],
                                     .weights = f[4],
                                     .kept = a->kept,
                                     .ages = a->before,
                                     .d_states = f[7],
                                     .deltas = f[8],
                                     .d_keys = f[9],
                                     .d_queries = f[10],
                                     .d_initial = f[11],
                                     .d_initial_macro = f[12],
                                     .d_v = f[13],
                                     .slices = SLICES};
    return steadygrad_attention_forward_f32(&forward) | steadygrad_attention_backward_f32(&backward);
}

static int products(arrays_t *a) {
    enum { M = 40, N = 30, K = 20, SIZE = 24 };
    REAL(*g)[ARRAY] = a->given, (*f)[ARRAY] = a->found;
    return steadygrad_gemm_f32(M, N, K, 1.0, g[0], K, 1, g[1], N, 1, f[0], N, 0, SLICES) |
           steadygrad_exponential_forward_f32(SIZE, g[2], g[3], g[4], f[1], f[2], f[3], f[4], SLICES) |
           steadygrad_exponential_backward_f32(SIZE, g[2], g[5], g[3], f[2], f[3], f[4], f[5], SLICES);
}

static int streams(arrays_t *a) {
    REAL(*g)[ARRAY] = a->given, *h = a->found[14], *y = a->found[15];
    int64_t oldest = 0;
    void *stream;
    stream_level_t level = {.kind = GATED,
                            .hidden = HIDDEN,
                            .inputs = INPUTS,
                            .activation = TANH,
                            .W = g[1],
                            .bias = g[2],
                            .U = g[3],
                            .h = h,
                            .c = h + HIDDEN,
                            .oldest = &oldest};
    int code = steadygrad_stream_open_f32(&level, 1, 1, (int64_t)(uintptr_t)&stream);
    if (code) return code;
    for (int t = 0; t < STEPS; t++) steadygrad_stream_step(stream, g[0] + t * INPUTS, y + t * HIDDEN);
    steadygrad_stream_close(stream);
    return 0;
}

static void *caller(void *argument) {
    arrays_t *arrays = argument;
    int codes = 0;
    for (int round = 0; round < ROUNDS; round++) {
        fill(arrays);
        codes |= cells(arrays, round % 2);
        fill(arrays);
        codes |= products(arrays);
        fill(arrays);
        codes |= attention(arrays, round % 2);
        codes |= streams(arrays);
    }
    return codes ? NULL : arrays;
}

int main(void) {
    pthread_t threads[CALLERS];
    arrays_t *arrays = calloc(CALLERS, sizeof(arrays_t));
    int wrong = !arrays;
    for (int k = 0; k < CALLERS && arrays; k++) pthread_create(&threads[k], NULL, caller, &arrays[k]);
    for (int k = 0; k < CALLERS && arrays; k++) {
        void *ended;
        pthread_join(threads[k], &ended);
        wrong |= !ended || memcmp(arrays[0].found, arrays[k].found, sizeof arrays[0].found);
    }
    free(arrays);
    return wrong || steadygrad_borrowed();
}
