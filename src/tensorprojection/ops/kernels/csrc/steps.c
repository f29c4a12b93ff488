/* Carries out a plan on a tensor (L, d_1, …, d_n), tile by tile. */
#include <stdlib.h>
#include <string.h>

#include "arrange.h"
#include "kernels.h"
#include "maps.h"

typedef struct {
    const Plan *plan;
    Threads threads;
    float *A[MOST_AXES], *A_t[MOST_AXES]; /* one per axis; arranged */
    float *memory;
} Execution;

typedef struct {
    const float *A;
    float *to;
    Index stride_k, stride_m, K, M, next;
} Arranging;

static void arrange_blocks(void *data)
{
    Arranging *job = data;
    for (Index block; (block = take(&job->next)) < block_count(job->M, ROWS);)
        arrange_block(
            job->A, job->stride_k, job->stride_m, job->to, job->K, job->M, 0, job->K, block);
}

/* The matrices, one per axis, as the steps read them. Returns whether there is memory for them. */
static int arrange_all(Execution *execution, const float *const *A, int shrinking, int growing)
{
    const Plan *plan = execution->plan;
    Index entries = 0;
    for (Index k = 0; k < plan->axes; k++)
        entries += A[k] ? 2 * plan->large[k] * plan->small[k] : 0;
    execution->memory = malloc(entries * sizeof(float));
    if (!execution->memory) return 0;
    float *next = execution->memory;
    for (Index k = 0; k < plan->axes; k++) {
        if (!A[k]) continue;
        Index p = plan->large[k], q = plan->small[k];
        Threads one = {NULL, 1}, *threads = p * q > ONE_THREAD ? &execution->threads : &one;
        float *arranged = execution->A[k] = next, *transposed = execution->A_t[k] = next + p * q;
        if (shrinking) run(threads, arrange_blocks, &(Arranging){A[k], arranged, q, 1, p, q, 0});
        if (growing) run(threads, arrange_blocks, &(Arranging){A[k], transposed, 1, q, q, p, 0});
        next += 2 * p * q;
    }
    return 1;
}

/* The numbers in a row whose axes have these sizes. */
static Index row_size(const Plan *plan, const Index *sizes)
{
    Index n = 1;
    for (Index k = 0; k < plan->axes; k++) n *= sizes[k];
    return n;
}

/* One step on `rows` rows whose axes have these sizes, apart from those of the step itself. */
static int take_step(
    const Execution *execution, const Step *step, const Index *sizes, Index rows, Tensors tensors)
{
    const Plan *plan = execution->plan;
    Shape shape = {.m = step->modes, .L = rows, .R = 1};
    Index first = step->first, end = first + step->modes;
    for (Index k = 0; k < first; k++) shape.L *= sizes[k];
    for (Index k = end; k < plan->axes; k++) shape.R *= sizes[k];
    for (Index k = 0; k < step->modes; k++) {
        shape.p[k] = plan->large[first + k], shape.q[k] = plan->small[first + k];
        shape.order[k] = step->order[k];
    }
    if (tensors.D) tensors.D += first;
    if (tensors.D && step->modes == 1) {
        const float *X = tensors.X, *Z = tensors.Z;
        if (derivative(&execution->threads, &shape, X, Z, tensors.D[0], tensors.add)) return 1;
        tensors.D = NULL;
        if (!tensors.shrunk) tensors.X = NULL;
        if (!tensors.grown) tensors.Z = NULL;
        if (!tensors.X && !tensors.Z) return 0;
    }
    return maps(
        &execution->threads, &shape, execution->A + first, execution->A_t + first, &tensors);
}

static void resize(const Step *step, Index *sizes, const Index *target)
{
    for (Index k = step->first; k < step->first + step->modes; k++) sizes[k] = target[k];
}

/* The most numbers that a row has between two steps. */
static Index widest(const Plan *plan, const Index *source, const Index *target)
{
    Index sizes[MOST_AXES], most = 1;
    memcpy(sizes, source, sizeof sizes);
    for (Index i = 0; i + 1 < plan->steps; i++) {
        resize(&plan->step[i], sizes, target);
        Index row = row_size(plan, sizes);
        most = row > most ? row : most;
    }
    return most;
}

int tp_map(
    Parallel parallel, Index threads, const Plan *plan, const float *const *A, int growing,
    const float *from, float *to)
{
    Execution execution = {.plan = plan, .threads = {parallel, threads}};
    const Index *source = growing ? plan->small : plan->large;
    const Index *target = growing ? plan->large : plan->small;
    Index from_row = row_size(plan, source), to_row = row_size(plan, target);
    Index between = plan->steps > 1 ? widest(plan, source, target) * plan->chunk : 0;
    float *buffers = between ? malloc(2 * between * sizeof(float)) : NULL;
    int failed = (between && !buffers) || !arrange_all(&execution, A, !growing, growing);
    for (Index row = 0; row < plan->L && !failed; row += plan->chunk) {
        Index sizes[MOST_AXES], rows = at_most(plan->chunk, plan->L - row);
        memcpy(sizes, source, sizeof sizes);
        const float *x = from + row * from_row;
        for (Index i = 0; i < plan->steps && !failed; i++) {
            float *y = i + 1 < plan->steps ? buffers + (i % 2) * between : to + row * to_row;
            Tensors to_shrink = {.X = x, .shrunk = y}, to_grow = {.Z = x, .grown = y};
            Tensors tensors = growing ? to_grow : to_shrink;
            failed = take_step(&execution, &plan->step[i], sizes, rows, tensors);
            resize(&plan->step[i], sizes, target);
            x = y;
        }
    }
    free(buffers);
    free(execution.memory);
    return failed;
}

int tp_pair(
    Parallel parallel, Index threads, const Plan *plan, const float *const *A, const float *X,
    const float *Z, float *grown, float *shrunk, float *const *D)
{
    Execution execution = {.plan = plan, .threads = {parallel, threads}};
    Index large = row_size(plan, plan->large), small = row_size(plan, plan->small);
    Index last = plan->steps - 1;
    Index between = last ? widest(plan, plan->large, plan->small) * plan->chunk : 0;
    /* X after each step but the last, and two for Z. */
    float *buffers = between ? malloc((last + 2) * between * sizeof(float)) : NULL;
    int failed = (between && !buffers) || !arrange_all(&execution, A, 1, 1);
    for (Index row = 0; row < plan->L && !failed; row += plan->chunk) {
        Index sizes[MOST_AXES], rows = at_most(plan->chunk, plan->L - row);
        const float *x[MOST_AXES] = {X + row * large}, *z = Z + row * small;
        memcpy(sizes, plan->large, sizeof sizes);
        for (Index i = 0; i < last && !failed; i++) {
            float *y = buffers + i * between;
            Tensors tensors = {.X = x[i], .shrunk = y};
            failed = take_step(&execution, &plan->step[i], sizes, rows, tensors);
            resize(&plan->step[i], sizes, plan->small);
            x[i + 1] = y;
        }
        for (Index i = last; i >= 0 && !failed; i--) {
            Tensors tensors = {.X = x[i], .Z = z, .D = D, .add = row > 0};
            if (i > 0)
                tensors.grown = buffers + (last + i % 2) * between;
            else if (grown)
                tensors.grown = grown + row * large;
            if (i == last && shrunk) tensors.shrunk = shrunk + row * small;
            failed = take_step(&execution, &plan->step[i], sizes, rows, tensors);
            resize(&plan->step[i], sizes, plan->large);
            z = tensors.grown;
        }
    }
    free(buffers);
    free(execution.memory);
    return failed;
}
