/* Running slices of the batch on several threads.
 *
 * torch keeps its OpenMP threads spinning between operations, so a second pool would fight it for the cores: where torch's
 * runtime is loaded its own pool is used (GOMP_parallel, the entry point that compilers call). A forked child has no such
 * pool and would hang in it; there, and where no runtime is found, plain threads are started and joined.
 *
 * OpenMP waits for every thread of the pool, even one that came too late for any work because another program has its core.
 * That wait is milliseconds, longer than many a walk. When it turns out to be most of a call, the next calls do without.
 * Which thread runs a slice changes nothing in the results.
 */
typedef void (*slice_t)(void *job, int slice);

typedef struct {
    slice_t run;
    void *job;
    int slices;
    atomic_int next;
    _Atomic double finished; /* when the last slice was */
} team_t;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void work(void *argument) {
    team_t *team = argument;
    for (int slice; (slice = atomic_fetch_add(&team->next, 1)) < team->slices;) {
        team->run(team->job, slice);
        atomic_store(&team->finished, now());
    }
}

static void *work_thread(void *argument) {
    work(argument);
    return NULL;
}

typedef void (*parallel_t)(void (*)(void *), void *, unsigned, unsigned);
static atomic_int forked, alone, disappointments; /* alone: how many calls more to do without the pool */

static void mark_fork(void) { atomic_store(&forked, 1); }

__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(NULL, NULL, mark_fork); }

static void run_slices(slice_t run, void *job, int slices) {
    team_t team = {run, job, slices, 0, 0.0};
    if (slices == 1 || (atomic_load(&alone) > 0 && atomic_fetch_sub(&alone, 1) > 0)) {
        work(&team);
        return;
    }
    static _Atomic(parallel_t) found; /* torch is loaded before this library, so it is there at once or not at all */
    parallel_t parallel = atomic_load(&found);
    if (!parallel) atomic_store(&found, parallel = (parallel_t)dlsym(RTLD_DEFAULT, "GOMP_parallel"));
    if (parallel && !atomic_load(&forked)) {
        double start = now();
        parallel(work, &team, (unsigned)slices, 0);
        double wait = now() - atomic_load(&team.finished), call = now() - start;
        if (wait > 0.5e-3 && wait > 0.5 * call) { /* once may be chance; the pause grows with every time in a row */
            int times = atomic_fetch_add(&disappointments, 1);
            atomic_store(&alone, times ? 1 << at_most(times, 6) : 0);
        } else {
            atomic_store(&disappointments, 0);
        }
        return;
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
