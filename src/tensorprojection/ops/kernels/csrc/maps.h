/* One step: neighbouring modes of a tensor, projected together. */
#ifndef MAPS_H
#define MAPS_H

#include "kernels.h"

/* A tensor (L, p_1, …, p_m, R), or with q in p's place. */
typedef struct {
    Index m, L, R;
    Index p[TILE_MODES], q[TILE_MODES];
    Index order[TILE_MODES]; /* in which the modes shrink; they grow in the opposite order */
} Shape;

/* What is given and what is wanted; the others are null. Any of: `shrunk` from X; `grown` from Z;
   from both, the derivatives of <shrunk, Z> with respect to each matrix, written to D or added. */
typedef struct {
    const float *X, *Z;
    float *grown, *shrunk;
    float *const *D;
    int add;
} Tensors;

/* The matrices are arranged (arrange.h): A, p × q, to shrink by, and A_t, q × p, to grow by.
   Returns 0, or 1 where there is no memory. */
int maps(
    const Threads *threads, const Shape *shape, float *const *A, float *const *A_t,
    const Tensors *tensors);

/* The derivative alone, for a single mode. Returns 0, or 1 where there is no memory. */
int derivative(
    const Threads *threads, const Shape *shape, const float *X, const float *Z, float *D, int add);

#endif
