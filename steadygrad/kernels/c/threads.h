/* Running slices of the batch on several threads.
 *
 * torch keeps its OpenMP threads spinning between operations, so a second pool would fight it for the cores: where torch's
 * runtime is loaded its own pool is used (GOMP_parallel, the entry point that compilers call). A forked child has no such
 * pool and would hang in it; there, and where no runtime is found, plain threads are started and joined.
 */
typedef void (*slice_t)(void *job, int slice);

typedef struct {
    slice_t run;
    void *job;
    int slices;
    atomic_int next;
} team_t;

static void work(void *argument) {
    team_t *team = argument;
    for (int slice; (slice = atomic_fetch_add(&team->next, 1)) < team->slices;) team->run(team->job, slice);
}

static void *work_thread(void *argument) {
    work(argument);
    return NULL;
}

typedef void (*parallel_t)(void (*)(void *), void *, unsigned, unsigned);
static atomic_int forked;

static void mark_fork(void) { atomic_store(&forked, 1); }

__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(NULL, NULL, mark_fork); }

static void run_slices(slice_t run, void *job, int slices) {
    team_t team = {run, job, slices, 0};
    if (slices > 1 && !atomic_load(&forked)) {
        parallel_t parallel = (parallel_t)dlsym(RTLD_DEFAULT, "GOMP_parallel");
        if (parallel) {
            parallel(work, &team, (unsigned)slices, 0);
            return;
        }
    }
    enum { MOST = 256 };
    pthread_t helpers[MOST];
    int started = 0;
    while (started + 1 < slices && started < MOST && !pthread_create(&helpers[started], NULL, work_thread, &team)) started++;
    work(&team); /* takes over whatever no helper could be started for */
    while (started) pthread_join(helpers[--started], NULL);
}

/* Slice boundaries so that each holds about the same number of rows summed over time. */
static void balance(const walk_t *walk, int slices, int64_t *bounds) {
    int64_t total = walk->offsets[walk->steps] - walk->offsets[0], done = 0, t = walk->steps;
    int slice = 1;
    bounds[0] = 0;
    for (int64_t row = 0; row < walk->batch; row++) {
        while (t > 0 && rows_at(walk, t - 1) <= row) t--; /* t is now the length of this row's sequence */
        done += t;
        while (slice < slices && done * slices >= total * slice) bounds[slice++] = row + 1;
    }
    while (slice <= slices) bounds[slice++] = walk->batch;
}
