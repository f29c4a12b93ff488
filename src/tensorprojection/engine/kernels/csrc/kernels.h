/* What Python and C share: the limits, the plan, and the functions that Python calls.

   Note [One header for both]
       header.py reads this file as text: numbers from `#define NAME number`, structs whose fields
       are all of the type Index, and the argument types of the functions after EXPORT. So nothing
       of it is written a second time in Python. A line of another form is for C alone.
*/
#ifndef KERNELS_H
#define KERNELS_H

#include "pieces.h"

/* Limits of a plan. */
#define MOST_AXES 12      /* of a tensor, not counting its rows */
#define TILE_MODES 4      /* that a tile can have */
#define TILE_NUMBERS 3500 /* in one copy of a tile's large side */
#define TILE_ENTRIES 4096 /* in all matrices of a tile together */

/* Limits of a matrix W. */
#define MOST_COLUMNS 64      /* with more, a decomposition by LAPACK is faster */
#define ROTATIONS_LIMIT 4096 /* entries up to which rotations are an alternative */

/* Numbers in a tensor or matrix for which waking another thread does not pay. */
#define ONE_THREAD 16384

/* Where the ratio of the eigenvalues of M = WᵀW + ε²I is larger than this, M in double precision no
   longer gives V and s to float's precision: the error in its smallest direction is about 2e-16
   times the ratio. */
#define GRAM_LIMIT 5e7

/* Up to this ratio, products with G = M^(-1/2) keep float's precision when done in float: their
   error is about 6e-8 times the ratio of the singular values, which is the root of this ratio. And
   only for s between 1 / FLOAT_SCALE and FLOAT_SCALE: the derivative has 1 / s² in it. */
#define FLOAT_LIMIT 64.0
#define FLOAT_SCALE 1e6

/* Neighbouring axes that are projected together, as a tile. */
typedef struct {
    Index first;             /* axis, counted from 0 */
    Index modes;             /* how many axes */
    Index order[TILE_MODES]; /* in which they shrink; they grow in the opposite order */
} Step;

/* How a tensor of L rows is mapped: a chunk of rows after the other, step by step. */
typedef struct {
    Index axes;
    Index L;
    Index chunk;            /* rows */
    Index large[MOST_AXES]; /* sizes of the axes */
    Index small[MOST_AXES];
    Index steps;
    Step step[MOST_AXES];
} Plan;

/* Exported, and on ELF systems protected: a function of the same name in another library of the
   process cannot take the place of one of these, nor of anything that is not exported. */
#if defined(__ELF__)
#define EXPORT __attribute__((visibility("protected")))
#else
#define EXPORT __attribute__((visibility("default")))
#endif

/* Matrices are large × small, one per axis; null for an axis that is left alone. Every function
   that returns an int returns 0 if all went well. */

/* `to` from `from`, shrunk or grown. Returns 1 where there is no memory. */
EXPORT int tp_map(
    Parallel parallel, Index threads, const Plan *plan, const float *const *A, int growing,
    const float *from, float *to);

/* The derivatives of <shrink(X), Z> with respect to every matrix, in D, one per axis; and grow(Z)
   and shrink(X) where the pointers to them are not null. X shrinks in the order of the steps, Z
   grows in the opposite order. Returns 1 where there is no memory. */
EXPORT int tp_pair(
    Parallel parallel, Index threads, const Plan *plan, const float *const *A, const float *X,
    const float *Z, float *grown, float *shrunk, float *const *D);

/* U (p × q), G and V (q × q) and s, ascending, from W (p × q). Returns 1 where W is not finite,
   vanishes, or is large and ill-conditioned, or there is no memory. */
EXPORT int tp_polar(
    Parallel parallel, Index threads, const float *W, Index p, Index q, double eps, int relative,
    float *U, double *G, double *V, double *s);

/* dL/dW from dL/dU, both p × q, with G, V and s from `tp_polar`. Returns 1 where there is no
   memory. */
EXPORT int tp_polar_grad(
    Parallel parallel, Index threads, const float *W, const float *dU, const double *G,
    const double *V, const double *s, Index p, Index q, double eps, int relative, float *dW);

/* z from x, with one W and one ε per axis. What the backward pass needs is written to U, all U's
   one after the other, and to `spectra`, where G, V and s follow one another for each W. Returns 1
   where `tp_polar` does so for a W, or there is no memory. */
EXPORT int tp_forward(
    Parallel parallel, Index threads, const Plan *plan, int transposed, const float *const *W,
    const double *eps, int relative, float *U, double *spectra, const float *x, float *z);

/* dL/dW, one per axis, where the pointer to it is not null; and dL/dx, which is `grown` or
   `shrunk`, likewise. Returns 1 where there is no memory. */
EXPORT int tp_backward(
    Parallel parallel, Index threads, const Plan *plan, const float *const *W, const double *eps,
    int relative, float *U, double *spectra, const float *X, const float *Z, float *grown,
    float *shrunk, float *const *dW);

/* Which sources this library was compiled from; see build.py. */
EXPORT const char *tp_digest(void);

#endif
