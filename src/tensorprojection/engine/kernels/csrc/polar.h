#ifndef POLAR_H
#define POLAR_H

#include "pieces.h"

/* U (p × q), G and V (q × q) and s, ascending, from W (p × q). Returns 0, or 1 where W is not
   finite, or vanishes, or asks for another way, or there is no memory. */
int tp_polar(
    Parallel parallel, Index count, const float *W, Index p, Index q, double eps, int relative,
    float *U, double *G, double *V, double *s);

/* dL/dW from dL/dU, all of p × q, with G, V and s of `tp_polar`. Returns 0, or 1 where there is no
   memory. */
int tp_polar_grad(
    Parallel parallel, Index count, const float *W, const float *dU, const double *G,
    const double *V, const double *s, Index p, Index q, double eps, int relative, float *dW);

#endif
