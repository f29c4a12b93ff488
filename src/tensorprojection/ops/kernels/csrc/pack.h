/* The way into a tile and out of it; see Note [Lanes] in lanes.h.

   A tensor (L, P, R) holds L × R copies of P elements; copy number l R + r is the one at (l, :, r).
   Tile t holds LANES copies, from number t LANES on; if the last tile is not full, zeros fill it.
*/
#ifndef PACK_H
#define PACK_H

#include "copy.h"
#include "prefetch.h"

/* The copies of a tile lie in memory in runs, each side by side; this goes through the runs. */
typedef struct {
    Index filled; /* lanes of the tile */
    Index lane;   /* where the run starts in the tile, */
    Index at;     /* in the tensor, */
    Index place;  /* and within R */
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
    else
        for (; run.lane < run.filled; next_run(&run, P, R))
            copy_runs(x + run.at, R, buffer + run.lane, LANES, P, run.length);
}

/* Where the copies of a tile are: the LANES numbers of element i start at `at` + i `stride`. */
typedef struct {
    float *at;
    Index stride;
} Place;

/* The place of a tile of x: in the tensor x itself if its lanes lie side by side there, else in the
   buffer, which the caller packs or unpacks; also where there is no x. */
INLINE Place place_of(float *x, Index L, Index P, Index R, Index tile, float *buffer)
{
    Run run = first_run(tile, L, P, R);
    return x && run.length == LANES ? (Place){x + run.at, R} : (Place){buffer, LANES};
}

static void prefetch_later(Prefetch *prefetch, const float *first, Index stride, Index lines)
{
    int i = prefetch->streams++;
    prefetch->next[i] = first, prefetch->stride[i] = stride, prefetch->left[i] = lines;
}

/* Has the memory of a tile fetched in the course of the next products, if there is such a tile. */
static void prefetch_tile(Prefetch *prefetch, const float *x, Index L, Index P, Index R, Index tile)
{
    Run run = first_run(tile, L, P, R);
    if (R == 1 && run.filled > 0)
        prefetch_later(prefetch, x + run.at, LINE, block_count(run.filled * P, LINE));
    else if (run.length == LANES)
        for (int line = 0; line < LANES; line += LINE)
            prefetch_later(prefetch, x + run.at + line, R, P);
}

#endif
