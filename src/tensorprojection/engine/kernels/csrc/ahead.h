/* Memory asked for ahead of time, while a tile is being worked on.

   Note [Asking ahead]
       A tile's products take about as long as its way from memory and back. The two overlap only
       if the next tile is asked for while this one is worked on, a few lines at a time: all at
       once they would fill the queue of requests and stop everything. The hardware does it by
       itself only for plain streams, and only after the first lines of each.
*/
#ifndef AHEAD_H
#define AHEAD_H

#include "lanes.h"

#define STREAMS 8   /* two tensors read, two written; each has two with the widest vectors */
#define AT_A_TIME 8 /* lines */
#define LINE 16     /* floats in a line of the cache */

typedef struct {
    const float *next[STREAMS];
    Index step[STREAMS], left[STREAMS];
    int stream, streams;
} Ahead;

static void ask(Ahead *ahead, const float *first, Index step, Index lines)
{
    int i = ahead->streams++;
    ahead->next[i] = first, ahead->step[i] = step, ahead->left[i] = lines;
}

INLINE void ask_some(Ahead *ahead)
{
    int i = ahead->stream;
    if (i == ahead->streams) return;
    const float *next = ahead->next[i];
    Index step = ahead->step[i];
    UNROLL for (int line = 0; line < AT_A_TIME; line++)
        __builtin_prefetch(next + line * step, 0, 2);
    ahead->next[i] = next + AT_A_TIME * step;
    if ((ahead->left[i] -= AT_A_TIME) <= 0) ahead->stream++;
}

#endif
