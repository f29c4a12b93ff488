/* The way into a tile and out of it; see Note [Lanes] in lanes.h.

   A tensor (L, P, R) has L × R copies of P elements, counted with R inside. Tile t holds copies
   t LANES and on; a last, partly filled tile is padded with zeros.
*/
#ifndef PACK_H
#define PACK_H

#include <string.h>

#include "ahead.h"
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

/* to[j][i] = from[i][j], for rows × columns, of which either is a multiple of 8. */
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

/* n numbers, at most LANES, `times` over: as two pieces of one constant size that may overlap. */
INLINE void copy_runs(
    float *to, Index to_step, const float *from, Index from_step, Index times, Index n)
{
#define CASE(SIZE) \
    if (n >= SIZE) { \
        for (Index i = 0; i < times; i++, to += to_step, from += from_step) { \
            memcpy(to, from, SIZE * sizeof(float)); \
            memcpy(to + n - SIZE, from + n - SIZE, SIZE * sizeof(float)); \
        } \
        return; \
    }
    CASE(16) CASE(8) CASE(4) CASE(2) CASE(1)
#undef CASE
}

/* LANES numbers, `times` over. */
INLINE void copy_lanes(float *to, Index to_step, const float *from, Index from_step, Index times)
{
    for (Index i = 0; i < times; i++)
        memcpy(to + i * to_step, from + i * from_step, LANES * sizeof(float));
}

/* The copies of tile t lie in memory in runs side by side; this goes through them. */
typedef struct {
    Index filled; /* lanes of the tile */
    Index lane;   /* where the run starts in the tile, */
    Index at;     /* and in the tensor */
    Index place;  /* the same within R */
    Index length;
} Run;

INLINE Run first_run(Index tile, Index L, Index P, Index R)
{
    Index first = tile * LANES, place = first % R, filled = at_most(LANES, L * R - first);
    return (Run){filled, 0, first / R * P * R + place, place, at_most(R - place, filled)};
}

INLINE void next_run(Run *run, Index P, Index R)
{
    run->lane += run->length;
    run->at += P * R - run->place;
    run->place = 0;
    run->length = at_most(R, run->filled - run->lane);
}

static void pack(const float *x, Index L, Index P, Index R, Index tile, float *buffer)
{
    Run run = first_run(tile, L, P, R);
    if (run.filled < LANES) memset(buffer, 0, P * LANES * sizeof(float));
    if (R == 1 && run.filled == LANES)
        transpose(x + run.at, P, LANES, P, buffer, LANES);
    else if (run.length == LANES)
        copy_lanes(buffer, LANES, x + run.at, R, P);
    else
        for (; run.lane < run.filled; next_run(&run, P, R))
            copy_runs(buffer + run.lane, LANES, x + run.at, R, P, run.length);
}

static void unpack(float *x, Index L, Index P, Index R, Index tile, const float *buffer)
{
    Run run = first_run(tile, L, P, R);
    if (R == 1 && run.filled == LANES)
        transpose(buffer, LANES, P, LANES, x + run.at, P);
    else if (run.length == LANES)
        copy_lanes(x + run.at, R, buffer, LANES, P);
    else
        for (; run.lane < run.filled; next_run(&run, P, R))
            copy_runs(x + run.at, R, buffer + run.lane, LANES, P, run.length);
}

/* Asks for the memory of a tile, if there is such a tile. */
static void ask_for(Ahead *ahead, const float *x, Index L, Index P, Index R, Index tile)
{
    Run run = first_run(tile, L, P, R);
    if (R == 1 && run.filled > 0)
        ask(ahead, x + run.at, LINE, block_count(run.filled * P, LINE));
    else if (run.length == LANES)
        for (int line = 0; line < LANES; line += LINE) ask(ahead, x + run.at + line, R, P);
}

#endif
