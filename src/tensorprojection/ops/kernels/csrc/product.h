/* The product of a matrix and a tile, in the cache or in the tensor.

   Note [Blocks of registers]
       The result is cut into blocks whose sums stay in registers, as evenly as possible: 14 rows
       are 5 + 5 + 4, not 6 + 6 + 2. The size of a block is a constant to the compiler in every case
       of the switch, so that the loops over it vanish.
*/
#ifndef PRODUCT_H
#define PRODUCT_H

#include "arrange.h"
#include "prefetch.h"

/* Long sums are cut so that what they read stays in the innermost cache. */
#define DEPTH 256

INLINE void product_rows(
    const int rows, const float *a, const float *b, Index b_row, float *c, Index c_row, Index depth,
    int add)
{
    Vector sum[ROWS][2];
    UNROLL for (int r = 0; r < rows; r++) {
        sum[r][0] = add ? *(Unaligned *)(c + r * c_row) : (Unaligned){0};
        sum[r][1] = add ? *(Unaligned *)(c + r * c_row + WIDTH) : (Unaligned){0};
    }
    for (Index k = 0; k < depth; k++, a += rows, b += b_row) {
        Vector b0 = *(const Unaligned *)b, b1 = *(const Unaligned *)(b + WIDTH);
        UNROLL for (int r = 0; r < rows; r++) {
            Vector s = splat(a[r]);
            sum[r][0] += s * b0;
            sum[r][1] += s * b1;
        }
    }
    UNROLL for (int r = 0; r < rows; r++) {
        *(Unaligned *)(c + r * c_row) = sum[r][0];
        *(Unaligned *)(c + r * c_row + WIDTH) = sum[r][1];
    }
}

/* C[o][m][i] = sum over k of A[k][m] B[o][k][i], or that added to C, for A of K × M, arranged, and
   i < n. Each element of B and C is LANES numbers, at a distance of `b_stride` and `stride`. */
static void product(
    const float *A, const float *B, Index b_stride, float *C, Index stride, Index outer, Index K,
    Index M, Index n, int add, Prefetch *prefetch)
{
    /* A division takes as long as a dozen vector operations; these are the only ones. */
    Index blocks = block_count(M, ROWS), least = M / blocks, larger = M % blocks;
    for (Index k = 0; k < K; k += DEPTH) {
        Index depth = at_most(K - k, DEPTH);
        int to_add = add || k > 0;
        for (Index o = 0; o < outer; o++)
            for (Index i = 0, first = 0, rows; i < blocks; i++, first += rows) {
                rows = least + (i < larger);
                const float *a = A + first * K + k * rows, *b = B + (o * K + k) * n * b_stride;
                float *c = C + (o * M + first) * n * stride;
#define CASE(R) \
    case R: \
        for (Index j = 0; j < n; j++) { \
            prefetch_some(prefetch); \
            product_rows( \
                R, a, b + j * b_stride, n * b_stride, c + j * stride, n * stride, depth, to_add); \
        } \
        break;
                switch (rows) {
                    CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6)
#if ROWS > 6
                    CASE(7) CASE(8)
#endif
                }
#undef CASE
            }
    }
}

#endif
