/* What differs between operating systems: Linux and macOS have POSIX, and on Windows mingw-w64 has its threads. */
#ifdef _WIN32
#include <malloc.h>

static void *allocate(size_t bytes) { return _aligned_malloc(bytes, 64); } /* aligned for vectors */
static void release(void *memory) { _aligned_free(memory); }
static void request_large_pages(void *memory, size_t bytes) { (void)memory, (void)bytes; }
static void call_in_forked_child(void (*handler)(void)) { (void)handler; }
static int in_main_thread(void) { return 0; } /* so a signal waits until the call ends */
static void *find_function(const char *name) { return (void)name, NULL; }

#else
#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/syscall.h>
#endif

static void *allocate(size_t bytes) { return aligned_alloc(64, bytes); }
static void release(void *memory) { free(memory); }

static void request_large_pages(void *memory, size_t bytes) {
#ifdef MADV_HUGEPAGE
    madvise(memory, bytes, MADV_HUGEPAGE); /* only a hint: a refusal has no effect */
#else
    (void)memory, (void)bytes;
#endif
}

static void call_in_forked_child(void (*handler)(void)) { pthread_atfork(NULL, NULL, handler); }

static int in_main_thread(void) {
#if defined(__linux__)
    return syscall(SYS_gettid) == getpid();
#elif defined(__APPLE__)
    return pthread_main_np();
#else
    return 0;
#endif
}

/* Return a function that another library of this process exports, or NULL. */
static void *find_function(const char *name) { return dlsym(RTLD_DEFAULT, name); }
#endif
