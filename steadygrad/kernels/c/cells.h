/* Includes all kernels for float and for double, for the instruction set that is being compiled. */
#define REAL float
#define REAL_TAG f32
#define INTEGER uint32_t
#include "product.h"
#include "mathematics.h"
#include "gemm.h"
#include "resets.h"
#include "weights.h"
#include "setup.h"
#include "exponential.h"
#include "elman.h"
#include "gru.h"
#include "lstm.h"
#include "attention.h"
#include "stream_levels.h"
#include "stream_memory.h"
#include "stream.h"
#undef REAL
#undef REAL_TAG
#undef INTEGER

#define REAL double
#define REAL_TAG f64
#define INTEGER uint64_t
#include "product.h"
#include "mathematics.h"
#include "gemm.h"
#include "resets.h"
#include "weights.h"
#include "setup.h"
#include "exponential.h"
#include "elman.h"
#include "gru.h"
#include "lstm.h"
#include "attention.h"
#include "stream_levels.h"
#include "stream_memory.h"
#include "stream.h"
#undef REAL
#undef REAL_TAG
#undef INTEGER
