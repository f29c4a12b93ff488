/* A layer's forward and backward pass in one call each: the U's and the map together.

   What is kept between the two: the U's one after the other, and for each G, V and s.
*/
#include <stdlib.h>

#include "contract.h"
#include "polar.h"

typedef struct {
    Index p, q;
    float *U;
    double *G, *V, *s;
} Mode;

/* The modes by axis, with their places in what is kept. Returns the entries of all U's. */
static Index read_modes(
    const Index *plan, const float *const *W, float *U, double *spectra, Mode *modes)
{
    Index n = plan[0], entries = 0;
    for (Index k = 0; k < n; k++) {
        if (!W[k]) continue;
        Index p = plan[3 + k], q = plan[3 + n + k];
        modes[k] = (Mode){p, q, U + entries, spectra, spectra + q * q, spectra + 2 * q * q};
        entries += p * q;
        spectra += (2 * q + 1) * q;
    }
    return entries;
}

/* z from x. Returns 0, or 1 where a W asks for another way, or there is no memory. */
int tp_forward(
    Parallel parallel, Index threads, const Index *plan, int transposed, const float *const *W,
    const double *eps, int relative, float *U, double *spectra, const float *x, float *z)
{
    Mode modes[AXES];
    const float *Us[AXES] = {0};
    read_modes(plan, W, U, spectra, modes);
    for (Index k = 0; k < plan[0]; k++) {
        if (!W[k]) continue;
        Mode *m = &modes[k];
        Us[k] = m->U;
        if (tp_polar(parallel, threads, W[k], m->p, m->q, eps[k], relative, m->U, m->G, m->V, m->s))
            return 1;
    }
    return tp_map(parallel, threads, plan, Us, transposed, x, z);
}

/* dL/dW by axis, where there is room for it, and dL/dx: grown, or shrunk. Returns 0, or 1 where
   there is no memory. */
int tp_backward(
    Parallel parallel, Index threads, const Index *plan, const float *const *W, const double *eps,
    int relative, float *U, double *spectra, const float *X, const float *Z, float *grown,
    float *shrunk, float *const *dW)
{
    Mode modes[AXES];
    const float *Us[AXES] = {0};
    float *dU[AXES] = {0};
    Index entries = read_modes(plan, W, U, spectra, modes);
    float *room = malloc(entries * sizeof(float));
    if (!room) return 1;
    for (Index k = 0; k < plan[0]; k++)
        if (W[k]) Us[k] = modes[k].U, dU[k] = room + (modes[k].U - U);
    int failed = tp_pair(parallel, threads, plan, Us, X, Z, grown, shrunk, dU);
    for (Index k = 0; k < plan[0] && !failed; k++) {
        Mode *m = &modes[k];
        if (W[k] && dW[k])
            failed = tp_polar_grad(parallel, threads, W[k], dU[k], m->G, m->V, m->s, m->p, m->q,
                                   eps[k], relative, dW[k]);
    }
    free(room);
    return failed;
}
