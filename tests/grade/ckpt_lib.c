/* ckpt_lib.c -- task 4.5: pieces between any two world sizes in one process, and real files between
 * groups of the launch's ranks.
 *
 * Gaps and padding hold NaN when a shard is packed, so a file that holds them is found. */
#include <errno.h>
#include <ftw.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "lab4_optimizer/checkpoint.h"
#include "lab4_optimizer/optimizer_setup.h"
#include "tests/grade/handmade_lib.h"
#include "tests/grade/ckpt_lib.h"

/* PARAMS of handmade_lib.h without the tied parameter, as in lab4.c. */
#define SPEC(...) FIX_SPEC(.n_params = 8, __VA_ARGS__)

static const flat_slot CKPT_SLOTS[] = {{3, 0, 10}, {1, 12, 3}, {7, 16, 9}};
enum { CKPT_USED = 28, CKPT_ELEMS = 22, CKPT_N_SLOTS = 3, CKPT_GUARD = -7 };

static float ckpt_value(const flat_layout *l, size_t flat)
{
    for (int k = 0; k < l->n_slots; k++)
        if (flat >= l->slots[k].offset && flat < l->slots[k].offset + l->slots[k].elems)
            return fix_value(l->slots[k].param, flat - l->slots[k].offset);
    return NAN;
}

/* Nothing changes after the room for pieces, or after the packed values. */
static fsdp_status expect_guards(const ckpt_pieces *out, size_t n_values)
{
    const float guard = CKPT_GUARD;
    TRY(EXPECT(out->pieces[CKPT_N_SLOTS].param == CKPT_GUARD,
               "the shard has n_mine pieces, at most one of each slot",
               "ckpt_pack: out->pieces[%d] was written, expected no more than layout->n_slots",
               CKPT_N_SLOTS));
    return expect_f32("ckpt_pack: out->values after the last piece", &out->values[n_values], &guard,
                      1);
}

/* Pack every rank of W' in turn. Together the pieces have each element once, without padding. */
static fsdp_status pack_all(const flat_layout *l, ckpt_pieces *out)
{
    size_t total = 0;
    for (int r = 0; r < l->world_size; r++) {
        float shard[CKPT_USED];
        for (size_t i = 0; i < l->shard_elems; i++)
            shard[i] = ckpt_value(l, (size_t)r * l->shard_elems + i);
        TRY(ckpt_pack(l, r, shard, &out[r]));
        size_t at = 0;
        for (int k = 0; k < out[r].n_pieces; k++) {
            const ckpt_piece *p = &out[r].pieces[k];
            TRY(EXPECT(p->param == 3 || p->param == 1 || p->param == 7,
                       "param is the slot's; n_pieces counts the pieces that are written",
                       "ckpt_pack: piece %d of %d names parameter %d, expected 3, 1 or 7", k,
                       out[r].n_pieces, p->param));
            for (uint64_t i = 0; i < p->elems; i++, at++) {
                float want = fix_value(p->param, p->begin + i);
                TRY(expect_f32("packed value", &out[r].values[at], &want, 1));
            }
        }
        TRY(expect_guards(&out[r], at));
        total += at;
    }
    return expect_size("packed elements of all ranks", total, CKPT_ELEMS);
}

static fsdp_status repack(int from, int to)
{
    ckpt_piece pieces[8][CKPT_N_SLOTS + 1];
    float values[8][CKPT_USED + 1];
    ckpt_pieces files[8];
    for (int r = 0; r < 8; r++) {
        files[r] = (ckpt_pieces){.pieces = pieces[r], .values = values[r]};
        pieces[r][CKPT_N_SLOTS].param = CKPT_GUARD;
        for (int i = 0; i <= CKPT_USED; i++)
            values[r][i] = CKPT_GUARD;
    }
    flat_layout a = fix_layout(from, CKPT_SLOTS, CKPT_N_SLOTS, CKPT_USED);
    flat_layout b = fix_layout(to, CKPT_SLOTS, CKPT_N_SLOTS, CKPT_USED);
    TRY(pack_all(&a, files));
    size_t elems = 0;
    for (int r = 0; r < to; r++) {
        float shard[CKPT_USED];
        for (size_t i = 0; i < b.shard_elems; i++)
            shard[i] = NAN;
        for (int file = from - 1; file >= 0; file--) /* any order of files */
            TRY(ckpt_unpack(&b, r, &files[file], shard, &elems));
        for (size_t i = 0; i < b.shard_elems; i++) {
            float want = ckpt_value(&b, (size_t)r * b.shard_elems + i);
            TRY(expect_f32(WHAT("%d -> %d ranks, rank %d", from, to, r), &shard[i], &want, 1));
        }
    }
    return expect_size(WHAT("%d -> %d ranks: elements placed", from, to), elems, CKPT_ELEMS);
}

