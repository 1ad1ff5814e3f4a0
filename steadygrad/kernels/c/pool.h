/* Scratch memory that is reused by later calls. Memory that malloc returned to the system would cost a page fault for
 * every page when it is allocated again. */
enum { BLOCKS = 8 };
static const size_t LARGEST_KEPT = (size_t)1 << 21;

typedef struct {
    void *memory;
    size_t bytes;
    int lent;
} block_t;

static atomic_int borrowed;         /* blocks in use by all threads */
static atomic_int failing_request;  /* for tests: 1 for the next request, 2 for the one after it; 0 for none */
static _Thread_local block_t *pool; /* BLOCKS entries; freed when the thread ends */
static pthread_key_t pool_key;

static void drop_pool(void *argument) {
    block_t *blocks = argument;
    for (int i = 0; i < BLOCKS; i++) release(blocks[i].memory);
    free(blocks);
}

__attribute__((constructor)) static void name_pool(void) { pthread_key_create(&pool_key, drop_pool); }

/* For tests: the number of blocks in use, and which of the next requests fails. The latter returns its previous value,
 * which is 0 if that request has failed. Both are part of every build, so that the tests run on the library that users
 * have. They cost two atomic operations for each request, and a call makes about ten requests for each thread. */
int steadygrad_borrowed(void) { return atomic_load(&borrowed); }
int steadygrad_fail_request(int number) { return atomic_exchange(&failing_request, number); }

static int request_fails(void) {
    int left = atomic_load(&failing_request);
    while (left > 0 && !atomic_compare_exchange_weak(&failing_request, &left, left - 1)) continue;
    return left == 1; /* of several threads, only one sees 1, and none counts below 0 */
}

/* Find a block of the pool for `bytes`, or return NULL: the smallest that is large enough, otherwise the largest. */
static block_t *free_block(size_t bytes) {
    if (!pool && !request_fails() && (pool = calloc(BLOCKS, sizeof(block_t)))) pthread_setspecific(pool_key, pool);
    block_t *found = NULL;
    for (int i = 0; pool && i < BLOCKS; i++) {
        block_t *block = &pool[i];
        if (block->lent) continue;
        int fits = block->bytes >= bytes,
            better = !found || (fits ? found->bytes < bytes || block->bytes < found->bytes
                                     : found->bytes < bytes && block->bytes > found->bytes);
        if (better) found = block;
    }
    return found;
}

/* Return at least `bytes` of scratch memory for this thread, aligned for vectors, or NULL if memory ran out. */
static void *borrow(size_t bytes) {
    bytes = (bytes + 64) / 64 * 64;
    block_t other = {0}, *block = bytes <= LARGEST_KEPT ? free_block(bytes) : NULL;
    if (!pool && bytes <= LARGEST_KEPT) return NULL; /* there was no memory for the pool itself */
    if (!block) block = &other;
    if (request_fails()) return NULL;
    if (block->bytes < bytes) {
        release(block->memory);
        block->memory = allocate(bytes);
        block->bytes = block->memory ? bytes : 0;
    }
    if (block->memory) block->lent = 1, atomic_fetch_add(&borrowed, 1);
    return block->memory;
}

/* Make memory from `borrow` available again, or free it if it is not part of the pool. */
static void give_back(void *memory) {
    if (!memory) return;
    atomic_fetch_sub(&borrowed, 1);
    for (int i = 0; pool && i < BLOCKS; i++)
        if (pool[i].memory == memory) {
            pool[i].lent = 0;
            return;
        }
    release(memory);
}

/* Return `bytes` of memory that outlives the call, aligned for vectors or, if there is much, for large pages. NULL if
 * memory ran out. It may be freed by any thread, with `disown`, and is counted like borrowed memory until then. */
static void *own(size_t bytes) {
    size_t apart = bytes > LARGEST_KEPT ? LARGEST_KEPT : 64, whole = (bytes + 2 * apart + 63) / 64 * 64;
    char *block = request_fails() ? NULL : allocate(whole);
    if (!block) return NULL;
    char *memory = block + apart - (uintptr_t)block % apart; /* at least 64 bytes behind `block` */
    ((void **)memory)[-1] = block;
    if (apart == LARGEST_KEPT) request_large_pages(memory, bytes);
    atomic_fetch_add(&borrowed, 1);
    return memory;
}

static void disown(void *memory) {
    atomic_fetch_sub(&borrowed, 1);
    release(((void **)memory)[-1]);
}

/* Parts of a block of memory. Without a block, only the size is counted. */
typedef struct {
    char *memory;
    size_t used;
} arena_t;

static void *arena_take(arena_t *arena, size_t bytes) {
    void *part = arena->memory ? arena->memory + arena->used : NULL;
    arena->used += (bytes + 63) / 64 * 64;
    return part;
}
