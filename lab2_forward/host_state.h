/* host_state.h -- lab 2, provided: training state that lives in host memory, and its copies to and
 * from a device with its own memory.
 *
 *   offload_create -> parameters: offload_gather, in every unshard_begin
 *                  -> gradients: lab 3's grad_offload.h; updates: lab 4's offload.h
 *                  -> offload_free
 *
 * Arrays on the host come from device_alloc_host. Two streams carry the copies, one for each
 * direction, so copies overlap with computation and with each other. A shard is uploaded in pieces.
 * The ring holds two pieces: while the device works on one, the next one arrives. */
#pragma once
#include "common/base/dtype.h"
#include "lab2_forward/fsdp.h"

enum { OFFLOAD_MOST_ARRAYS = 4 }; /* in a piece: parameter, gradient, two state arrays */

typedef struct offload_config {
    bool states;        /* the optimizer's state arrays live on the host */
    bool shards;        /* parameter shards and sums of gradients, too; requires states */
    bool keeps_grads;   /* the caller reads gradients after the step; else the step frees them */
    size_t piece_bytes; /* of one piece, all its arrays together; > 0 */
} offload_config;

typedef struct offload_piece {
    float *mem;  /* [ring_elems] MEM_OPTIMIZER */
    event *used; /* recorded after the last use; the next upload into mem waits for it */
} offload_piece;

typedef struct offload {
    offload_config config;
    stream *up, *down; /* uploads, downloads */
    offload_piece ring[2];
    size_t ring_elems; /* 0: the ring is closed */
    unsigned n_pieces; /* number of offload_next calls so far */
    event *parked[2];  /* recorded on `down` by offload_park_end */
    unsigned n_parked; /* number of offload_park_end calls so far */
    event *order;      /* used by offload_order */
} offload;

/* offload_create -- make the streams and events. *out stays NULL if nothing is offloaded.
 *   errors  FSDP_ENOMEM; nothing is left behind
 * offload_free -- wait for the streams, then free everything; NULL is accepted. */
fsdp_status offload_create(device *dev, const offload_config *config, offload **out);
void offload_free(offload *x);

/* offload_order -- later work on `later` starts after the work issued on `earlier` so far. */
fsdp_status offload_order(offload *x, stream *earlier, stream *later);

/* ---- pieces of shards ------------------------------------------------------------------------ */
/* offload_open_ring -- allocate the ring on `up`, for shards of at most shard_elems of which
 * n_arrays are on the device at a time. With config.shards the ring is open from fsdp_create on,
 * otherwise during updates. offload_close_ring -- free it after its last use. */
fsdp_status offload_open_ring(offload *x, size_t shard_elems, size_t n_arrays);
void offload_close_ring(offload *x);
/* offload_piece_elems -- how many elements of each array a piece of n_arrays holds: a multiple of
 * FLAT_ALIGN_ELEMS. */
size_t offload_piece_elems(const offload *x, size_t n_arrays);
/* offload_next -- the next piece of the ring. `up` waits for the piece's last use.
 *   order  upload on `up`, let the stream that uses the piece wait for the upload, record `used` */
fsdp_status offload_next(offload *x, offload_piece **out);
/* offload_gather -- slice [shard_elems] = u's shard, which is on the host, as type t.
 *   order  stream-ordered on gather_stream. The uploads wait only for the ring, so they overlap
 *          with earlier gathers */
fsdp_status offload_gather(fsdp *f, int u, dtype t, void *slice);
/* shard_is_on_host -- whether parameter shards live in host memory. */
static inline bool shard_is_on_host(const fsdp *f)
{
    return f->given.offload && f->given.offload->config.shards;
}
/* shard_alloc -- allocate u's shard where shards live. */
fsdp_status shard_alloc(fsdp *f, fsdp_unit *u);

/* ---- vectors of gradients -------------------------------------------------------------------- */
/* offload_park -- move *vec [elems] to host memory, in order of `down`: *vec is then a block of
 * device_alloc_host. offload_fetch -- move *vec back to the device, in order of `up`.
 *   order   call offload_park_end after the last park of a unit and keep n_parked, the number of
 *           that call. Call offload_fetch_begin with this number before the unit's first fetch (0:
 *           nothing is parked): `up` then waits for the unit's downloads. The host waits for the
 *           downloads of all calls but the last, so at most two units' vectors are in flight
 *   errors  of device_alloc and device_copy; *vec is then unchanged */
fsdp_status offload_park(offload *x, size_t elems, float **vec);
fsdp_status offload_park_end(offload *x);
fsdp_status offload_fetch_begin(offload *x, unsigned number);
fsdp_status offload_fetch(offload *x, size_t elems, float **vec);
