/* A matrix rearranged for `product` (product.h), which then reads it from front to back. */
#ifndef ARRANGE_H
#define ARRANGE_H

#include "copy.h"

/* Columns in a block, at most: the rows of the result whose sums stay in registers. */
#if WIDTH == 16 /* 32 registers */
#define ROWS 8
#else /* 16 registers */
#define ROWS 6
#endif

/* One block of columns of A, which is K × M with these strides; arranged, block follows block, each
   K × (its columns). If A is part of a larger matrix with `depth` rows in all, `from` is its first
   row there. */
INLINE void arrange_block(
    const float *A, Index stride_k, Index stride_m, float *arranged, Index K, Index M, Index from,
    Index depth, Index block)
{
    Index blocks = block_count(M, ROWS), first = start_of(block, M, blocks);
    Index columns = start_of(block + 1, M, blocks) - first;
    const float *a = A + first * stride_m;
    float *to = arranged + first * depth + from * columns;
    if (stride_m == 1)
        copy_runs(to, columns, a, stride_k, K, columns);
    else
        for (Index k = 0; k < K; k++, a += stride_k)
            for (Index m = 0; m < columns; m++) *to++ = a[m * stride_m];
}

#endif
