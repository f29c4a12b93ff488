#ifndef CONTRACT_H
#define CONTRACT_H

#include "pieces.h"

#define AXES 12 /* of a plan, at most; as in program.py */

/* A plan arrives as numbers (program.py): the axes n, L, the rows in a chunk, the large and the
   small sizes of the axes, the number of steps, and for each step its first axis (from 0), how many
   axes it takes, and the order of these. Matrices are large × small, by axis; null for an axis left
   alone. */

/* `to` from `from`: shrunk, or grown. Returns 0, or 1 where there is no memory. */
int tp_map(
    Parallel parallel, Index threads, const Index *plan, const float *const *A, int growing,
    const float *from, float *to);

/* The derivatives of <shrink(X), Z> by every matrix, D by axis; and grow(Z), shrink(X) where there
   is room for them. X shrinks in the order of the steps, Z grows in the opposite one. */
int tp_pair(
    Parallel parallel, Index threads, const Index *plan, const float *const *A, const float *X,
    const float *Z, float *grown, float *shrunk, float *const *D);

#endif
