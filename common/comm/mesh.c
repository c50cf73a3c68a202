/* mesh.c -- see mesh.h. */
#include "common/comm/mesh.h"
#include <string.h>
#include "common/comm/comm.h"

/* Name the axes that have more than one rank, and the replicas if their number was given. */
static fsdp_status wrong_sizes(int world_size, const int size[N_AXES])
{
    static const char *const NAMES[N_AXES] = {[AXIS_PP] = "pp",
                                              [AXIS_REPLICATE] = "replicate",
                                              [AXIS_SHARD] = "shard",
                                              [AXIS_CP] = "cp",
                                              [AXIS_TP] = "tp"};
    char given[96] = "";
    for (int a = 0; a < N_AXES; a++) {
        const size_t n = strlen(given);
        if ((size[a] != 0 && size[a] != 1) || (a == AXIS_REPLICATE && size[a] == 1))
            snprintf(given + n, sizeof given - n, "%s%s %d", n > 0 ? ", " : "", NAMES[a], size[a]);
    }
    return fsdp_error(FSDP_EINVAL, "pass sizes whose product is the number of ranks",
                      "mesh: got axes of %s, expected sizes from 1 whose product %s %d, all ranks",
                      given, size[AXIS_REPLICATE] > 0 ? "is" : "divides", world_size);
}

/* Set the place of world_rank along each axis. */
static void place(mesh_shape *s, int world_rank)
{
    for (int a = N_AXES - 1, rest = world_rank; a >= 0; rest /= s->size[a--])
        s->at[a] = rest % s->size[a];
}

fsdp_status mesh_shape_make(int world_size, const int size[N_AXES], int world_rank, mesh_shape *out)
{
    int product = 1;
    *out = (mesh_shape){.world_size = world_size, .world_rank = world_rank};
    if (world_rank < 0 || world_rank >= world_size)
        return fsdp_error(FSDP_EINVAL, "ranks count from 0 to world_size - 1",
                          "mesh: got rank %d of %d", world_rank, world_size);
    for (int a = 0; a < N_AXES; a++) {
        out->size[a] = size[a] == 0 ? 1 : size[a];
        if (out->size[a] < 1 || product > world_size / out->size[a])
            return wrong_sizes(world_size, size);
        product *= out->size[a];
    }
    if (size[AXIS_REPLICATE] == 0)
        out->size[AXIS_REPLICATE] = world_size / product;
    if (world_size % product != 0 || (size[AXIS_REPLICATE] > 0 && product != world_size))
        return wrong_sizes(world_size, size);
    place(out, world_rank);
    return FSDP_OK;
}

int mesh_leaf_of(const mesh_shape *s, int world_rank)
{
    mesh_shape there = *s;
    place(&there, world_rank);
    return there.at[AXIS_PP] == s->size[AXIS_PP] - 1 && there.at[AXIS_TP] == 0
               ? mesh_leaf_rank(&there)
               : -1;
}

fsdp_status mesh_group(comm *world, const mesh_shape *s, unsigned axes, comm **out)
{
    comm_ranks x = {.first = s->world_rank, .step = 1, .n = 1, .outer_step = 0, .n_outer = 1};
    *out = NULL;
    for (int a = N_AXES - 1, stride = 1; a >= 0; stride *= s->size[a--]) {
        if (!(axes >> a & 1) || s->size[a] == 1)
            continue;
        x.first -= s->at[a] * stride;
        if (x.n == 1) {
            x.step = stride;
            x.n = s->size[a];
        } else if (x.n_outer == 1 && stride == x.step * x.n) { /* goes on where the last one ends */
            x.n *= s->size[a];
        } else if (x.n_outer == 1) {
            x.outer_step = stride;
            x.n_outer = s->size[a];
        } else if (stride == x.outer_step * x.n_outer) {
            x.n_outer *= s->size[a];
        } else {
            return fsdp_error(FSDP_EINVAL,
                              "leave out axes between the first and the last in one place only",
                              "mesh: no group of axes 0x%x: two gaps between them", axes);
        }
    }
    if (x.n * x.n_outer == s->world_size)
        *out = world;
    return x.n == 1 || *out == world ? FSDP_OK : comm_subset(world, &x, out);
}

/* The copy is the row, unless tp or pp cuts the model too. */
static fsdp_status open_groups(mesh *m)
{
    const mesh_shape *s = &m->shape;
    const unsigned row = 1u << AXIS_SHARD | 1u << AXIS_CP, column = 1u << AXIS_REPLICATE;
    const bool is_cut = s->size[AXIS_PP] * s->size[AXIS_TP] > 1;
    TRY(mesh_group(m->world, s, row, &m->shard));
    if (s->size[AXIS_REPLICATE] > 1)
        TRY(mesh_group(m->world, s, column, &m->replicate));
    if (s->size[AXIS_REPLICATE] == 1 && m->shard)
        m->dp_cp = m->shard;
    else if (mesh_leaf_size(s) > 1)
        TRY(mesh_group(m->world, s, row | column, &m->dp_cp));
    else
        TRY(comm_range(m->world, s->world_rank, 1, 1, &m->dp_cp));
    m->copy = m->shard;
    if (s->size[AXIS_TP] > 1)
        TRY(mesh_group(m->world, s, 1u << AXIS_TP, &m->tp));
    return is_cut ? mesh_group(m->world, s, ((1u << N_AXES) - 1) & ~column, &m->copy) : FSDP_OK;
}

fsdp_status mesh_open(comm *world, const int size[N_AXES], mesh *out)
{
    *out = (mesh){.world = world};
    TRY(mesh_shape_make(comm_size(world), size, comm_rank(world), &out->shape));
    fsdp_status status = open_groups(out);
    if (status != FSDP_OK)
        mesh_close(out);
    return status;
}

void mesh_close(mesh *m)
{
    comm *const groups[] = {m->copy, m->tp, m->dp_cp, m->replicate};
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++)
        if (groups[i] != m->world && groups[i] != m->shard)
            comm_close(groups[i]);
    if (m->shard != m->world)
        comm_close(m->shard);
    *m = (mesh){0};
}
