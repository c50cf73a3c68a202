/* test_placement.c -- units whose placements are not the usual one: shards of rows, groups that
 * differ from unit to unit, and a gradient that another rank counts in the norm. Gradients are
 * compared element by element with the zeros of the padding, for every mesh of these ranks. Free
 * memory holds NaN. The matrix of options tests what is gathered.
 *
 *   build/fsdp_run -n W build/tests/unit/test_placement          (W = 1: alone) */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "common/model/family.h"
#include "common/ops/ops.h"
#include "lab2_forward/fsdp_setup.h"
#include "lab3_backward/reducer_setup.h"
#include "lab3_backward/second_use.h"
#include "lab4_optimizer/optimizer_setup.h"
#include "lab5_prefetch/prefetch_setup.h"
#include "tests/unit/comm_cases_lib.h"

static const model_config MODEL = {.family = "gpt2",
                                   .n_blocks = 2,
                                   .n_head = 2,
                                   .d_model = 10,
                                   .d_ff = 7,
                                   .vocab_size = 13,
                                   .max_seq_len = 5,
                                   .norm_eps = 1e-5f};
enum { SEED = 5, STEPS = 2 };

typedef struct rig {
    comm_fixture *f;
    model m;
    mesh mesh;
    fsdp fsdp;
    reducer r;
} rig;

static void rig_make(rig *x, comm_fixture *f, int shard_size, grad_acc_mode mode)
{
    *x = (rig){.f = f};
    CHECK_OK(f, model_create(&MODEL, &x->m));
    CHECK_OK(f, mesh_open(f->c, (const int[N_AXES]){[AXIS_SHARD] = shard_size}, &x->mesh));
    const fsdp_config config = {.run = {.m = &x->m,
                                        .ops = ops_cpu_portable(),
                                        .dev = f->dev,
                                        .world = f->c,
                                        .mode = mode,
                                        .batch = 1,
                                        .seed = SEED},
                                .mesh = &x->mesh,
                                .per_param = true};
    CHECK_OK(f, fsdp_create(&config, &x->fsdp));
    CHECK_OK(f, reducer_create(&x->fsdp,
                               shard_size == f->world ? SHARDING_FULL
                               : shard_size == 1      ? SHARDING_NONE
                                                      : SHARDING_HYBRID,
                               &x->r));
}

static void rig_free(rig *x)
{
    reducer_free(&x->r);
    fsdp_free(&x->fsdp);
    mesh_close(&x->mesh);
    model_free(&x->m);
}

/* Element i of a rank's gradient in micro-step a. Sums of such elements are exact. */
static float gradient(int rank, int a, size_t i)
{
    return (float)(1 + (i * 3 + (size_t)(rank * 5 + a)) % 11);
}

/* Fills the gradient of a unit or of a second use. Gaps are zero. */
static void fill(rig *x, int u, const grad_buffer *b, int a)
{
    const flat_layout *l = &x->fsdp.units[u].layout;
    float *values = comm_test_alloc(b->elems * sizeof *values);
    memset(values, 0, b->elems * sizeof *values);
    for (int k = 0; k < l->n_slots; k++)
        for (size_t i = l->slots[k].offset; i < l->slots[k].offset + l->slots[k].elems; i++)
            if (i >= b->begin && i < b->begin + b->elems)
                values[i - b->begin] = gradient(x->f->rank, a, i);
    CHECK_OK(x->f, device_upload(x->fsdp.compute, b->full_grad, values, b->elems * sizeof *values));
    free(values);
}

/* Half the sum over ranks and micro-steps, doubled for a parameter with a second use, in the
 * elements of this rank's pieces; zero elsewhere. */
static void wanted(const rig *x, int u, float *want)
{
    const unit_grad *g = &x->r.grads[u];
    const flat_layout *l = &x->fsdp.units[u].layout;
    flat_piece *pieces = comm_test_alloc((size_t)l->n_slots * sizeof *pieces);
    int n = 0;
    CHECK_OK(x->f, flat_intersect(l, x->mesh.shape.at[AXIS_SHARD], pieces, &n));
    memset(want, 0, l->shard_elems * sizeof *want);
    for (int k = 0; k < n; k++)
        for (size_t i = 0; i < pieces[k].elems; i++) {
            const flat_slot *s = &l->slots[pieces[k].slot];
            const bool twice = g->buffer.next && s->offset == g->buffer.next->begin;
            float sum = 0;
            for (int r = 0; r < x->f->world; r++)
                for (int a = 0; a < STEPS; a++)
                    sum += gradient(r, a, s->offset + pieces[k].param_begin + i);
            want[pieces[k].shard_begin + i] = (twice ? 2 : 1) * sum / 2;
        }
    free(pieces);
}

