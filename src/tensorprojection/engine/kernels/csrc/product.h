/* The two products that everything is made of, on tiles in the cache.

   Note [Blocks of registers]
       Each is cut into blocks whose sums stay in registers, as evenly as possible: 14 rows are
       5 + 5 + 4, not 6 + 6 + 2. The block's size is a constant to the compiler in every case of
       the switch, so its loops vanish.
*/
#ifndef PRODUCT_H
#define PRODUCT_H

#include "ahead.h"
#include "copy.h"

#if WIDTH == 16 /* 32 registers */
#define ROWS 8
#define CONTRACT_ROWS 6
#define CONTRACT_COLUMNS 4
#else /* 16 registers */
#define ROWS 6
#define CONTRACT_ROWS 4
#define CONTRACT_COLUMNS 3
#endif

/* Long sums are cut so that what they read stays in the innermost cache. */
#define DEPTH 256

/* A, K × M with its entries that far apart, rearranged for `product`: block by block of columns,
   each K × (its columns). Of a larger K, `depth` in all, these are the rows from `from` on. */
INLINE void arrange_block(
    const float *A, Index apart_k, Index apart_m, float *arranged, Index K, Index M, Index from,
    Index depth, Index block)
{
    Index blocks = block_count(M, ROWS), first = start_of(block, M, blocks);
    Index columns = start_of(block + 1, M, blocks) - first;
    const float *a = A + first * apart_m;
    float *to = arranged + first * depth + from * columns;
    if (apart_m == 1)
        copy_runs(to, columns, a, apart_k, K, columns);
    else
        for (Index k = 0; k < K; k++, a += apart_k)
            for (Index m = 0; m < columns; m++) *to++ = a[m * apart_m];
}

INLINE void product_rows(
    const int rows, const float *a, const float *b, Index n, float *c, Index c_row, Index depth,
    int add)
{
    Vector sum[ROWS][2];
    UNROLL for (int r = 0; r < rows; r++) {
        sum[r][0] = add ? *(Unaligned *)(c + r * c_row) : (Unaligned){0};
        sum[r][1] = add ? *(Unaligned *)(c + r * c_row + WIDTH) : (Unaligned){0};
    }
    for (Index k = 0; k < depth; k++, a += rows, b += n) {
        Vector b0 = *(const Vector *)b, b1 = *(const Vector *)(b + WIDTH);
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
   i < n. Each of these is LANES numbers, in C `apart` numbers from the next. */
static void product(
    const float *A, const float *B, float *C, Index apart, Index outer, Index K, Index M, Index n,
    int add, Ahead *ahead)
{
    /* Divisions take as long as a dozen vectors do; these are all there are. */
    Index blocks = block_count(M, ROWS), least = M / blocks, larger = M % blocks;
    for (Index k = 0; k < K; k += DEPTH) {
        Index depth = at_most(K - k, DEPTH);
        int to_add = add || k > 0;
        for (Index i = 0, first = 0, rows; i < blocks; i++, first += rows) {
            rows = least + (i < larger);
            const float *a = A + first * K + k * rows, *b = B + k * n * LANES;
            float *c = C + first * n * apart;
#define CASE(R) \
    case R: \
        for (Index o = 0; o < outer; o++) \
            for (Index j = 0; j < n; j++) { \
                ask_some(ahead); \
                product_rows(R, a, b + (o * K * n + j) * LANES, n * LANES, \
                             c + (o * M * n + j) * apart, n * apart, depth, to_add); \
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
    Index bands = block_count(p, CONTRACT_ROWS), blocks = block_count(q, CONTRACT_COLUMNS);
    Index least_rows = p / bands, larger_rows = p % bands;
    Index least_columns = q / blocks, larger_columns = q % blocks;
    for (Index i = 0, r = 0, rows; i < bands; i++, r += rows) {
        rows = least_rows + (i < larger_rows);
        for (Index k = 0, s = 0, columns; k < blocks; k++, s += columns) {
            columns = least_columns + (k < larger_columns);
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
