/* The way into a tile and out of it; see Note [Lanes] in lanes.h.

   A tensor (L, P, R) has L × R copies of P elements, counted with R inside. Tile t holds copies
   t LANES and on; a last, partly filled tile is padded with zeros.
*/
#ifndef PACK_H
#define PACK_H

#include "ahead.h"
#include "copy.h"

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
    else
        for (; run.lane < run.filled; next_run(&run, P, R))
            copy_runs(x + run.at, R, buffer + run.lane, LANES, P, run.length);
}

/* Where the copies of a tile are: an element's LANES numbers at `at`, `apart` from the next. */
typedef struct {
    float *at;
    Index apart;
} Place;

/* Where a result may be written: at once to its place in the tensor, if its lanes lie side by side
   there, or to the buffer, to be unpacked. */
INLINE Place place_of(float *x, Index L, Index P, Index R, Index tile, float *buffer)
{
    Run run = first_run(tile, L, P, R);
    return run.length == LANES ? (Place){x + run.at, R} : (Place){buffer, LANES};
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
