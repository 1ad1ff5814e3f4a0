/* Recurrences over whole sequences on a CPU: plain C, without torch, without OpenMP at build time, called by ctypes.
 *
 * The threads divide the batch, not the matrix. Each thread computes all time steps of its rows and never waits for
 * another thread. The recurrent matrix is packed once per call into panels that stay in cache (product.h). The cells
 * are in elman.h, gru.h and lstm.h, attention over past states is in attention.h. Every source below is compiled for
 * each instruction set that the compiler supports, and for float and double; steadygrad_isa() selects one at run time.
 *
 * Python passes the arguments of a walk as one struct, whose fields all have 8 bytes: see native.call.
 */
#define _GNU_SOURCE
#ifdef __linux__
#include <malloc.h>
#endif
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#ifdef __x86_64__
#include <cpuid.h>
#endif

#define STEADYGRAD_ABI 12
#define JOIN3_(a, b, c) a##_##b##_##c
#define JOIN3(a, b, c) JOIN3_(a, b, c)
#define NAME(function) JOIN3(function, REAL_TAG, ISA)
#define INLINE static inline __attribute__((always_inline))

enum activation { MODRELU, TANH, RELU, IDENTITY, COMPLEX_MODRELU }; /* the last one only in elman.h */

enum reset { NO_RESET, RESET_BEFORE, RESET_AFTER }; /* in a GRU: U_c (r∘h), or r∘(U_c h + b_hn) */

enum { CELL, QUERIES, KEYS }; /* the packed matrices in attention.h */

enum stream_kind { ELMAN, HENAFF, GATED, GRU_BEFORE, GRU_AFTER, LINEAR }; /* of a level in stream.h; GATED is an LSTM */

/* Begins every stream: the functions for the instruction set and the floating-point type of its weights. */
typedef struct {
    void (*step)(void *stream, const void *x, void *y);
    void (*renew)(void *stream);
} stream_head_t;

/* What ends a call early: no memory, a query or key that is too large (attention.h), an exception of a signal handler
 * (interrupts.h). A call returns the bitwise or of these codes. */
enum code { NO_MEMORY = 1, TOO_LARGE = 2, INTERRUPTED = 4 };

INLINE int64_t at_most(int64_t a, int64_t b) { return a < b ? a : b; }
INLINE int64_t at_least(int64_t a, int64_t b) { return a > b ? a : b; }

#include "names.h"
#include "system.h"
#include "interrupts.h"
#include "walk.h"
#include "pool.h"
#include "threads.h"

#define ISA base
#define VECTOR_BYTES 16
#define TILE_ROWS 6
#include "cells.h"
#undef ISA
#undef VECTOR_BYTES
#undef TILE_ROWS

#if defined(__x86_64__)
#define HAVE_X86 1
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif
#define ISA avx2
#define VECTOR_BYTES 32
#define TILE_ROWS 6
#include "cells.h"
#undef ISA
#undef VECTOR_BYTES
#undef TILE_ROWS
#ifdef __clang__
#pragma clang attribute pop
#pragma clang attribute push(__attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,avx2,fma"))), \
                             apply_to = function)
#else
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx512f,avx512dq,avx512bw,avx512vl,avx2,fma,prefer-vector-width=512")
#endif
#define ISA avx512
#define VECTOR_BYTES 64
#define TILE_ROWS 12
#include "cells.h"
#undef ISA
#undef VECTOR_BYTES
#undef TILE_ROWS
#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif

static atomic_int chosen_isa = -1; /* 0 base, 1 avx2, 2 avx512 */
static int isa_limit = 2;

/* Not every compiler's runtime has the data of __builtin_cpu_supports, so this asks the processor itself, and whether
 * the operating system saves the vector registers (xgetbv). */
static int detected_isa(void) {
#ifdef HAVE_X86
    enum { AVX_SAVED = 0x6, AVX512_SAVED = 0xe6 };
    const uint32_t avx512 = bit_AVX512F | bit_AVX512DQ | bit_AVX512BW | bit_AVX512VL;
    uint32_t a, b, c, d, saved, high;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE) || !(c & bit_FMA)) return 0;
    __asm__("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(b & bit_AVX2) || (saved & AVX_SAVED) != AVX_SAVED) return 0;
    if ((b & avx512) == avx512 && (saved & AVX512_SAVED) == AVX512_SAVED) return (int)at_most(isa_limit, 2);
    return (int)at_most(isa_limit, 1);
#else
    return 0;
#endif
}

int steadygrad_abi(void) { return STEADYGRAD_ABI; }

/* Request large pages: page faults of 4 KiB each in new memory can cost a quarter of a whole forward pass. */
void steadygrad_advise(void *memory, int64_t bytes) {
    uintptr_t large = (uintptr_t)1 << 21, from = ((uintptr_t)memory + large - 1) & ~(large - 1);
    uintptr_t to = ((uintptr_t)memory + (uintptr_t)bytes) & ~(large - 1);
    if (from < to) request_large_pages((void *)from, to - from);
}

/* Return unused memory between the blocks of the heap to the system, where the C library can. */
void steadygrad_trim(void) {
#ifdef __GLIBC__
    malloc_trim(0);
#endif
}

int steadygrad_isa(void) {
    if (chosen_isa < 0) chosen_isa = detected_isa();
    return chosen_isa;
}

/* Use no instruction set above this one, even if the machine supports it. */
void steadygrad_limit_isa(int isa) {
    isa_limit = isa;
    chosen_isa = -1;
}

/* For tests: use a lower instruction set than the machine supports. Returns the one that is used from now on. */
int steadygrad_set_isa(int isa) {
    int best = detected_isa();
    chosen_isa = isa < 0 || isa > best ? best : isa;
    return chosen_isa;
}

#ifdef HAVE_X86
#define DISPATCH(function, tag, ...)                              \
    switch (steadygrad_isa()) {                                   \
        case 2: return JOIN3(function, tag, avx512)(__VA_ARGS__); \
        case 1: return JOIN3(function, tag, avx2)(__VA_ARGS__);   \
        default: return JOIN3(function, tag, base)(__VA_ARGS__);  \
    }
#else
#define DISPATCH(function, tag, ...) return JOIN3(function, tag, base)(__VA_ARGS__);
#endif

#define REAL float
#define REAL_TAG f32
#include "exports.h"
#undef REAL
#undef REAL_TAG
#define REAL double
#define REAL_TAG f64
#include "exports.h"

/* One step of a stream: from x, rows of inputs, to y, rows of outputs. */
void steadygrad_stream_step(stream_head_t *stream, const void *x, void *y) { stream->step(stream, x, y); }

/* To be called after the states of a stream have been changed from outside. */
void steadygrad_stream_renew(stream_head_t *stream) { stream->renew(stream); }

void steadygrad_stream_close(stream_head_t *stream) { disown(stream); }
