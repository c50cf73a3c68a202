/* test_mesh.c -- ranks as a grid of shard groups and replicas.
 *
 *   build/fsdp_run -n W build/tests/unit/test_mesh          (W = 1: alone)
 *
 * Prints like test_comm. The arithmetic is checked for every grid of up to 12 ranks, and the groups
 * for every grid of the W ranks. */
#include <stdlib.h>
#include <string.h>
#include "lab2_forward/placement.h"
#include "common/comm/mesh.h"
#include "tests/unit/comm_cases_lib.h"

/* The slices are a permutation. The slices of a column make up the column's shard. (W = 6 in rows
 * of 3: rank 4 is shard 1 of replica 1, and keeps the second half of shard 1.) */
static void test_arithmetic(comm_fixture *f)
{
    for (int w = 1; w <= 12; w++)
        for (int rows = 1; rows <= w; rows++) {
            mesh_shape s;
            bool seen[12] = {false};
            if (w % rows != 0) {
                CHECK(f,
                      mesh_shape_make(w, (const int[N_AXES]){[AXIS_SHARD] = rows}, 0, &s) ==
                          FSDP_EINVAL,
                      "%d in rows of %d", w, rows);
                continue;
            }
            for (int r = 0; r < w; r++) {
                CHECK_OK(f, mesh_shape_make(w, (const int[N_AXES]){[AXIS_SHARD] = rows}, r, &s));
                CHECK(f, s.at[AXIS_REPLICATE] * rows + s.at[AXIS_SHARD] == r, "W=%d S=%d rank %d",
                      w, rows, r);
                const int slice = placement_slice(&(placement){.n_shards = rows}, w, r);
                CHECK(f, slice / s.size[AXIS_REPLICATE] == s.at[AXIS_SHARD],
                      "W=%d S=%d rank %d: slice %d", w, rows, r, slice);
                CHECK(f, slice % s.size[AXIS_REPLICATE] == s.at[AXIS_REPLICATE],
                      "W=%d S=%d rank %d: slice %d", w, rows, r, slice);
                CHECK(f, !seen[slice], "W=%d S=%d: slice %d twice", w, rows, slice);
                seen[slice] = true;
            }
        }
}

static void test_refusals(comm_fixture *f)
{
    mesh_shape s;
    mesh m;
    CHECK(f, mesh_shape_make(4, (const int[N_AXES]){[AXIS_SHARD] = -1}, 0, &s) == FSDP_EINVAL,
          "rows of fewer than none");
    CHECK(f, mesh_shape_make(0, (const int[N_AXES]){[AXIS_SHARD] = 1}, 0, &s) == FSDP_EINVAL,
          "no ranks");
    CHECK(f, mesh_shape_make(4, (const int[N_AXES]){[AXIS_SHARD] = 2}, 4, &s) == FSDP_EINVAL,
          "rank 4 of 4");
    CHECK(f, mesh_shape_make(4, (const int[N_AXES]){[AXIS_SHARD] = 2}, -1, &s) == FSDP_EINVAL,
          "rank -1");
    CHECK(f, mesh_open(f->c, (const int[N_AXES]){[AXIS_SHARD] = f->world + 1}, &m) == FSDP_EINVAL,
          "rows longer than the world");
    CHECK(f, strstr(fsdp_error_get()->what, "axes of shard ") != NULL, "its words: %.150s",
          fsdp_error_get()->what);
}

/* The members of a group: the sum of 1 << rank by an all-reduce. */
static int64_t members(comm_fixture *f, comm *group)
{
    int64_t mask = (int64_t)1 << f->rank;
    CHECK_OK(f, comm_all_reduce(group, f->s, "members", DTYPE_I64, &mask, 1));
    CHECK_OK(f, stream_sync(f->s));
    return mask;
}

/* An axis of size W is the world itself. An axis of size 1 in a larger world has no group. */
static void check_groups(comm_fixture *f, const mesh *m)
{
    const mesh_shape *s = &m->shape;
    int64_t row = 0, column = 0;
    for (int r = 0; r < f->world; r++) {
        row |= (int64_t)(r / s->size[AXIS_SHARD] == s->at[AXIS_REPLICATE]) << r;
        column |= (int64_t)(r % s->size[AXIS_SHARD] == s->at[AXIS_SHARD]) << r;
    }
    CHECK(f, m->world == f->c, "the world is the group that was given");
    if (s->size[AXIS_SHARD] == f->world)
        CHECK(f, m->shard == f->c && m->replicate == NULL, "S = W: no split");
    else if (s->size[AXIS_SHARD] == 1)
        CHECK(f, m->shard == NULL && m->replicate == f->c, "S = 1: no split");
    if (m->shard != NULL) {
        CHECK(f, comm_rank(m->shard) == s->at[AXIS_SHARD], "rank in the row");
        CHECK(f, members(f, m->shard) == row, "S=%d: the row's members", s->size[AXIS_SHARD]);
    }
    if (m->replicate != NULL) {
        CHECK(f, comm_rank(m->replicate) == s->at[AXIS_REPLICATE], "rank in the column");
        CHECK(f, members(f, m->replicate) == column, "S=%d: the column's members",
              s->size[AXIS_SHARD]);
    }
}

static void test_groups(comm_fixture *f)
{
    for (int rows = 1; rows <= f->world; rows++) {
        mesh m;
        if (f->world % rows != 0)
            continue;
        CHECK_OK(f, mesh_open(f->c, (const int[N_AXES]){[AXIS_SHARD] = rows}, &m));
        comm_job_stats_reset(f->c);
        check_groups(f, &m);
        uint64_t calls = (m.shard != NULL) + (m.replicate != NULL);
        CHECK(f, comm_job_stats_read(f->c).calls[COMM_OP_ALL_REDUCE] == calls,
              "S=%d: calls of all groups are counted once", rows);
        mesh_close(&m);
        CHECK(f, m.shard == NULL && m.replicate == NULL, "closed");
    }
}

int main(void)
{
    comm_fixture f;
    if (comm_test_open(&f, &device_cpu, true) != FSDP_OK)
        return 1;
    comm_test_run(&f, "mesh.arithmetic", test_arithmetic);
    comm_test_run(&f, "mesh.refusals", test_refusals);
    comm_test_run(&f, "mesh.groups", test_groups);
    return comm_test_close(&f);
}