static void reduce_all(rig *x)
{
    for (int a = 0; a < STEPS; a++)
        for (int u = 0; u < x->fsdp.n_units; u++) {
            unit_grad *g = &x->r.grads[u];
            CHECK_OK(x->f, full_grad_alloc(&x->r, u));
            fill(x, u, &g->buffer, a);
            if (g->buffer.next)
                fill(x, u, g->buffer.next, a);
            CHECK_OK(x->f, reduce_begin(&x->r, u));
            const placement *p = &x->fsdp.units[u].given.place;
            CHECK(x->f,
                  x->fsdp.reduce_group == p->reduce_group && x->r.batch_level == p->batch_level,
                  "unit %d is reduced in its own group, at its own level", u);
            CHECK_OK(x->f, reduce_wait(&x->r, u));
        }
    for (int u = 0; u < x->fsdp.n_units; u++) {
        const placement *p = &x->fsdp.units[u].given.place;
        CHECK_OK(x->f, grad_finish(&x->r, u, 0.5f));
        CHECK_OK(x->f, grad_all_gather(&x->r, u));
        CHECK(x->f, p->n_shards == x->f->world || x->fsdp.mesh.replicate == p->replica_group,
              "unit %d's slices are gathered in its own group", u);
    }
}

static void check_reduction(rig *x)
{
    reduce_all(x);
    for (int u = 0; u < x->fsdp.n_units; u++) {
        const size_t n = x->fsdp.units[u].layout.shard_elems;
        float *got = comm_test_alloc(n * sizeof *got), *want = comm_test_alloc(n * sizeof *want);
        wanted(x, u, want);
        CHECK_OK(x->f,
                 device_download(x->fsdp.compute, got, x->r.grads[u].shard_grad, n * sizeof *got));
        CHECK_OK(x->f, stream_sync(x->fsdp.compute));
        for (size_t i = 0; i < n; i++)
            CHECK(x->f, got[i] == want[i], "unit %d, element %zu of the shard: %g, not %g", u, i,
                  (double)got[i], (double)want[i]);
        free(got);
        free(want);
    }
    CHECK_OK(x->f, zero_grad(&x->r));
}

/* Every mesh, in fast and in canonical mode. */
static void test_reduction(comm_fixture *f)
{
    for (int s = 1; s <= f->world; s++)
        for (int mode = GRAD_ACC_FAST; f->world % s == 0 && mode <= GRAD_ACC_CANONICAL; mode++) {
            rig x;
            rig_make(&x, f, s, (grad_acc_mode)mode);
            if (f->why[0] == '\0')
                check_reduction(&x);
            rig_free(&x);
        }
}

/* Unit 1 has other groups than the rest and another level, as units of experts will; here its
 * groups are of the same ranks. Lab 5 makes a twin of each group and stream, and gives the groups
 * back. */
static void check_groups(rig *x, const placement *other)
{
    fsdp *f = &x->fsdp;
    const prefetch_config config = {.mode = PREFETCH_BOTH, .limit = 2};
    prefetch p;
    unit_hooks hooks;
    placement *root = &f->units[0].given.place, *odd = &f->units[1].given.place,
              *last = &f->units[2].given.place;
    odd->gather_group = other->gather_group;
    odd->reduce_group = other->reduce_group;
    odd->replica_group = other->replica_group;
    odd->batch_level = root->batch_level + 1;
    CHECK_OK(x->f, prefetch_create(&config, &x->r, &p, &hooks));
    CHECK(x->f, root->gather_group != x->mesh.shard && root->reduce_group != x->mesh.dp_cp,
          "lab 5 communicates in groups of its own");
    CHECK(x->f,
          root->gather_group == last->gather_group && root->reduce_group == last->reduce_group,
          "units that share a group share its twin");
    CHECK(x->f,
          odd->gather_group != root->gather_group && odd->reduce_group != root->reduce_group &&
              odd->gather_group != odd->reduce_group && odd->gather_group != other->gather_group,
          "unit 1 has twins of its own groups, one for each stream");
    for (int u = 0; u < f->n_units; u++) {
        CHECK_OK(x->f, unshard_begin(f, u));
        CHECK(x->f, f->gather_group == f->units[u].given.place.gather_group,
              "unit %d is gathered in its own group", u);
        CHECK_OK(x->f, unshard_drop(f, u));
    }
    check_reduction(x);
    prefetch_free(&p);
    CHECK(x->f,
          odd->gather_group == other->gather_group && odd->reduce_group == other->reduce_group,
          "unit 1's groups are back");
    CHECK(x->f, last->gather_group == x->mesh.shard && last->reduce_group == x->mesh.dp_cp,
          "the last unit's groups are back");
}

