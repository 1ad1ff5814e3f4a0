/* exp(A) ≈ B₁ + (B₂ + E) E,  E = B₃ + B₄²,  Bⱼ = Σₖ table[j][k] Aᵏ (k ≤ 3),  for skew-symmetric A; and its gradient.
 *
 * matrices/exponential.py explains the scheme, and kernels/exponential.py computes the same with torch. */
typedef struct {
    int64_t n;
    int slices;
    const REAL *table; /* 4 × 4 */
    const REAL *G, *A, *A2, *A3;
    REAL *B[4];
} exponential_t;

static void exponential_gemm(const exponential_t *job, const REAL *a, int a_transposed, const REAL *b, int b_transposed,
                             REAL *c, int accumulate, int *codes) {
    int64_t n = job->n;
    if (*codes) return;
    *codes = NAME(gemm)(n, n, n, 1.0, a, a_transposed ? 1 : n, a_transposed ? n : 1, b, b_transposed ? 1 : n,
                        b_transposed ? n : 1, c, n, accumulate, job->slices);
}

#define MY_ROWS int64_t n = job->n, first = n * slice / job->slices, last = n * (slice + 1) / job->slices

/* Compute B₁ … B₄ from A, A², A³. */
static void exponential_combine(void *argument, int slice) {
    exponential_t *job = argument;
    MY_ROWS;
    for (int j = 0; j < 4; j++) {
        REAL c0 = job->table[4 * j], c1 = job->table[4 * j + 1], c2 = job->table[4 * j + 2], c3 = job->table[4 * j + 3];
        for (int64_t k = first * n; k < last * n; k++)
            job->B[j][k] = c1 * job->A[k] + c2 * job->A2[k] + c3 * job->A3[k];
        for (int64_t i = first; i < last; i++) job->B[j][i * n + i] += c0;
    }
}

static void exponential_add(void *argument, int slice) { /* S = B₂ + E */
    exponential_t *job = argument;
    MY_ROWS;
    for (int64_t k = first * n; k < last * n; k++) job->B[1][k] += job->B[2][k];
}

/* Compute X = exp(A), S, E and B₄. Before their final values X, S and E hold B₁, B₂ and B₃. */
static int NAME(exponential_forward)(int64_t n, const REAL *table, const REAL *A, const REAL *A2, REAL *X, REAL *S,
                                     REAL *E, REAL *B4, int slices) {
    REAL *A3 = borrow((size_t)(n * n) * sizeof(REAL));
    if (!A3) return NO_MEMORY;
    exponential_t job = {.n = n, .slices = slices, .table = table, .A = A, .A2 = A2, .A3 = A3, .B = {X, S, E, B4}};
    int codes = 0;
    exponential_gemm(&job, A2, 0, A, 0, A3, 0, &codes);
    run_slices(exponential_combine, &job, slices);
    exponential_gemm(&job, B4, 0, B4, 0, E, 1, &codes);
    run_slices(exponential_add, &job, slices);
    exponential_gemm(&job, S, 0, E, 0, X, 1, &codes);
    give_back(A3);
    return codes;
}

/* Compute dA, dA², dA³ from G and the gradients of B₂, B₃, B₄. They are stored in B[0] … B[2], two of them in place. */
static void exponential_gather(void *argument, int slice) {
    exponential_t *job = argument;
    MY_ROWS;
    const REAL *t = job->table;
    for (int64_t k = first * n; k < last * n; k++) {
        REAL b1 = job->G[k], b2 = job->B[1][k], b3 = job->B[2][k], b4 = job->B[3][k];
        job->B[0][k] = t[1] * b1 + t[5] * b2 + t[9] * b3 + t[13] * b4;
        job->B[1][k] = t[2] * b1 + t[6] * b2 + t[10] * b3 + t[14] * b4;
        job->B[2][k] = t[3] * b1 + t[7] * b2 + t[11] * b3 + t[15] * b4;
    }
}

#define EACH_BLOCK(body)                                                 \
    for (int64_t from = first; from < last; from += 32)                  \
        for (int64_t left = 0; left < n; left += 32)                     \
            for (int64_t i = from; i < at_most(last, from + 32); i++)    \
                for (int64_t j = left; j < at_most(n, left + 32); j++) { \
                    int64_t here = i * n + j, there = j * n + i;         \
                    body                                                 \
                }

static void exponential_skew(void *argument, int slice) { /* K, the skew part of dA³ */
    exponential_t *job = argument;
    MY_ROWS;
    EACH_BLOCK(job->B[3][here] = (job->B[2][here] - job->B[2][there]) / 2;)
}

static void exponential_last_factor(void *argument, int slice) { /* Y − 2 sym(dA² − Yᵀ); job->A3 holds Y */
    exponential_t *job = argument;
    MY_ROWS;
    EACH_BLOCK(job->B[2][here] = 2 * job->A3[here] + job->A3[there] - job->B[1][here] - job->B[1][there];)
}

/* Compute dA. Only its skew-symmetric part is meaningful. */
static int NAME(exponential_backward)(int64_t n, const REAL *table, const REAL *G, const REAL *A, const REAL *S,
                                      const REAL *E, const REAL *B4, REAL *dA, int slices) {
    REAL *scratch[4];
    int codes = 0;
    for (int k = 0; k < 4; k++)
        if (!(scratch[k] = borrow((size_t)(n * n) * sizeof(REAL)))) codes = NO_MEMORY;
    if (!codes) {
        REAL *dS = scratch[0], *dE = scratch[1], *dB4 = scratch[2], *Y = scratch[3];
        exponential_t job = {.n = n, .slices = slices, .table = table, .G = G, .A3 = Y, .B = {dA, dS, dE, dB4}};
        exponential_gemm(&job, G, 0, E, 1, dS, 0, &codes);
        memcpy(dE, dS, (size_t)(n * n) * sizeof(REAL));
        exponential_gemm(&job, S, 1, G, 0, dE, 1, &codes);
        exponential_gemm(&job, dE, 0, B4, 1, dB4, 0, &codes);
        exponential_gemm(&job, B4, 1, dE, 0, dB4, 1, &codes);
        run_slices(exponential_gather, &job, slices);
        run_slices(exponential_skew, &job, slices);
        exponential_gemm(&job, A, 0, dB4, 0, Y, 0, &codes);
        run_slices(exponential_last_factor, &job, slices);
        exponential_gemm(&job, A, 0, dE, 0, dA, 1, &codes);
    }
    for (int k = 0; k < 4; k++) give_back(scratch[k]);
    return codes;
}
#undef MY_ROWS
#undef EACH_BLOCK
