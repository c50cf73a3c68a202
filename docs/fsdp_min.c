/* fsdp_min.c -- FSDP in one file: W ranks train one model, and each rank keeps 1/W of it.
 *
 *   make build/fsdp_min && mpiexec -n 3 build/fsdp_min      -n 1, 2, 3, 4, 6 or 12
 *
 * Every number of ranks prints the same text: all losses and weights have the bits of one rank.
 * Without MPICH's own mpiexec (Debian: mpiexec.mpich) every process is a job of one rank.
 *
 * Between two steps a rank holds its shard: 1/W of the weights and of AdamW's two moments. A step:
 *
 *   gather    every rank gets all weights                MPI_Allgather     labs 1 and 2
 *   compute   gradients of the rank's own samples                          labs 2 and 3
 *   reduce    every rank gets the sum of all gradients,  MPI_Alltoall,     lab 3
 *             but only the part for its shard            then additions
 *   update    AdamW on the shard                                           lab 4
 *
 * What the labs add:
 *   - Here a rank holds all weights while it computes. The labs cut the model into units (lab 1),
 *     gather one unit, compute with it and free it (lab 2), and gather it again for its backward
 *     pass (lab 3). So no rank ever holds all weights.
 *   - Here communication and computation take turns. In lab 5 they run at the same time.
 *   - Here a rank sends the gradient of each of its samples. The labs send sums; see train_step().
 *   - Lab 4 adds gradient clipping, checkpoints, and biases that do not decay. */
#include <math.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The model is y = W2 tanh(W1 x + b1) + b2, with IN inputs and one output. Its parameters lie one
 * after the other in a flat array of N_PARAMS elements (task 1.2); these are their offsets. */
enum { IN = 4, HIDDEN = 16 };
enum { W1 = 0, B1 = W1 + HIDDEN * IN, W2 = B1 + HIDDEN, B2 = W2 + HIDDEN, N_PARAMS = B2 + 1 };
/* Each step takes the next BATCH of SAMPLES samples: the leaves of every sum. Rank r computes
 * BATCH/W of them, from number r * BATCH/W on. All steps that are printed have the same batch. */
enum { SAMPLES = 60, BATCH = 12, STEPS = 101, REPORT_EVERY = 10, WEIGHT_SEED = 1, DATA_SEED = 2 };

/* What a rank keeps (task 1.1). The flat array is padded with zeros to W shards of equal length:
 * N_PARAMS = 97 and W = 3 make shards of 33, 33 and 31 elements + 2 of padding; W = 12 makes shards
 * of 9, and the last one is all padding. */
typedef struct shard {
    int world_size, rank;
    int elems;        /* of a shard: N_PARAMS / W, rounded up */
    float *w, *m, *v; /* [elems] weights and moments; nobody else has them */
} shard;

/* zeros -- a new array [elems], which the caller frees. */
static float *zeros(int elems)
{
    float *array = calloc((size_t)elems, sizeof *array);
    if (!array)
        MPI_Abort(MPI_COMM_WORLD, 1);
    return array;
}

/* uniform -- a number in [-1, 1) that depends on (seed, i) alone: a hash, which any rank can
 * compute for any i. The labs use Philox (common/model/init.h). */
static float uniform(int seed, int i)
{
    uint64_t x = ((uint64_t)seed << 32 | (uint32_t)i) * 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return (float)(x >> 40) * 0x1p-23f - 1;
}

/* shard_init -- allocate this rank's shard and fill in its initial weights (task 1.5). No rank
 * makes all weights, so the model may be larger than the memory of one rank. Padding stays zero. */
static void shard_init(shard *s)
{
    s->elems = (N_PARAMS + s->world_size - 1) / s->world_size;
    s->w = zeros(s->elems);
    s->m = zeros(s->elems);
    s->v = zeros(s->elems);
    for (int i = 0; i < s->elems; i++) {
        const int at = s->rank * s->elems + i; /* place in the flat array */
        if (at < N_PARAMS)
            s->w[i] = uniform(WEIGHT_SEED, at) / sqrtf(at < W2 ? IN : HIDDEN);
    }
}

/* sample_backward -- forward and backward of one sample, whose target is x[0] * x[1]. Returns its
 * loss, half the squared error.
 *   full  [N_PARAMS] all weights
 *   grad  [N_PARAMS] its gradient, written */
static float sample_backward(const float *full, int sample, float *grad)
{
    float x[IN], h[HIDDEN], y = full[B2];
    for (int j = 0; j < IN; j++)
        x[j] = uniform(DATA_SEED, sample * IN + j);
    for (int k = 0; k < HIDDEN; k++) {
        float a = full[B1 + k];
        for (int j = 0; j < IN; j++)
            a += full[W1 + k * IN + j] * x[j];
        h[k] = tanhf(a);
        y += full[W2 + k] * h[k];
    }
    const float error = y - x[0] * x[1];
    grad[B2] = error;
    for (int k = 0; k < HIDDEN; k++) {
        const float d_a = error * full[W2 + k] * (1 - h[k] * h[k]);
        grad[W2 + k] = error * h[k];
        grad[B1 + k] = d_a;
        for (int j = 0; j < IN; j++)
            grad[W1 + k * IN + j] = d_a * x[j];
    }
    return error * error / 2;
}

