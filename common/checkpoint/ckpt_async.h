/* ckpt_async.h -- a checkpoint that is written while training goes on: a copy of this rank's part
 * in host memory, and a thread that writes the copy.
 *
 *   ckpt_async_open
 *   -> per checkpoint, by ckpt_store.c: ckpt_async_begin -> ckpt_out_write ... -> ckpt_async_start
 *   -> steps, until ckpt_async_writes is false on all ranks -> ckpt_async_wait
 *   -> ckpt_async_close
 *
 * One checkpoint is in flight at a time. The thread makes no collective call; this rank's failure
 * is known to it and to ckpt_async_wait alone. */
#pragma once
#include "common/checkpoint/ckpt_file.h"

typedef struct ckpt_async ckpt_async;

/* ckpt_async_open -- allocate the copy: `elems` floats of host memory.
 *   s       where the copy is allocated and freed; borrowed until ckpt_async_close
 *   errors  FSDP_ENOMEM; the stream's */
fsdp_status ckpt_async_open(stream *s, size_t elems, ckpt_async **out);
/* ckpt_async_close -- wait for the thread, free all; NULL is accepted. */
void ckpt_async_close(ckpt_async *a);

/* ckpt_async_begin -- make ckpt_out_write copy values, which are written to dir later.
 *   list    copied, but not its values; it has at most the floats of ckpt_async_open
 *   errors  FSDP_ENOMEM; ckpt_async_start follows in any case */
fsdp_status ckpt_async_begin(ckpt_async *a, const char *dir, const ckpt_id *id,
                             const ckpt_pieces *list, ckpt_out *out);
/* ckpt_async_start -- start the thread.
 *   out   of ckpt_async_begin; out->of.m is borrowed until ckpt_async_wait
 *   mine  this rank's status since ckpt_async_begin; a failure is kept for ckpt_async_wait */
void ckpt_async_start(ckpt_async *a, const ckpt_out *out, fsdp_status mine);
/* ckpt_async_in_flight -- between ckpt_async_begin and ckpt_async_wait; NULL is accepted. */
bool ckpt_async_in_flight(const ckpt_async *a);
/* ckpt_async_writes -- whether the thread has something to do yet; NULL is accepted. */
bool ckpt_async_writes(const ckpt_async *a);
/* ckpt_async_wait -- wait for the thread.
 *   id, sum  of the file
 *   errors   this rank's since ckpt_async_begin */
fsdp_status ckpt_async_wait(ckpt_async *a, ckpt_id *id, ckpt_sum *sum);
