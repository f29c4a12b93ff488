/* Vectors, and the lanes of a tile.

   Note [Lanes]
       A tile holds LANES independent copies of the feature tensor side by side: element i of copy
       b is at buffer[i * LANES + b]. A product over any mode is then made of multiplications of
       whole vectors by single numbers, whatever the sizes of the modes, and nothing is ever
       shuffled. The copies are neighbouring channels where the channels lie innermost in memory;
       where they do not, neighbouring images or channels, transposed on their way in and out.
*/
#ifndef LANES_H
#define LANES_H

#include <stddef.h>
#include <stdint.h>

/* Floats in a vector. Each width works on every processor; that of its own vectors is fast. */
#ifndef WIDTH
#if defined(__AVX512F__)
#define WIDTH 16
#elif defined(__AVX__)
#define WIDTH 8
#else
#define WIDTH 4
#endif
#endif

/* Two vectors side by side: enough independent sums for the latency of an addition. */
#define LANES (2 * WIDTH)

typedef int64_t Index;
typedef float Vector __attribute__((vector_size(4 * WIDTH), may_alias));
typedef float Unaligned __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias));

#define INLINE static inline __attribute__((always_inline))

/* For loops over registers, which the compiler must unroll. */
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 8")
#endif

INLINE Vector splat(float a) { return a - (Vector){0}; }

INLINE Index at_most(Index a, Index b) { return a < b ? a : b; }

/* How many parts n is cut into if each has at most so many. */
INLINE Index block_count(Index n, Index most) { return (n + most - 1) / most; }

/* Where part i starts if n is cut into parts as equal as possible, the larger ones first. */
INLINE Index start_of(Index i, Index n, Index parts)
{
    return i * (n / parts) + at_most(i, n % parts);
}

#endif
