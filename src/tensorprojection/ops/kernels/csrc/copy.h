/* Many copies of small pieces of memory, and transposes. */
#ifndef COPY_H
#define COPY_H

#include <string.h>

#include "lanes.h"

#if defined(__AVX__)
#include <immintrin.h>

/* An 8 × 8 block: to[j][i] = from[i][j]. */
INLINE void transpose8(const float *from, Index from_row, float *to, Index to_row)
{
    __m256 a[8], b[8];
    UNROLL for (int i = 0; i < 8; i++) a[i] = _mm256_loadu_ps(from + i * from_row);
    UNROLL for (int i = 0; i < 4; i++) {
        b[2 * i] = _mm256_unpacklo_ps(a[2 * i], a[2 * i + 1]);
        b[2 * i + 1] = _mm256_unpackhi_ps(a[2 * i], a[2 * i + 1]);
    }
    UNROLL for (int h = 0; h < 8; h += 4) {
        a[h] = _mm256_shuffle_ps(b[h], b[h + 2], 0x44);
        a[h + 1] = _mm256_shuffle_ps(b[h], b[h + 2], 0xEE);
        a[h + 2] = _mm256_shuffle_ps(b[h + 1], b[h + 3], 0x44);
        a[h + 3] = _mm256_shuffle_ps(b[h + 1], b[h + 3], 0xEE);
    }
    UNROLL for (int i = 0; i < 4; i++) {
        _mm256_storeu_ps(to + i * to_row, _mm256_permute2f128_ps(a[i], a[i + 4], 0x20));
        _mm256_storeu_ps(to + (i + 4) * to_row, _mm256_permute2f128_ps(a[i], a[i + 4], 0x31));
    }
}
#else
INLINE void transpose8(const float *from, Index from_row, float *to, Index to_row)
{
    for (int i = 0; i < 8; i++)
        for (int j = 0; j < 8; j++) to[j * to_row + i] = from[i * from_row + j];
}
#endif

/* to[j][i] = from[i][j], for rows × columns. */
INLINE void transpose(
    const float *from, Index from_row, Index rows, Index columns, float *to, Index to_row)
{
    Index whole_rows = rows / 8 * 8, whole_columns = columns / 8 * 8;
    for (Index j = 0; j < whole_columns; j += 8)
        for (Index i = 0; i < whole_rows; i += 8)
            transpose8(from + i * from_row + j, from_row, to + j * to_row + i, to_row);
    for (Index j = whole_columns; j < columns; j++)
        for (Index i = 0; i < rows; i++) to[j * to_row + i] = from[i * from_row + j];
    for (Index i = whole_rows; i < rows; i++)
        for (Index j = 0; j < columns; j++) to[j * to_row + i] = from[i * from_row + j];
}

/* `times` runs of n numbers, n <= LANES; each as two copies of a constant size that may overlap. */
INLINE void copy_runs(
    float *to, Index to_stride, const float *from, Index from_stride, Index times, Index n)
{
#define CASE(SIZE) \
    if (n >= SIZE) { \
        for (Index i = 0; i < times; i++, to += to_stride, from += from_stride) { \
            memcpy(to, from, SIZE * sizeof(float)); \
            memcpy(to + n - SIZE, from + n - SIZE, SIZE * sizeof(float)); \
        } \
        return; \
    }
    CASE(16) CASE(8) CASE(4) CASE(2) CASE(1)
#undef CASE
}

/* `times` runs of LANES numbers. */
INLINE void copy_lanes(
    float *to, Index to_stride, const float *from, Index from_stride, Index times)
{
    for (Index i = 0; i < times; i++)
        memcpy(to + i * to_stride, from + i * from_stride, LANES * sizeof(float));
}

#endif
