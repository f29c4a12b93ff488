/* Sums of outer products of two tiles; see Note [Blocks of registers] in product.h. */
#ifndef OUTER_H
#define OUTER_H

#include "lanes.h"

#if WIDTH == 16 /* 32 registers */
#define OUTER_ROWS 6
#define OUTER_COLUMNS 4
#else /* 16 registers */
#define OUTER_ROWS 4
#define OUTER_COLUMNS 3
#endif

INLINE void outer_block(
    const int rows, const int columns, const float *X, Index x_stride, Index x_outer, const float *Z,
    Index z_stride, Index z_outer, Index outer, Index n, Vector *D, Index q)
{
    Vector sum[OUTER_ROWS][OUTER_COLUMNS];
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int s = 0; s < columns; s++) sum[r][s] = D[r * q + s];
    for (Index o = 0; o < outer; o++, X += x_outer, Z += z_outer) {
        for (Index j = 0; j < n; j++)
            UNROLL for (int h = 0; h < LANES; h += WIDTH) {
                Vector z[OUTER_COLUMNS];
                UNROLL for (int s = 0; s < columns; s++)
                    z[s] = *(const Unaligned *)(Z + (s * n + j) * z_stride + h);
                UNROLL for (int r = 0; r < rows; r++) {
                    Vector x = *(const Unaligned *)(X + (r * n + j) * x_stride + h);
                    UNROLL for (int s = 0; s < columns; s++) sum[r][s] += x * z[s];
                }
            }
    }
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int s = 0; s < columns; s++) D[r * q + s] = sum[r][s];
}

/* D[i][k] += sum over o and n of X[o][i][n] Z[o][k][n]. Each element of D is a vector of partial
   sums: what lies at position v of a vector in X and Z is added at position v. */
static void accumulate_outer(
    const float *X, Index x_stride, const float *Z, Index z_stride, Index outer, Index p, Index q,
    Index n, Vector *D)
{
    Index bands = block_count(p, OUTER_ROWS), blocks = block_count(q, OUTER_COLUMNS);
    Index least_rows = p / bands, larger_rows = p % bands;
    Index least_columns = q / blocks, larger_columns = q % blocks;
    for (Index i = 0, r = 0, rows; i < bands; i++, r += rows) {
        rows = least_rows + (i < larger_rows);
        for (Index k = 0, s = 0, columns; k < blocks; k++, s += columns) {
            columns = least_columns + (k < larger_columns);
#define CASE(R, S) \
    case 8 * (R) + (S): \
        outer_block(R, S, X + r * n * x_stride, x_stride, p * n * x_stride, \
                    Z + s * n * z_stride, z_stride, q * n * z_stride, outer, n, D + r * q + s, q); \
        break;
#define CASES(R) CASE(R, 1) CASE(R, 2) CASE(R, 3)
            switch (8 * rows + columns) {
                CASES(1) CASES(2) CASES(3) CASES(4)
#if OUTER_ROWS > 4
                CASES(5) CASES(6)
                CASE(1, 4) CASE(2, 4) CASE(3, 4) CASE(4, 4) CASE(5, 4) CASE(6, 4)
#endif
            }
#undef CASES
#undef CASE
        }
    }
}

#endif