/* update -- AdamW on the shard (task 4.1), without communication. Padding has weight 0 and gradient
 * 0, so it stays 0. */
static void update(shard *s, int step, const float *grad_sum)
{
    const float lr = 0.02f, beta1 = 0.9f, beta2 = 0.999f, eps = 1e-8f, weight_decay = 0.01f;
    const float bias1 = 1 - powf(beta1, (float)(step + 1));
    const float bias2 = 1 - powf(beta2, (float)(step + 1));

    for (int i = 0; i < s->elems; i++) {
        const float g = grad_sum[i] / BATCH; /* scaled once, after all additions (task 3.3) */
        s->m[i] += (1 - beta1) * (g - s->m[i]);
        s->v[i] += (1 - beta2) * (g * g - s->v[i]);
        const float direction = s->m[i] / bias1 / (sqrtf(s->v[i] / bias2) + eps);
        s->w[i] -= lr * (direction + weight_decay * s->w[i]);
    }
}

/* train_step -- one step of all ranks together. Returns the mean loss on rank 0, else 0. */
static float train_step(shard *s, int step)
{
    const int elems = s->elems, own = BATCH / s->world_size; /* samples of each rank */
    float loss[BATCH] = {0}, losses[BATCH] = {0}, loss_sum = 0;

    /* GATHER (tasks 2.1, 3.1). Shards are equally long, so one call puts all weights into place. */
    float *full = zeros(s->world_size * elems);
    MPI_Allgather(s->w, elems, MPI_FLOAT, full, elems, MPI_FLOAT, MPI_COMM_WORLD);

    /* COMPUTE. send [W][own][elems] has, for each rank, its part of the gradient of each sample. */
    float *grad = zeros(s->world_size * elems), *send = zeros(BATCH * elems);
    for (int i = 0; i < own; i++) {
        loss[i] = sample_backward(full, (step * BATCH + s->rank * own + i) % SAMPLES, grad);
        for (int r = 0; r < s->world_size; r++)
            memcpy(send + (r * own + i) * elems, grad + r * elems, (size_t)elems * sizeof *grad);
    }
    free(grad);
    free(full); /* reshard (task 2.3): only the shard stays */

    /* REDUCE (task 3.2a): a reduce-scatter. MPI_Reduce_scatter would move less, but MPI chooses the
     * order of its additions, and the last bits of a float sum depend on that order. So a rank gets
     * its part of the gradient of every sample, and adds these up from the first sample to the
     * last. For the same reason no rank may add up its own samples first. In the labs it may: their
     * sum is a binary tree over the samples (common/sum/tree_sum.h), and a rank sends the sum of a
     * whole subtree. */
    float *grad_sum = zeros(elems), *received = zeros(BATCH * elems); /* [BATCH][elems] */
    MPI_Alltoall(send, own * elems, MPI_FLOAT, received, own * elems, MPI_FLOAT, MPI_COMM_WORLD);
    for (int leaf = 0; leaf < BATCH; leaf++)
        for (int i = 0; i < elems; i++)
            grad_sum[i] += received[leaf * elems + i];

    update(s, step, grad_sum);
    free(grad_sum);
    free(received);
    free(send);

    MPI_Gather(loss, own, MPI_FLOAT, losses, own, MPI_FLOAT, 0, MPI_COMM_WORLD);
    for (int leaf = 0; leaf < BATCH; leaf++) /* added up in the same order */
        loss_sum += losses[leaf];
    return loss_sum / BATCH;
}

/* print_weights -- print a checksum of all bits of all weights. Sums of integers do not depend on
 * the order of additions, so MPI may add. Padding adds nothing, because the bits of 0.0f are 0. */
static void print_weights(const shard *s, const char *when)
{
    uint64_t own = 0, all = 0;
    for (int i = 0; i < s->elems; i++) {
        uint32_t bits;
        memcpy(&bits, &s->w[i], sizeof bits);
        own += bits * (2 * (uint64_t)(s->rank * s->elems + i) + 1);
    }
    MPI_Reduce(&own, &all, 1, MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
    if (s->rank == 0)
        printf("weights %s: %016llx\n", when, (unsigned long long)all);
}

int main(void)
{
    shard s = {0};
    MPI_Init(NULL, NULL);
    MPI_Comm_size(MPI_COMM_WORLD, &s.world_size);
    MPI_Comm_rank(MPI_COMM_WORLD, &s.rank);
    if (BATCH % s.world_size != 0) {
        if (s.rank == 0)
            fprintf(stderr,
                    "fsdp_min: %d ranks cannot share %d samples equally\n"
                    "HINT: start 1, 2, 3, 4, 6 or 12 ranks: mpiexec -n 3 build/fsdp_min\n",
                    s.world_size, BATCH);
        MPI_Finalize();
        return 2;
    }
    shard_init(&s);
    print_weights(&s, "before");
    for (int step = 0; step < STEPS; step++) {
        const float loss = train_step(&s, step);
        if (s.rank == 0 && step % REPORT_EVERY == 0)
            printf("step %3d  loss %.9g\n", step, loss);
    }
    print_weights(&s, "after");
    free(s.v);
    free(s.m);
    free(s.w);
    MPI_Finalize();
    return 0;
}
