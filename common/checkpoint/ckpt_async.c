/* ckpt_async.c -- see ckpt_async.h. */
#include "common/checkpoint/ckpt_async.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include "common/device/device.h"

struct ckpt_async {
    stream *s;        /* borrowed */
    float *values;    /* [room], from device_alloc_host */
    size_t room;      /* floats that fit in values */
    ckpt_pieces list; /* of the checkpoint in flight; list.pieces is owned */
    ckpt_origin of;
    ckpt_id id;
    char dir[PATH_MAX];
    bool in_flight, has_thread;
    pthread_t thread;
    atomic_bool writes;
    ckpt_sum sum;
    fsdp_error_info failure; /* status FSDP_OK: none so far */
};

fsdp_status ckpt_async_open(stream *s, size_t elems, ckpt_async **out)
{
    void *values;
    ckpt_async *a = calloc(1, sizeof *a);
    if (a == NULL)
        return ckpt_no_memory();
    *out = a;
    a->s = s;
    a->room = elems;
    TRY(device_alloc_host(s, MEM_OTHER, elems * sizeof *a->values, "copy for a checkpoint",
                          &values));
    a->values = values;
    return FSDP_OK;
}

bool ckpt_async_in_flight(const ckpt_async *a)
{
    return a != NULL && a->in_flight;
}

bool ckpt_async_writes(const ckpt_async *a)
{
    return a != NULL && atomic_load(&a->writes);
}

fsdp_status ckpt_async_begin(ckpt_async *a, const char *dir, const ckpt_id *id,
                             const ckpt_pieces *list, ckpt_out *out)
{
    const size_t bytes = (size_t)list->n_pieces * sizeof *list->pieces;
    FSDP_ASSERT(!a->in_flight);
    a->in_flight = true;
    a->id = *id;
    a->failure = (fsdp_error_info){.status = FSDP_OK};
    snprintf(a->dir, sizeof a->dir, "%s", dir);
    a->list = (ckpt_pieces){.pieces = malloc(bytes + 1), .n_pieces = list->n_pieces};
    if (a->list.pieces == NULL)
        return ckpt_no_memory();
    if (bytes > 0)
        memcpy(a->list.pieces, list->pieces, bytes);
    *out = (ckpt_out){.copy = a->values, .expected_bytes = a->room * sizeof *a->values};
    return FSDP_OK;
}

static fsdp_status write_values(ckpt_async *a, ckpt_out *out)
{
    const float *values = a->values;
    TRY(ckpt_out_open(a->dir, &a->id, a->of.m, &a->list, out));
    out->of = a->of;
    for (int k = 0; k < a->id.n_arrays; k++)
        for (int i = 0; i < a->list.n_pieces; i++) {
            const ckpt_piece *piece = &a->list.pieces[i];
            TRY(ckpt_out_write(out, piece, k, values));
            values += ckpt_has(a->of.m, piece->param, k) ? piece->elems : 0;
        }
    return ckpt_out_finish(out, &a->sum);
}

static void *write_main(void *arg)
{
    ckpt_async *a = arg;
    ckpt_out out = {0};
    if (write_values(a, &out) != FSDP_OK)
        a->failure = *fsdp_error_get();
    ckpt_out_close(&out);
    atomic_store(&a->writes, false);
    return NULL;
}

void ckpt_async_start(ckpt_async *a, const ckpt_out *out, fsdp_status mine)
{
    a->of = out->of;
    atomic_store(&a->writes, true);
    a->has_thread = mine == FSDP_OK && pthread_create(&a->thread, NULL, write_main, a) == 0;
    if (a->has_thread)
        return;
    if (mine == FSDP_OK)
        (void)fsdp_error(FSDP_ENOMEM, "leave --save-async out", "checkpoint: no thread to write");
    a->failure = *fsdp_error_get();
    atomic_store(&a->writes, false);
}

fsdp_status ckpt_async_wait(ckpt_async *a, ckpt_id *id, ckpt_sum *sum)
{
    if (a->has_thread)
        pthread_join(a->thread, NULL);
    free(a->list.pieces);
    a->list = (ckpt_pieces){0};
    a->in_flight = a->has_thread = false;
    *id = a->id;
    *sum = a->sum;
    if (a->failure.status != FSDP_OK)
        fsdp_error_set(&a->failure);
    return a->failure.status;
}

void ckpt_async_close(ckpt_async *a)
{
    ckpt_id id;
    ckpt_sum sum;
    if (a == NULL)
        return;
    (void)ckpt_async_wait(a, &id, &sum);
    device_free(a->s, a->values);
    free(a);
}
