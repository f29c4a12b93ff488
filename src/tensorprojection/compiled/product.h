/* The two products that everything is made of, on tiles in the cache.

   Note [Blocks of registers]
       Each is cut into blocks whose sums stay in registers, as evenly as possible: 14 rows are
       5 + 5 + 4, not 6 + 6 + 2. The block's size is a constant to the compiler in every case of
       the switch, so its loops vanish.
*/
#ifndef PRODUCT_H
#define PRODUCT_H

#include "lanes.h"

#if WIDTH == 16 /* 32 registers */
#define ROWS 8
#define CONTRACT_ROWS 6
#define CONTRACT_COLUMNS 4
#else /* 16 registers */
#define ROWS 6
#define CONTRACT_ROWS 4
#define CONTRACT_COLUMNS 3
#endif

/* Block i of n in `blocks` parts as equal as possible: where it starts. */
INLINE Index start_of(Index i, Index n, Index blocks) { return i * n / blocks; }

INLINE void product_rows(
    const int rows, const float *A, Index M, const float *b, Index ldb, float *c, Index ldc, Index K)
{
    Vector sum[ROWS][2];
    UNROLL for (int r = 0; r < rows; r++) sum[r][0] = sum[r][1] = (Vector){0};
    for (Index k = 0; k < K; k++) {
        Vector b0 = *(const Vector *)(b + k * ldb), b1 = *(const Vector *)(b + k * ldb + WIDTH);
        UNROLL for (int r = 0; r < rows; r++) {
            Vector a = splat(A[k * M + r]);
            sum[r][0] += a * b0;
            sum[r][1] += a * b1;
        }
    }
    UNROLL for (int r = 0; r < rows; r++) {
        *(Vector *)(c + r * ldc) = sum[r][0];
        *(Vector *)(c + r * ldc + WIDTH) = sum[r][1];
    }
}

/* C[m][:] = sum over k of A[k][m] B[k][:], for A of K × M and rows of n, a multiple of LANES. */
static void product(const float *A, const float *B, float *C, Index K, Index M, Index n)
{
    Index blocks = (M + ROWS - 1) / ROWS;
    for (Index i = 0; i < blocks; i++) {
        Index first = start_of(i, M, blocks), rows = start_of(i + 1, M, blocks) - first;
        const float *a = A + first;
        float *c = C + first * n;
#define CASE(R) \
    case R: \
        for (Index j = 0; j < n; j += LANES) product_rows(R, a, M, B + j, n, c + j, n, K); \
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

INLINE void contract_block(
    const int rows, const int columns, const float *X, Index x_outer, const float *Z, Index z_outer,
    Index outer, Index n, Vector *D, Index q)
{
    Vector sum[CONTRACT_ROWS][CONTRACT_COLUMNS];
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int s = 0; s < columns; s++) sum[r][s] = D[r * q + s];
    for (Index o = 0; o < outer; o++, X += x_outer, Z += z_outer) {
        for (Index j = 0; j < n; j += WIDTH) {
            Vector z[CONTRACT_COLUMNS];
            UNROLL for (int s = 0; s < columns; s++) z[s] = *(const Vector *)(Z + s * n + j);
            UNROLL for (int r = 0; r < rows; r++) {
                Vector x = *(const Vector *)(X + r * n + j);
                UNROLL for (int s = 0; s < columns; s++) sum[r][s] += x * z[s];
            }
        }
    }
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int s = 0; s < columns; s++) D[r * q + s] = sum[r][s];
}

/* D[i][k] += sum over o and n of X[o][i][n] Z[o][k][n], for each place of a vector apart. */
static void contract(
    const float *X, const float *Z, Index outer, Index p, Index q, Index n, Vector *D)
{
    Index bands = (p + CONTRACT_ROWS - 1) / CONTRACT_ROWS;
    Index blocks = (q + CONTRACT_COLUMNS - 1) / CONTRACT_COLUMNS;
    for (Index i = 0; i < bands; i++) {
        Index r = start_of(i, p, bands), rows = start_of(i + 1, p, bands) - r;
        for (Index k = 0; k < blocks; k++) {
            Index s = start_of(k, q, blocks), columns = start_of(k + 1, q, blocks) - s;
#define CASE(R, S) \
    case 8 * (R) + (S): \
        contract_block(R, S, X + r * n, p * n, Z + s * n, q * n, outer, n, D + r * q + s, q); \
        break;
#define CASES(R) CASE(R, 1) CASE(R, 2) CASE(R, 3)
            switch (8 * rows + columns) {
                CASES(1) CASES(2) CASES(3) CASES(4)
#if CONTRACT_ROWS > 4
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
