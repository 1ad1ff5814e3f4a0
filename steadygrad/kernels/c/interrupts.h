/* Signals that arrive during a long call.
 *
 * Python runs a signal handler between two instructions of its main thread, so not while that thread is inside a C
 * function. Therefore a long call lets Python run pending handlers, every `BETWEEN_POLLS` seconds. If a handler raises
 * an exception, as that of Ctrl-C does, all threads of the call stop and the call returns INTERRUPTED. Then
 * steadygrad_raise raises the exception in Python. If no handler raises, the call continues.
 *
 * This library is not linked with Python: steadygrad_use_python receives the functions that it needs. */
typedef struct {
    int (*lock)(void); /* PyGILState_Ensure */
    void (*unlock)(int);
    int (*run_handlers)(void);                /* PyErr_CheckSignals: not 0 if a handler raised an exception */
    void (*fetch)(void **, void **, void **); /* take over the exception */
    void (*restore)(void *, void *, void *);  /* raise it */
} python_t;

static python_t python; /* null pointers without Python */
static void *raised[3]; /* the exception of a handler; only the main thread has handlers */
static const double BETWEEN_POLLS = 0.05;

void steadygrad_use_python(const python_t *functions) { python = *functions; }

void steadygrad_raise(void) { python.restore(raised[0], raised[1], raised[2]); }

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* Run the pending signal handlers, if this is the main thread of Python. Returns 1 if one raised an exception. */
static int poll_signals(void) {
    if (!python.lock || !in_main_thread()) return 0;
    int state = python.lock(), stop = python.run_handlers() != 0;
    if (stop) python.fetch(&raised[0], &raised[1], &raised[2]);
    python.unlock(state);
    return stop;
}

/* One thread's share of a call. It looks at the clock after every `every` steps, which is about once a millisecond. */
typedef struct {
    atomic_int *codes; /* of all threads of the call; all of them stop if it is not 0 */
    int64_t every, left;
    double looked, polled; /* times; 0 before the first look */
} watch_t;

static __attribute__((noinline)) int look(watch_t *watch) {
    double time = now(), passed = time - watch->looked;
    if (!watch->polled) watch->polled = time, watch->every = 1;
    else if (passed < 1e-3) watch->every *= 2;
    else if (passed > 4e-3) watch->every = at_least(1, watch->every / 2);
    watch->looked = time;
    watch->left = watch->every;
    if (time - watch->polled > BETWEEN_POLLS) {
        watch->polled = time;
        if (poll_signals()) atomic_fetch_or(watch->codes, INTERRUPTED);
    }
    return atomic_load(watch->codes) != 0;
}

/* Returns whether the thread must stop; called before each step. */
INLINE int must_stop(watch_t *watch) { return --watch->left < 0 && look(watch); }
