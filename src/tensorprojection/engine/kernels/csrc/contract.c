/* Carries out a plan on a tensor (L, d_1, …, d_n): what contract.py does, here by tiles. */
#include "contract.h"

#include <stdlib.h>
#include <string.h>

#include "maps.h"
#include "product.h"

typedef struct {
    Index first, m, order[MODES];
} Step;

typedef struct {
    Threads threads;
    Index n, L, rows;
    Index large[AXES], small[AXES];
    Index steps;
    Step step[AXES];
    float *A[AXES], *A_t[AXES]; /* by axis; arranged */
    float *memory;
} Plan;

static Index read_plan(Plan *plan, const Index *numbers)
{
    const Index *next = numbers;
    plan->n = *next++, plan->L = *next++, plan->rows = *next++;
    if (plan->n > AXES) return 0;
    for (Index k = 0; k < plan->n; k++) plan->large[k] = *next++;
    for (Index k = 0; k < plan->n; k++) plan->small[k] = *next++;
    plan->steps = *next++;
    for (Index i = 0; i < plan->steps; i++) {
        Step *step = &plan->step[i];
        step->first = *next++, step->m = *next++;
        for (Index k = 0; k < step->m; k++) step->order[k] = *next++;
    }
    return 1;
}

typedef struct {
    const float *A;
    float *to;
    Index apart_k, apart_m, K, M, next;
} Arranging;

static void arrange_blocks(void *data)
{
    Arranging *job = data;
    for (Index block; (block = take(&job->next)) < block_count(job->M, ROWS);)
        arrange_block(
            job->A, job->apart_k, job->apart_m, job->to, job->K, job->M, 0, job->K, block);
}

/* The matrices, by axis, as the steps read them. */
static int arrange_all(Plan *plan, const float *const *A, int shrinking, int growing)
{
    Index entries = 0;
    for (Index k = 0; k < plan->n; k++) entries += A[k] ? 2 * plan->large[k] * plan->small[k] : 0;
    plan->memory = malloc(entries * sizeof(float));
    if (!plan->memory) return 0;
    float *place = plan->memory;
    for (Index k = 0; k < plan->n; k++) {
        if (!A[k]) continue;
        Index p = plan->large[k], q = plan->small[k];
        Threads few = {NULL, 1}, *threads = p * q > 16384 ? &plan->threads : &few;
        plan->A[k] = place, plan->A_t[k] = place + p * q;
        if (shrinking) run(threads, arrange_blocks, &(Arranging){A[k], plan->A[k], q, 1, p, q, 0});
        if (growing) run(threads, arrange_blocks, &(Arranging){A[k], plan->A_t[k], 1, q, q, p, 0});
        place += 2 * p * q;
    }
    return 1;
}

static Index row_of(const Plan *plan, const Index *sizes)
{
    Index n = 1;
    for (Index k = 0; k < plan->n; k++) n *= sizes[k];
    return n;
}

/* One step on `rows` rows whose axes have these sizes, but for the step's own. */
static int take_step(
    const Plan *plan, const Step *step, const Index *sizes, Index rows, Tensors tensors)
{
    Shape shape = {.m = step->m, .L = rows, .R = 1};
    Index end = step->first + step->m;
    for (Index k = 0; k < step->first; k++) shape.L *= sizes[k];
    for (Index k = end; k < plan->n; k++) shape.R *= sizes[k];
    for (Index k = 0; k < step->m; k++) {
        shape.p[k] = plan->large[step->first + k], shape.q[k] = plan->small[step->first + k];
        shape.order[k] = step->order[k];
    }
    float *const *A = plan->A + step->first, *const *A_t = plan->A_t + step->first;
    if (tensors.D) tensors.D += step->first;
    if (tensors.D && step->m == 1) {
        const float *X = tensors.X, *Z = tensors.Z;
        if (derivative(&plan->threads, &shape, X, Z, tensors.D[0], tensors.add)) return 1;
        tensors.D = NULL;
        if (!tensors.shrunk) tensors.X = NULL;
        if (!tensors.grown) tensors.Z = NULL;
        if (!tensors.X && !tensors.Z) return 0;
    }
    return maps(&plan->threads, &shape, A, A_t, &tensors);
}

