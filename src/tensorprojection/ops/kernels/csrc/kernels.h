/* What Python and C share: the plan, and the functions that Python calls.

   library.py has the same structs and argument types. The limits, such as MOST_AXES, come from
   ops/limits.py: build.py defines them.
*/
#ifndef KERNELS_H
#define KERNELS_H

#include "pieces.h"

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

/* Which sources this library was compiled from; see build.py. */
EXPORT const char *tp_digest(void);

/* The size of a Plan, which library.py compares with its own. */
EXPORT Index tp_plan_size(void);

#endif
