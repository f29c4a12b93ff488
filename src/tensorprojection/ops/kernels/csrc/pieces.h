/* Work in pieces, which threads take one after the other.

   Note [Pieces, not threads]
       The number of pieces, and with it the order of every sum, depends on the shape alone. So a
       result is the same to the bit for any number of threads and however they are scheduled.

   The threads are those of torch's own OpenMP, whose entry point the caller passes: a second pool
   would compete with the first for the cores.
*/
#ifndef PIECES_H
#define PIECES_H

#include "lanes.h"

#define PIECES 32

typedef void (*Parallel)(void (*work)(void *), void *data, unsigned threads, unsigned flags);

INLINE Index piece_count(Index tiles) { return at_most(tiles, PIECES); }

/* The next piece that nobody has taken. */
INLINE Index take(Index *next) { return __atomic_fetch_add(next, 1, __ATOMIC_RELAXED); }

typedef struct {
    Parallel parallel; /* or null */
    Index count;
} Threads;

INLINE void run(const Threads *threads, void (*work)(void *), void *data)
{
    if (threads->parallel && threads->count > 1)
        threads->parallel(work, data, (unsigned)threads->count, 0);
    else
        work(data);
}

#endif
