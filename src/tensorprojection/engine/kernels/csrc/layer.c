/* The forward and the backward pass of a layer in one call each: the U's and the map together. */
#include <stdlib.h>

#include "kernels.h"

typedef struct {
    Index p, q;
    float *U;
    double *G, *V, *s;
} Mode;

/* One mode per axis that has a W; U and `spectra` are where those of all modes begin. Returns the
   number of entries of all U's. */
static Index find_modes(
    const Plan *plan, const float *const *W, float *U, double *spectra, Mode *modes)
{
    Index entries = 0;
    for (Index k = 0; k < plan->axes; k++) {
        if (!W[k]) continue;
        Index p = plan->large[k], q = plan->small[k];
        modes[k] = (Mode){p, q, U + entries, spectra, spectra + q * q, spectra + 2 * q * q};
        entries += p * q;
        spectra += (2 * q + 1) * q;
    }
    return entries;
}

int tp_forward(
    Parallel parallel, Index threads, const Plan *plan, int transposed, const float *const *W,
    const double *eps, int relative, float *U, double *spectra, const float *x, float *z)
{
    Mode modes[MOST_AXES];
    const float *Us[MOST_AXES] = {0};
    find_modes(plan, W, U, spectra, modes);
    for (Index k = 0; k < plan->axes; k++) {
        if (!W[k]) continue;
        Mode *m = &modes[k];
        Us[k] = m->U;
        if (tp_polar(parallel, threads, W[k], m->p, m->q, eps[k], relative, m->U, m->G, m->V, m->s))
            return 1;
    }
    return tp_map(parallel, threads, plan, Us, transposed, x, z);
}

int tp_backward(
    Parallel parallel, Index threads, const Plan *plan, const float *const *W, const double *eps,
    int relative, float *U, double *spectra, const float *X, const float *Z, float *grown,
    float *shrunk, float *const *dW)
{
    Mode modes[MOST_AXES];
    const float *Us[MOST_AXES] = {0};
    float *dU[MOST_AXES] = {0};
    Index entries = find_modes(plan, W, U, spectra, modes);
    float *workspace = malloc(entries * sizeof(float));
    if (!workspace) return 1;
    for (Index k = 0; k < plan->axes; k++)
        if (W[k]) Us[k] = modes[k].U, dU[k] = workspace + (modes[k].U - U);
    int failed = tp_pair(parallel, threads, plan, Us, X, Z, grown, shrunk, dU);
    for (Index k = 0; k < plan->axes && !failed; k++) {
        Mode *m = &modes[k];
        if (W[k] && dW[k])
            failed = tp_polar_grad(parallel, threads, W[k], dU[k], m->G, m->V, m->s, m->p, m->q,
                                   eps[k], relative, dW[k]);
    }
    free(workspace);
    return failed;
}