static fsdp_status repack_all(void)
{
    /* In the first case every piece overlaps every run of the shard, so mixed-up parameters give
     * wrong values. In the other cases they can give a negative length, which crashes. */
    static const int cases[][2] = {{1, 1}, {4, 3}, {2, 4}, {1, 4}, {4, 1}, {3, 2}, {5, 8}, {8, 5}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        TRY(repack(cases[i][0], cases[i][1]));
    return FSDP_OK;
}

/* Files. Every element of every array has its own value. A second save has other values. */
static float saved_value(int array, int p, size_t i, int version)
{
    static const float factor[] = {1.0f, 0.125f, 4.0f};
    return fix_value(p, i) * factor[array] + (float)version * 0.5f;
}

static char ckpt_base[256], ckpt_here[320]; /* bodies take no argument; one directory per version */
static int ckpt_version;

static float *array_of(fixture *fx, fsdp_optimizer *o, int u, int k)
{
    return k == 0 ? fx->f.units[u].shard : o->units[u].state[k - 1];
}

static float value_to_save(void *array, int p, size_t elem)
{
    return p < 0 ? NAN : saved_value(*(int *)array, p, elem, ckpt_version);
}

static float value_to_load(void *array, int p, size_t elem)
{
    return p < 0 ? 0.0f : saved_value(*(int *)array, p, elem, ckpt_version);
}

/* A value that the fixture does not start with; a load must replace it. */
static float value_to_forget(void *ctx, int p, size_t elem)
{
    return p < 0 ? 0.0f : -1.0f;
}

/* The checkpoint store of a fixture, on the ranks that save or load. */
static ckpt_store store_of(const fixture *fx)
{
    return (ckpt_store){.world = fx->comm, .m = &fx->m, .optimizer = optimizer_of(OPTIMIZER_ADAMW)};
}

static fsdp_status save_to_dir(const fixture *fx, fsdp_optimizer *o)
{
    ckpt_store to = store_of(fx);
    fsdp_status status = ckpt_store_open(&to, ckpt_here);
    if (status == FSDP_OK)
        status = ckpt_store_claim(&to, NULL);
    if (status == FSDP_OK)
        status = ckpt_save(o, &to, 7 + ckpt_version);
    fsdp_error_info why = *fsdp_error_get();
    ckpt_store_close(&to);
    fsdp_error_set(&why);
    return status;
}

static fsdp_status save_body(fixture *fx)
{
    fsdp_optimizer o;
    TRY(optimizer_create(&fx->r, &o));
    TRY(stream_sync(fx->compute));
    for (int u = 0; u < N_UNITS; u++)
        for (int k = 0; k < 3; k++)
            if (array_of(fx, &o, u, k))
                TRY(fix_fill_shard(fx, u, array_of(fx, &o, u, k), value_to_save, &k));
    bool saves = !fx->spec->group_ranks || comm_rank(fx->world) < fx->spec->group_ranks;
    fsdp_status status = saves ? save_to_dir(fx, &o) : FSDP_OK;
    optimizer_free(&o);
    return status;
}

static fsdp_status load_from_dir(fixture *fx, fsdp_optimizer *o)
{
    ckpt_source from;
    ckpt_store now = store_of(fx);
    TRY(ckpt_source_open(&now, ckpt_here, false, NULL, &from));
    note(fx, expect_int("step to go on from", from.manifest.id.step, 7 + ckpt_version));
    fsdp_status status = ckpt_load(o, &from);
    ckpt_source_close(&from);
    return status == FSDP_OK ? stream_sync(fx->compute) : status;
}

static fsdp_status load_body(fixture *fx)
{
    fsdp_optimizer o;
    bool loads = !fx->spec->group_ranks || comm_rank(fx->world) < fx->spec->group_ranks;
    TRY(optimizer_create(&fx->r, &o));
    TRY(stream_sync(fx->compute));
    if (loads) {
        for (int u = 0; u < N_UNITS; u++)
            TRY(fix_fill_shard(fx, u, fx->f.units[u].shard, value_to_forget, NULL));
        TRY(load_from_dir(fx, &o));
    }
    for (int u = 0; u < N_UNITS && loads; u++)
        for (int k = 0; k < 3; k++)
            if (array_of(fx, &o, u, k)) /* a frozen unit has no moments */
                fix_expect_shard(fx, WHAT("array %d after loading", k), u, array_of(fx, &o, u, k),
                                 value_to_load, &k);
    optimizer_free(&o);
    return FSDP_OK;
}

static int remove_entry(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
    (void)st, (void)kind, (void)ftw;
    return remove(path);
}

/* Rank 0 makes a directory; every rank gets its name. */
static fsdp_status shared_dir(grade *g, char *dir, size_t dir_bytes)
{
    const char *tmp = getenv("TMPDIR"); /* a confined program may write only there */
    snprintf(dir, dir_bytes, "%.200s/fsdp-grade-XXXXXX", tmp != NULL ? tmp : "/tmp");
    bool failed = g->rank == 0 && !mkdtemp(dir);
    fsdp_status st =
        failed ? fsdp_error(FSDP_EIO, "", "mkdtemp %s: %s", dir, strerror(errno)) : FSDP_OK;
    TRY(comm_agree(g->comm, st));
    void *all;
    TRY(comm_host_gather(g->comm, "directory", dir, dir_bytes, &all));
    memcpy(dir, all, dir_bytes);
    free(all);
    return FSDP_OK;
}

/* Save to a new directory, and load it with each spec of `to`. */
static fsdp_status moves(grade *g, const fix_spec *from, const fix_spec *const *to, int n_to)
{
    ckpt_version++;
    snprintf(ckpt_here, sizeof ckpt_here, "%s/ck-%d", ckpt_base, ckpt_version);
    TRY(fixture_run(g, from, save_body));
    for (int i = 0; i < n_to; i++)
        TRY(fixture_run(g, to[i], load_body));
    return FSDP_OK;
}

static fsdp_status files(grade *g)
{
    const int w = g->world_size, n_fewer = w > 1 ? w - 1 : 1;
    const fix_spec *all = SPEC(.sharding = SHARDING_FULL), *none = SPEC(.sharding = SHARDING_NONE);
    const fix_spec *fewer = SPEC(.group_ranks = n_fewer), *one = SPEC(.group_ranks = 1);
    TRY(moves(g, fewer, &all, 1));
    TRY(moves(g, all, (const fix_spec *[]){fewer, one}, 2));
    const fix_spec *idle = IDLE_SPEC(.sharding = SHARDING_FULL);
    TRY(moves(g, idle, &idle, 1));
    for (int size = 1; size < w; size++) { /* replicas: every rank writes its world slice */
        if (w % size != 0)
            continue;
        const fix_spec *groups = SPEC(.sharding = SHARDING_HYBRID, .shard_size = size);
        TRY(moves(g, groups, (const fix_spec *[]){fewer, all, groups}, 3));
        TRY(moves(g, fewer, &groups, 1));
    }
    return moves(g, none, &none, 1);
}

fsdp_status task_4_5(grade *g)
{
    TRY(comm_agree(g->comm, repack_all()));
    char dir[256] = {0};
    TRY(shared_dir(g, dir, sizeof dir));
    snprintf(ckpt_base, sizeof ckpt_base, "%s", dir);
    ckpt_version = 0;
    fsdp_status st = files(g);
    fsdp_error_info why = *fsdp_error_get();
    if (g->rank == 0)
        nftw(dir, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
    fsdp_error_set(&why);
    return st;
}
