/* The derivative with respect to one mode's matrix: D = sum over l and r of X[l, :, r] Z[l, :, r]ᵀ.

   It is the product of Z and X over the places (l, r), of which there are many, with the channels
   of X as the lanes. The places are cut into segments and the channels into bands; a piece of work
   is one band of one segment.
*/
#include <stdlib.h>

#include "maps.h"
#include "product.h"

#define BAND 256  /* channels; a multiple of LANES */
#define ENOUGH 16 /* pieces of work */

typedef struct {
    const float *X, *Z;
    float *sums; /* P × Q for each segment */
    Index L, P, Q, R;
    Index bands, segments, next;
    int failed;
} Job;

/* The places from `first` on lie in memory in runs, each within one l. */
#define FOR_RUNS(job, first, depth, k, l, r, run) \
    for (Index k = 0, l = (first) / (job)->R, r = (first) % (job)->R, run; \
         run = at_most((job)->R - r, (depth) - k), k < (depth); k += run, l++, r = 0)

/* `depth` places of Z, from `first` on, arranged for `product`. */
static void arrange_places(const Job *job, Index first, Index depth, float *z)
{
    Index Q = job->Q, R = job->R;
    for (Index block = 0; block < block_count(Q, ROWS); block++)
        if (R == 1)
            arrange_block(job->Z + first * Q, Q, 1, z, depth, Q, 0, depth, block);
        else
            FOR_RUNS (job, first, depth, k, l, r, run)
                arrange_block(job->Z + l * Q * R + r, 1, R, z, run, Q, k, depth, block);
}

/* The same places of X, as x[place][lane], for LANES channels from `channel` on. */
static void pack_places(const Job *job, Index first, Index depth, Index channel, float *x)
{
    Index P = job->P, R = job->R, channels = at_most(P - channel, LANES);
    if (channels < LANES) memset(x, 0, depth * LANES * sizeof(float));
    if (R > 1)
        FOR_RUNS (job, first, depth, k, l, r, run)
            transpose(job->X + (l * P + channel) * R + r, R, channels, run, x + k * LANES, LANES);
    else if (channels == LANES)
        copy_lanes(x, LANES, job->X + first * P + channel, P, depth);
    else
        copy_runs(x, LANES, job->X + first * P + channel, P, depth, channels);
}

static void work_on(const Job *job, float *memory, Index piece)
{
    Index P = job->P, Q = job->Q, places = job->L * job->R;
    float *x = memory, *z = x + DEPTH * LANES, *sums = z + block_count(DEPTH * Q, LANES) * LANES;
    Index segment = piece / job->bands, band = piece % job->bands;
    Index from = band * BAND, end = at_most(from + BAND, P);
    Index blocks = block_count(places, DEPTH), last = start_of(segment + 1, blocks, job->segments);
    Index start = start_of(segment, blocks, job->segments);
    for (Index block = start; block < last; block++) {
        Index first = block * DEPTH, depth = at_most(places - first, DEPTH);
        Prefetch nothing = {.streams = 0};
        arrange_places(job, first, depth, z);
        for (Index c = from; c < end; c += LANES) {
            pack_places(job, first, depth, c, x);
            product(z, x, LANES, sums + (c - from) * Q, LANES, 1, depth, Q, 1, block > start,
                    &nothing);
        }
    }
    float *D = job->sums + segment * P * Q;
    for (Index c = from; c < end; c++) /* for each LANES channels, sums are Q × LANES */
        for (Index k = 0; k < Q; k++)
            D[c * Q + k] = sums[((c - from) / LANES * Q + k) * LANES + (c - from) % LANES];
}

static void work(void *data)
{
    Job *job = data;
    Index floats = (DEPTH + block_count(DEPTH * job->Q, LANES)) * LANES + BAND * job->Q;
    float *memory = aligned_alloc(64, block_count(floats, 16) * 64);
    if (!memory) {
        job->failed = 1;
        return;
    }
    for (Index piece; (piece = take(&job->next)) < job->bands * job->segments;)
        work_on(job, memory, piece);
    free(memory);
}

int derivative(
    const Threads *threads, const Shape *shape, const float *X, const float *Z, float *D, int add)
{
    Index P = shape->p[0], Q = shape->q[0];
    Job job = {.X = X, .Z = Z, .L = shape->L, .P = P, .Q = Q, .R = shape->R};
    job.bands = block_count(P, BAND);
    job.segments = at_most(block_count(job.L * job.R, DEPTH), block_count(ENOUGH, job.bands));
    job.sums = malloc(job.segments * P * Q * sizeof(float));
    if (!job.sums) return 1;
    run(threads, work, &job);
    if (!add) memset(D, 0, P * Q * sizeof(float));
    for (Index s = 0; s < job.segments; s++)
        for (Index e = 0; e < P * Q; e++) D[e] += job.sums[s * P * Q + e];
    free(job.sums);
    return job.failed;
}
