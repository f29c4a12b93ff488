/* Memory that is fetched ahead of time, while a tile is being worked on.

   Note [Fetching ahead]
       The products of a tile take about as long as its way from memory and back. The two overlap
       only if the next tile is fetched while this one is worked on, a few cache lines at a time:
       all at once, they would fill the processor's queue of requests and everything would wait. The
       hardware fetches ahead by itself only for plain streams, and only after the first few lines
       of each.
*/
#ifndef PREFETCH_H
#define PREFETCH_H

#include "lanes.h"

#define STREAMS 8 /* two tensors read and two written; with the widest vectors, two streams each */
#define LINES_AT_A_TIME (WIDTH == 16 ? 16 : 8) /* wide vectors: more lines in fewer products */
#define LINE 16 /* floats in a cache line */

typedef struct {
    const float *next[STREAMS];
    Index stride[STREAMS], left[STREAMS];
    int stream, streams;
} Prefetch;

/* The next few of the lines that are to be fetched. */
INLINE void prefetch_some(Prefetch *prefetch)
{
    int i = prefetch->stream;
    if (i == prefetch->streams) return;
    const float *next = prefetch->next[i];
    Index stride = prefetch->stride[i];
    UNROLL for (int line = 0; line < LINES_AT_A_TIME; line++)
        __builtin_prefetch(next + line * stride, 0, 2);
    prefetch->next[i] = next + LINES_AT_A_TIME * stride;
    if ((prefetch->left[i] -= LINES_AT_A_TIME) <= 0) prefetch->stream++;
}

#endif