/* A group of the same ranks, or NULL. */
static comm *twin(comm_fixture *f, comm *group)
{
    comm *out = NULL;
    if (group)
        CHECK_OK(f, comm_range(group, 0, 1, comm_size(group), &out));
    return out;
}

static void test_groups(comm_fixture *f)
{
    rig x;
    rig_make(&x, f, f->world > 2 && f->world % 2 == 0 ? f->world / 2 : f->world,
             GRAD_ACC_CANONICAL);
    const placement other = {.gather_group = twin(f, x.mesh.shard),
                             .reduce_group = twin(f, x.mesh.dp_cp),
                             .replica_group = twin(f, x.mesh.replicate)};
    if (f->why[0] == '\0')
        check_groups(&x, &other);
    rig_free(&x);
    comm_close(other.gather_group);
    comm_close(other.reduce_group);
    comm_close(other.replica_group);
}

/* Four times the sum of squares of this rank's gradients of unit u, which are halves of whole
 * numbers. */
static int64_t squares(const rig *x, int u)
{
    const size_t n = x->fsdp.units[u].layout.shard_elems;
    float *want = comm_test_alloc(n * sizeof *want);
    int64_t sum = 0;
    wanted(x, u, want);
    for (size_t i = 0; i < n; i++)
        sum += (int64_t)(2 * want[i]) * (int64_t)(2 * want[i]);
    free(want);
    return sum;
}

/* The norm leaves unit 1 out; the optimizer updates it. */
static void check_counts(rig *x)
{
    fsdp *f = &x->fsdp;
    fsdp_optimizer o;
    float before, after, norm;
    int64_t sum = 0;
    f->units[1].given.place.counts = false;
    CHECK_OK(x->f, optimizer_create(&x->r, &o));
    reduce_all(x);
    for (int u = 0; u < f->n_units; u++)
        sum += u == 1 ? 0 : squares(x, u);
    if (o.norm_group)
        CHECK_OK(x->f, comm_all_reduce(o.norm_group, f->compute, "want", DTYPE_I64, &sum, 1));
    const float *at =
        f->units[1].shard + (o.units[1].n_updated > 0 ? o.units[1].updated->begin : 0);
    CHECK_OK(x->f, device_download(f->compute, &before, at, sizeof before));
    CHECK_OK(x->f, grad_norm(&o));
    CHECK_OK(x->f, o.ops->clip_coef(f->compute, &(clip_coef_args){.norm = o.norm,
                                                                  .coef = o.coef,
                                                                  .sum = o.norm_sum,
                                                                  .max_norm = 0}));
    const step_scalars sc = {
        .optim = {.lr = 0.125, .beta1 = 0.5, .beta2 = 0.5, .eps = 1, .step = 0}};
    CHECK_OK(x->f, optimizer_update(&o, &sc, adamw_shard));
    CHECK_OK(x->f, device_download(f->compute, &norm, o.norm, sizeof norm));
    CHECK_OK(x->f, device_download(f->compute, &after, at, sizeof after));
    CHECK_OK(x->f, stream_sync(f->compute));
    CHECK(x->f, norm == (float)sqrt((double)sum / 4), "norm %.9g, not %.9g", (double)norm,
          sqrt((double)sum / 4));
    CHECK(x->f, before != after || o.units[1].n_updated == 0, "unit 1 is updated");
    CHECK_OK(x->f, zero_grad(&x->r));
    optimizer_free(&o);
}

static void test_counts(comm_fixture *f)
{
    for (int s = 1; s <= f->world; s++) {
        rig x;
        if (f->world % s != 0)
            continue;
        rig_make(&x, f, s, GRAD_ACC_CANONICAL);
        if (f->why[0] == '\0')
            check_counts(&x);
        rig_free(&x);
    }
}

int main(void)
{
    comm_fixture f;
    if (comm_test_open(&f, &device_cpu, true) != FSDP_OK)
        return 1;
    comm_test_run(&f, "placement.rows", test_reduction);
    comm_test_run(&f, "placement.groups", test_groups);
    comm_test_run(&f, "placement.counts", test_counts);
    return comm_test_close(&f);
}
