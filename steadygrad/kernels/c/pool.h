/* Scratch memory that is reused by later calls. Memory that malloc returned to the system would cost a page fault for
 * every page when it is allocated again. */
enum { BLOCKS = 8 };
static const size_t LARGEST_KEPT = (size_t)1 << 21;

typedef struct {
    void *memory;
    size_t bytes;
    int lent;
} block_t;

static _Thread_local block_t *pool; /* BLOCKS entries; freed when the thread ends */
static pthread_key_t pool_key;

static void drop_pool(void *argument) {
    block_t *blocks = argument;
    for (int i = 0; i < BLOCKS; i++) free(blocks[i].memory);
    free(blocks);
}

__attribute__((constructor)) static void name_pool(void) { pthread_key_create(&pool_key, drop_pool); }

/* Return at least `bytes` of scratch memory for this thread, aligned for vectors, or NULL if memory ran out. */
static void *borrow(size_t bytes) {
    bytes = (bytes + 64) / 64 * 64;
    if (!pool && bytes <= LARGEST_KEPT && (pool = calloc(BLOCKS, sizeof(block_t)))) pthread_setspecific(pool_key, pool);
    block_t *found = NULL;
    for (int i = 0; pool && bytes <= LARGEST_KEPT && i < BLOCKS; i++) {
        block_t *block = &pool[i];
        if (block->lent) continue;
        int fits = block->bytes >= bytes,
            better = !found || (fits ? found->bytes < bytes || block->bytes < found->bytes
                                     : found->bytes < bytes && block->bytes > found->bytes);
        if (better) found = block;
    }
    if (!found) return aligned_alloc(64, bytes);
    if (found->bytes < bytes) {
        free(found->memory);
        found->memory = aligned_alloc(64, bytes);
        found->bytes = found->memory ? bytes : 0;
    }
    found->lent = found->memory != NULL;
    return found->memory;
}

/* Make memory from `borrow` available again, or free it if it is not part of the pool. */
static void give_back(void *memory) {
    for (int i = 0; pool && memory && i < BLOCKS; i++)
        if (pool[i].memory == memory) {
            pool[i].lent = 0;
            return;
        }
    free(memory);
}
