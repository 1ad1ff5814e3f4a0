/* The set-up that all walks share: packed matrices, division of the batch among the threads, weight gradients. */
typedef struct {
    int packs; /* number of packed matrices */
    REAL *packed[4];
    sums_t sums;  /* of width 0 if the walk computes no weight gradients */
    int64_t room; /* numbers for each row of `room` in part_t */
} setup_t;

/* One slice of the batch: rows [first, last). */
typedef struct {
    int slice;
    int64_t first, last;
    REAL *const *packed;
    outer_t outer;     /* set only if the walk computes weight gradients */
    REAL *room;        /* for the previous states of a span in which rows begin anew; null without resets */
    REAL *d_bias;      /* set only if the walk computes bias gradients, otherwise null */
    atomic_int *codes; /* of all parts */
} part_t;

/* Computes all time steps of one part. Returns 0 or codes. */
typedef int (*run_part_t)(const void *arguments, part_t *part);

typedef struct {
    run_part_t run;
    const void *arguments;
    const setup_t *setup;
    const int64_t *bounds;
    int with_resets;
    atomic_int codes; /* bitwise or of the codes of all parts */
} walk_job_t;

static void walk_slice(void *argument, int slice) {
    walk_job_t *job = argument;
    const sums_t *sums = &job->setup->sums;
    part_t part = {.slice = slice,
                   .first = job->bounds[slice],
                   .last = job->bounds[slice + 1],
                   .packed = job->setup->packed,
                   .codes = &job->codes};
    int64_t rows = part.last - part.first;
    int code = sums->width && !outer_open(&part.outer, sums, slice, rows, job->with_resets) ? NO_MEMORY : 0;
    if (job->with_resets && !code && !(part.room = borrow_reals(rows * job->setup->room))) code = NO_MEMORY;
    if (sums->biases) part.d_bias = sums_bias(sums, slice);
    if (!code) code = job->run(job->arguments, &part);
    if (sums->width && !code) outer_flush(&part.outer);
    if (sums->width) outer_close(&part.outer);
    give_back(part.room);
    atomic_fetch_or(&job->codes, code);
}

/* Run `run` on all parts of the batch, add up the weight gradients, and free the packed matrices. */
static int run_walk(const walk_t *walk, int64_t slices, run_part_t run, const void *arguments, setup_t *setup) {
    int64_t bounds[slices + 1];
    balance(walk, slices, bounds);
    walk_job_t job = {run, arguments, setup, bounds, walk->resets != NULL, 0};
    int ready = 1;
    for (int k = 0; k < setup->packs; k++) ready = ready && setup->packed[k];
    ready = ready && (!setup->sums.width || sums_open(&setup->sums, slices));
    if (ready) run_slices(walk_slice, &job, (int)slices);
    if (ready && setup->sums.width) sums_close(&setup->sums);
    for (int k = 0; k < setup->packs; k++) give_back(setup->packed[k]);
    return ready ? atomic_load(&job.codes) : NO_MEMORY;
}