static void resize(const Step *step, Index *sizes, const Index *target)
{
    for (Index k = step->first; k < step->first + step->m; k++) sizes[k] = target[k];
}

/* The most that any tensor between two steps takes for a row, in floats. */
static Index widest(const Plan *plan, const Index *source, const Index *target)
{
    Index sizes[AXES], most = 1;
    memcpy(sizes, source, sizeof sizes);
    for (Index i = 0; i + 1 < plan->steps; i++) {
        resize(&plan->step[i], sizes, target);
        Index row = row_of(plan, sizes);
        most = row > most ? row : most;
    }
    return most;
}

int tp_map(
    Parallel parallel, Index threads, const Index *numbers, const float *const *A, int growing,
    const float *from, float *to)
{
    Plan plan = {.threads = {parallel, threads}};
    if (!read_plan(&plan, numbers)) return 1;
    const Index *source = growing ? plan.small : plan.large;
    const Index *target = growing ? plan.large : plan.small;
    Index from_row = row_of(&plan, source), to_row = row_of(&plan, target);
    Index between = plan.steps > 1 ? widest(&plan, source, target) * plan.rows : 0;
    float *buffers = between ? malloc(2 * between * sizeof(float)) : NULL;
    int failed = (between && !buffers) || !arrange_all(&plan, A, !growing, growing);
    for (Index row = 0; row < plan.L && !failed; row += plan.rows) {
        Index sizes[AXES], rows = at_most(plan.rows, plan.L - row);
        memcpy(sizes, source, sizeof sizes);
        const float *x = from + row * from_row;
        for (Index i = 0; i < plan.steps && !failed; i++) {
            float *y = i + 1 < plan.steps ? buffers + (i % 2) * between : to + row * to_row;
            Tensors to_shrink = {.X = x, .shrunk = y}, to_grow = {.Z = x, .grown = y};
            failed = take_step(&plan, &plan.step[i], sizes, rows, growing ? to_grow : to_shrink);
            resize(&plan.step[i], sizes, target);
            x = y;
        }
    }
    free(buffers);
    free(plan.memory);
    return failed;
}

int tp_pair(
    Parallel parallel, Index threads, const Index *numbers, const float *const *A, const float *X,
    const float *Z, float *grown, float *shrunk, float *const *D)
{
    Plan plan = {.threads = {parallel, threads}};
    if (!read_plan(&plan, numbers)) return 1;
    Index large = row_of(&plan, plan.large), small = row_of(&plan, plan.small);
    Index last = plan.steps - 1;
    Index between = last ? widest(&plan, plan.large, plan.small) * plan.rows : 0;
    /* X after each step but the last, and two for Z. */
    float *buffers = between ? malloc((last + 2) * between * sizeof(float)) : NULL;
    int failed = (between && !buffers) || !arrange_all(&plan, A, 1, 1);
    for (Index row = 0; row < plan.L && !failed; row += plan.rows) {
        Index sizes[AXES], rows = at_most(plan.rows, plan.L - row);
        const float *x[AXES] = {X + row * large}, *z = Z + row * small;
        memcpy(sizes, plan.large, sizeof sizes);
        for (Index i = 0; i < last && !failed; i++) {
            float *y = buffers + i * between;
            Tensors tensors = {.X = x[i], .shrunk = y};
            failed = take_step(&plan, &plan.step[i], sizes, rows, tensors);
            resize(&plan.step[i], sizes, plan.small);
            x[i + 1] = y;
        }
        for (Index i = last; i >= 0 && !failed; i--) {
            Tensors tensors = {.X = x[i], .Z = z, .D = D, .add = row > 0};
            if (i > 0)
                tensors.grown = buffers + (last + i % 2) * between;
            else if (grown)
                tensors.grown = grown + row * large;
            if (i == last && shrunk) tensors.shrunk = shrunk + row * small;
            failed = take_step(&plan, &plan.step[i], sizes, rows, tensors);
            resize(&plan.step[i], sizes, plan.large);
            z = tensors.grown;
        }
    }
    free(buffers);
    free(plan.memory);
    return failed;
}
