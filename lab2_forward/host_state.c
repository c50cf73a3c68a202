/* host_state.c -- see host_state.h. */
#include "lab2_forward/host_state.h"
#include <stdlib.h>
#include "common/device/device.h"
#include "lab1_flatparam/flat_param.h"

fsdp_status offload_create(device *dev, const offload_config *config, offload **out)
{
    fsdp_status status;
    *out = NULL;
    if (!config->states)
        return FSDP_OK;
    offload *x = calloc(1, sizeof *x);
    if (!x)
        return fsdp_error(FSDP_ENOMEM, "", "offload_create: no host memory");
    x->config = *config;
    GOTO_ON_FAIL(status, stream_create(dev, &(stream_config){.name = "upload"}, &x->up), fail);
    GOTO_ON_FAIL(status, stream_create(dev, &(stream_config){.name = "download"}, &x->down), fail);
    GOTO_ON_FAIL(status, event_create(dev, &x->order), fail);
    for (int k = 0; k < 2; k++) {
        GOTO_ON_FAIL(status, event_create(dev, &x->ring[k].used), fail);
        GOTO_ON_FAIL(status, event_create(dev, &x->parked[k]), fail);
    }
    *out = x;
    return FSDP_OK;
fail:
    offload_free(x);
    return status;
}

void offload_free(offload *x)
{
    if (!x)
        return;
    offload_close_ring(x);
    for (int k = 0; k < 2; k++) {
        event_free(x->ring[k].used);
        event_free(x->parked[k]);
    }
    event_free(x->order);
    stream_free(x->up);
    stream_free(x->down);
    free(x);
}

fsdp_status offload_order(offload *x, stream *earlier, stream *later)
{
    TRY(event_record(x->order, earlier));
    return stream_wait_event(later, x->order);
}

/* ---- pieces of shards ------------------------------------------------------------------------ */

fsdp_status offload_open_ring(offload *x, size_t shard_elems, size_t n_arrays)
{
    const size_t least = n_arrays * FLAT_ALIGN_ELEMS;
    const size_t most = n_arrays * size_round_up(shard_elems, FLAT_ALIGN_ELEMS);
    size_t elems = min_size(x->config.piece_bytes / sizeof(float), most);
    x->ring_elems = elems < least ? least : elems;
    for (int k = 0; k < 2; k++)
        TRY(device_alloc_f32(x->up, MEM_OPTIMIZER, x->ring_elems, "offloaded piece",
                             &x->ring[k].mem));
    return FSDP_OK;
}

void offload_close_ring(offload *x)
{
    for (int k = 0; k < 2; k++) {
        if (x->ring[k].mem)
            (void)stream_wait_event(x->up, x->ring[k].used);
        device_free(x->up, x->ring[k].mem);
        x->ring[k].mem = NULL;
    }
    x->ring_elems = 0;
}

size_t offload_piece_elems(const offload *x, size_t n_arrays)
{
    return x->ring_elems / n_arrays / FLAT_ALIGN_ELEMS * FLAT_ALIGN_ELEMS;
}

fsdp_status offload_next(offload *x, offload_piece **out)
{
    *out = &x->ring[x->n_pieces++ % 2];
    return stream_wait_event(x->up, (*out)->used);
}

fsdp_status offload_gather(fsdp *f, int u, dtype t, void *slice)
{
    offload *x = f->given.offload;
    const fsdp_unit *unit = &f->units[u];
    const size_t most = offload_piece_elems(x, 1);
    for (size_t at = 0, elems; at < unit->layout.shard_elems; at += elems) {
        offload_piece *p;
        elems = min_size(unit->layout.shard_elems - at, most);
        TRY(offload_next(x, &p));
        TRY(device_copy(x->up, p->mem, unit->shard + at, elems * sizeof(float)));
        TRY(offload_order(x, x->up, f->gather_stream));
        char *out = (char *)slice + at * dtype_bytes(t);
        if (t == DTYPE_F32)
            TRY(device_copy(f->gather_stream, out, p->mem, elems * sizeof(float)));
        else
            TRY(f->run.ops->cast(f->gather_stream, &(cast_args){.out = out,
                                                                .in = p->mem,
                                                                .out_type = t,
                                                                .in_type = DTYPE_F32,
                                                                .elems = elems}));
        TRY(event_record(p->used, f->gather_stream));
    }
    return FSDP_OK;
}

fsdp_status shard_alloc(fsdp *f, fsdp_unit *u)
{
    return (shard_is_on_host(f) ? device_alloc_host_f32 : device_alloc_f32)(
        f->compute, MEM_PARAMS_SHARD, u->layout.shard_elems, "parameter shard", &u->shard);
}

/* ---- vectors of gradients -------------------------------------------------------------------- */

/* Move *vec to `to`, a block that was allocated on s. After an error `to` is freed instead. */
static fsdp_status move_vector(stream *s, size_t elems, float *to, float **vec)
{
    fsdp_status status = device_copy(s, to, *vec, elems * sizeof **vec);
    device_free(s, status == FSDP_OK ? *vec : to);
    *vec = status == FSDP_OK ? to : *vec;
    return status;
}

fsdp_status offload_park(offload *x, size_t elems, float **vec)
{
    float *to;
    TRY(device_alloc_host_f32(x->down, MEM_GRADS_SHARD, elems, "gradient slice", &to));
    return move_vector(x->down, elems, to, vec);
}

fsdp_status offload_park_end(offload *x)
{
    return event_record(x->parked[x->n_parked++ % 2], x->down);
}

fsdp_status offload_fetch_begin(offload *x, unsigned number)
{
    event *last = x->parked[(x->n_parked - 1) % 2], *before = x->parked[x->n_parked % 2];
    TRY(event_sync(before)); /* else the host would allocate far ahead of the downloads */
    return stream_wait_event(x->up, number == x->n_parked ? last : before);
}

fsdp_status offload_fetch(offload *x, size_t elems, float **vec)
{
    float *to;
    TRY(device_alloc_f32(x->up, MEM_GRADS_SHARD, elems, "gradient slice", &to));
    return move_vector(x->up, elems, to, vec);
}
