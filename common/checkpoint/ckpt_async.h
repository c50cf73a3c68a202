/* ckpt_async.h -- write a checkpoint while training goes on: this rank's part is copied to host
 * memory, and a thread writes the copy to its file.
 *
 *   ckpt_async_open
 *   -> per checkpoint, by ckpt_store.c: ckpt_async_begin -> ckpt_out_write ... -> ckpt_async_start
 *   -> steps, until ckpt_async_writes is false on all ranks -> ckpt_async_wait
 *   -> ckpt_async_close
 *
 * One checkpoint is in flight at a time. The thread makes no collective call. If this rank fails,
 * only its own ckpt_async_wait reports the failure. */
#pragma once
#include "common/checkpoint/ckpt_file.h"

typedef struct ckpt_async ckpt_async;

/* ckpt_async_open -- allocate host memory for the copy.
 *   s       stream that allocates and frees the copy; borrowed until ckpt_async_close
 *   elems   the most floats that this rank writes to a checkpoint
 *   errors  FSDP_ENOMEM; any error of the stream */
fsdp_status ckpt_async_open(stream *s, size_t elems, ckpt_async **out);
/* ckpt_async_close -- wait for the thread and free a; NULL is accepted. */
void ckpt_async_close(ckpt_async *a);

/* ckpt_async_begin -- begin a checkpoint: ckpt_out_write on *out then copies values to host memory,
 * and the thread writes them to a file in dir later.
 *   list    list->pieces are copied; their values must fit in the memory of ckpt_async_open
 *   errors  FSDP_ENOMEM; call ckpt_async_start after an error too */
fsdp_status ckpt_async_begin(ckpt_async *a, const char *dir, const ckpt_id *id,
                             const ckpt_pieces *list, ckpt_out *out);
/* ckpt_async_start -- start the thread.
 *   out   as ckpt_async_begin filled it in; out->of.m is borrowed until ckpt_async_wait
 *   mine  this rank's status since ckpt_async_begin. After a failure no thread starts, and
 *         ckpt_async_wait returns that failure */
void ckpt_async_start(ckpt_async *a, const ckpt_out *out, fsdp_status mine);
/* ckpt_async_in_flight -- whether ckpt_async_begin was called and ckpt_async_wait was not yet;
 * false for NULL. */
bool ckpt_async_in_flight(const ckpt_async *a);
/* ckpt_async_writes -- whether the thread is still writing; false for NULL. */
bool ckpt_async_writes(const ckpt_async *a);
/* ckpt_async_wait -- wait for the thread.
 *   id, sum  receive the checkpoint's id, and the size and hash of the file
 *   errors   the first error of this rank since ckpt_async_begin */
fsdp_status ckpt_async_wait(ckpt_async *a, ckpt_id *id, ckpt_sum *sum);
