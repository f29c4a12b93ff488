/* The way into a tile and out of it; see Note [Lanes] in lanes.h.

   A tensor (L, P, R) has L × R copies of P elements, counted with R inside. Tile t holds copies
   t LANES and on; a last, partly filled tile is padded with zeros.
*/
#ifndef PACK_H
#define PACK_H

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

/* rows × columns -> columns × rows; the number of rows a multiple of 8. */
INLINE void transpose_rows(const float *from, Index rows, Index columns, float *to)
{
    Index j = 0;
    for (; j + 8 <= columns; j += 8)
        for (Index i = 0; i < rows; i += 8)
            transpose8(from + i * columns + j, columns, to + j * rows + i, rows);
    for (; j < columns; j++)
        for (Index i = 0; i < rows; i++) to[j * rows + i] = from[i * columns + j];
}

/* The same with the number of columns a multiple of 8. */
INLINE void transpose_columns(const float *from, Index rows, Index columns, float *to)
{
    Index i = 0;
    for (; i + 8 <= rows; i += 8)
        for (Index j = 0; j < columns; j += 8)
            transpose8(from + i * columns + j, columns, to + j * rows + i, rows);
    for (; i < rows; i++)
        for (Index j = 0; j < columns; j++) to[j * rows + i] = from[i * columns + j];
}

typedef struct {
    Index count;      /* of copies in this tile */
    Index base, lane; /* the first: where it starts in the tensor, and its place within R */
} Place;

INLINE Place place_of(Index tile, Index L, Index P, Index R)
{
    Index first = tile * LANES, lane = first % R;
    return (Place){at_most(LANES, L * R - first), (first / R) * P * R + lane, lane};
}

static void pack(const float *x, Index L, Index P, Index R, Index tile, float *buffer)
{
    Place at = place_of(tile, L, P, R);
    const float *from = x + at.base;
    if (at.count == LANES && at.lane + LANES <= R) {
        for (Index i = 0; i < P; i++) {
            /* The tile after this one; the hardware does not foresee strides as long as R. */
            for (int line = 0; line < LANES; line += 16)
                __builtin_prefetch(from + i * R + LANES + line, 0, 2);
            memcpy(buffer + i * LANES, from + i * R, LANES * sizeof(float));
        }
        return;
    }
    if (at.count == LANES && R == 1) {
        transpose_rows(from, LANES, P, buffer);
        return;
    }
    if (at.count < LANES) memset(buffer, 0, P * LANES * sizeof(float));
    for (Index b = 0, run; b < at.count; b += run) {
        run = at_most(R - at.lane, at.count - b);
        for (Index i = 0; i < P; i++)
            memcpy(buffer + i * LANES + b, from + i * R, run * sizeof(float));
        from += P * R - at.lane;
        at.lane = 0;
    }
}

static void unpack(float *x, Index L, Index P, Index R, Index tile, const float *buffer)
{
    Place at = place_of(tile, L, P, R);
    float *to = x + at.base;
    if (at.count == LANES && at.lane + LANES <= R) {
        for (Index i = 0; i < P; i++)
            memcpy(to + i * R, buffer + i * LANES, LANES * sizeof(float));
        return;
    }
    if (at.count == LANES && R == 1) {
        transpose_columns(buffer, P, LANES, to);
        return;
    }
    for (Index b = 0, run; b < at.count; b += run) {
        run = at_most(R - at.lane, at.count - b);
        for (Index i = 0; i < P; i++)
            memcpy(to + i * R, buffer + i * LANES + b, run * sizeof(float));
        to += P * R - at.lane;
        at.lane = 0;
    }
}

#endif
