/* Runs slices of the batch on several threads.
 *
 * torch keeps its OpenMP threads spinning between operations, so a second pool would compete with it for the cores.
 * Therefore torch's own pool is used if its runtime is loaded (GOMP_parallel, the entry point that compilers call). A
 * forked child process has no such pool and would hang. There, and if no runtime is found, pthreads are started and
 * joined.
 *
 * OpenMP waits for every thread of the pool, even for a thread that found no work left because another program occupied
 * its core. This wait takes milliseconds, longer than many kernel calls. If the wait is most of a call, the next calls
 * run without the pool. The results do not depend on which thread runs a slice.
 */
typedef void (*slice_t)(void *job, int slice);

typedef struct {
    slice_t run;
    void *job;
    int slices;
    atomic_int next;
    _Atomic double finished; /* time at which the last slice was finished */
} team_t;

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
static atomic_int forked;
static atomic_int calls_without_pool; /* number of calls still to run without the pool */
static atomic_int slow_waits;         /* long waits for the pool in a row */

static void mark_fork(void) { atomic_store(&forked, 1); }

__attribute__((constructor)) static void watch_forks(void) { call_in_forked_child(mark_fork); }

static void run_slices(slice_t run, void *job, int slices) {
    team_t team = {run, job, slices, 0, 0.0};
    if (slices == 1 || (atomic_load(&calls_without_pool) > 0 && atomic_fetch_sub(&calls_without_pool, 1) > 0)) {
        work(&team);
        return;
    }
    static _Atomic(parallel_t) found; /* torch is loaded before this library, so the function exists now or never */
    parallel_t parallel = atomic_load(&found);
    if (!parallel) atomic_store(&found, parallel = (parallel_t)find_function("GOMP_parallel"));
    if (parallel && !atomic_load(&forked)) {
        double start = now();
        parallel(work, &team, (unsigned)slices, 0);
        double wait = now() - atomic_load(&team.finished), call = now() - start;
        if (wait > 0.5e-3 && wait > 0.5 * call) { /* the first is ignored; then the pause doubles */
            int times = atomic_fetch_add(&slow_waits, 1);
            atomic_store(&calls_without_pool, times ? 1 << at_most(times, 6) : 0);
        } else {
            atomic_store(&slow_waits, 0);
        }
        return;
    }
    enum { MOST = 256 };
    pthread_t helpers[MOST];
    int started = 0;
    while (started + 1 < slices && started < MOST && !pthread_create(&helpers[started], NULL, work_thread, &team))
        started++;
    work(&team); /* also runs the slices for which no thread could be started */
    while (started) pthread_join(helpers[--started], NULL);
}
