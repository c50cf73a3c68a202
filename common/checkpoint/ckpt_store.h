/* ckpt_store.h -- the --save directory, which holds the checkpoints of one run.
 *
 *   ckpt_store_open -> ckpt_store_claim
 *   -> per checkpoint: ckpt_save_begin -> ckpt_out_write ... -> ckpt_save_end
 *      [-> steps -> ckpt_save_finish, with s->async]
 *   -> ckpt_store_close
 *
 *   DIR/step-20/rank-00000.safetensors ...   one file for each rank that saved
 *   DIR/step-20/manifest.json                written last
 *   DIR/latest                               "step-20"
 *   DIR/lock                                 locked while a run saves here; names host and process
 *
 * DIR is created if it is missing, but never replaced or removed: it may be a mount point, a link
 * or ".". A checkpoint is written to DIR/step-20.RUN.X.tmp and renamed to DIR/step-20. Then
 * `latest` is replaced, and last the older checkpoints are removed. A run removes only directories
 * that carry its own id. A new run in a DIR without checkpoints also removes the leftovers of any
 * killed save. */
#pragma once
#include <pthread.h>
#include "common/comm/comm.h"
#include "common/checkpoint/ckpt_async.h"
#include "common/checkpoint/ckpt_manifest.h"

typedef struct ckpt_store {
    comm *world;      /* all ranks that save; borrowed */
    const model *m;   /* borrowed */
    ckpt_about about; /* facts of this run */
    const optimizer_rule *optimizer;
    int64_t keep;                 /* number of checkpoints to keep; 0: all */
    int64_t batch, sample_offset; /* at step N the run has read N * batch + sample_offset samples */
    const corpus *data;           /* whose files manifests name; NULL: none; borrowed */
    int64_t newest;               /* step of the last save, at first of the resumed one; 0: none */
    char run[CKPT_RUN_BYTES];     /* the run's id, 16 hex digits, set by ckpt_store_claim */
    char dir[PATH_MAX];
    char tmp[PATH_MAX]; /* DIR/step-N.RUN.X.tmp of the last save */
    int lock;           /* rank 0's file descriptor; 0: closed */
    ckpt_async *async;  /* borrowed; NULL: saves are synchronous */
    bool is_removing;   /* rank 0: the thread `remover` removes old checkpoints and leftovers */
    pthread_t remover;
} ckpt_store;

/* ckpt_store_open -- create DIR if it is missing, and lock it.
 *   s           the caller has set world, m, about, optimizer and keep
 *   collective  all ranks of s->world; all fail or none
 *   errors      FSDP_EIO: DIR cannot be written, or another process still holds the lock after 10 s
 *               (the message names it); FSDP_EINVAL: DIR is a checkpoint in any format */
fsdp_status ckpt_store_open(ckpt_store *s, const char *dir);
/* ckpt_store_claim -- set the run's id, remove the leftovers of its killed saves, and rehearse a
 * save.
 *   run         id of the run that is resumed, from the checkpoint of step s->newest; NULL: a new
 *               run
 *   collective  as above
 *   errors      FSDP_EIO: DIR has checkpoints of another run, cannot be written, or is not the same
 *               directory on all ranks */
fsdp_status ckpt_store_claim(ckpt_store *s, const char *run);
/* ckpt_store_has -- whether rank 0 sees DIR/step-N. Collective; errors of comm_host_gather. */
fsdp_status ckpt_store_has(const ckpt_store *s, int64_t step, bool *has);
/* ckpt_store_close -- wait for a removal in progress, and unlock DIR; a zeroed or closed struct is
 * accepted. */
void ckpt_store_close(ckpt_store *s);

/* ckpt_save_begin -- create s->tmp and this rank's file in it, and write the file's header; with
 * s->async the thread does the latter two. Then pass the values of list->pieces to ckpt_out_write,
 * array after array. Call ckpt_save_end after an error too.
 *   collective  all ranks of s->world; may fail on some ranks only
 *   errors      FSDP_EIO, FSDP_ENOMEM */
fsdp_status ckpt_save_begin(ckpt_store *s, int64_t next_step, const ckpt_pieces *list,
                            ckpt_out *out);
/* ckpt_save_end -- sync and close this rank's file, write the manifest, publish the checkpoint, and
 * remove the checkpoints beyond s->keep. If any rank has failed, remove s->tmp instead. With
 * s->async only start the thread that writes the copy; ckpt_save_finish does the rest.
 *   mine        this rank's status since ckpt_save_begin
 *   collective  as above; all fail or none */
fsdp_status ckpt_save_end(ckpt_store *s, int64_t next_step, ckpt_out *out, fsdp_status mine);

/* ckpt_save_finish -- wait for the thread of s->async, then do the rest of ckpt_save_end; if no
 * checkpoint is in flight, only return `mine`. Collective as above. On rank 0 another thread then
 * removes old checkpoints; the next save waits for that thread.
 *   mine  this rank's status; if any rank has failed, remove s->tmp */
fsdp_status ckpt_save_finish(ckpt_store *s, fsdp_status mine);

/* ---- what is in DIR: also used for reading --------------------------------------------------- */

/* ckpt_steps -- the N of each DIR/step-N, newest first; the caller frees *steps. A missing DIR has
 * none.
 *   errors  FSDP_EIO, FSDP_ENOMEM; *steps is then NULL */
fsdp_status ckpt_steps(const char *dir, int64_t **steps, int *n);
/* ckpt_latest -- the step that DIR/latest names; -1: there is no such file, or it names no step. */
int64_t ckpt_latest(const char *dir);
/* ckpt_refuse_old_form -- FSDP_EINVAL if DIR is a checkpoint in the old format. */
fsdp_status ckpt_refuse_old_form(const char *dir);
/* ckpt_share -- copy `what`, of any length, from rank 0 to all ranks. Collective; errors of
 * comm_host_gather. */
fsdp_status ckpt_share(comm *world, void *what, size_t bytes);
