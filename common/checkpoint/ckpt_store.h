/* ckpt_store.h -- the --save directory: checkpoints of one run, and who writes them.
 *
 *   ckpt_store_open -> ckpt_store_claim
 *   -> per checkpoint: ckpt_save_begin -> ckpt_out_write ... -> ckpt_save_end
 *      [-> steps -> ckpt_save_finish, with s->async]
 *   -> ckpt_store_close
 *
 *   DIR/step-20/rank-00000.safetensors ...   one file for each rank that saved
 *   DIR/step-20/manifest.json                written last
 *   DIR/latest                               "step-20"
 *   DIR/lock                                 locked while a run saves here: its host and process
 *
 * DIR itself is made if it is missing, and never replaced or removed: it may be a mount point, a
 * link or ".". A checkpoint is written to DIR/step-20.RUN.X.tmp and renamed, then `latest` is
 * renamed, and only then older ones are removed. Only directories with this run's id are, and where
 * no checkpoint is left, what any killed save has left. */
#pragma once
#include <pthread.h>
#include "common/comm/comm.h"
#include "common/checkpoint/ckpt_async.h"
#include "common/checkpoint/ckpt_manifest.h"

typedef struct ckpt_store {
    comm *world;      /* all ranks that save; borrowed */
    const model *m;   /* borrowed */
    ckpt_about about; /* what the run is */
    const optimizer_rule *optimizer;
    int64_t keep;             /* checkpoints that are kept; 0: all */
    int64_t newest;           /* step gone on from, then of the last save; 0: none */
    char run[CKPT_RUN_BYTES]; /* 16 hex digits, given by ckpt_store_claim */
    char dir[PATH_MAX];
    char tmp[PATH_MAX]; /* DIR/step-N.RUN.X.tmp of the last save */
    int lock;           /* rank 0's descriptor, 0 when closed */
    ckpt_async *async;  /* borrowed; NULL: ckpt_save_end writes all */
    bool is_removing;   /* rank 0: the thread `remover` removes old checkpoints and leftovers */
    pthread_t remover;
} ckpt_store;

/* ckpt_store_open -- make DIR if it is missing, and lock it.
 *   s           world, m, about, optimizer and keep are filled in
 *   collective  all ranks of s->world; all fail or none
 *   errors      FSDP_EIO: it cannot be written, or after 10 s another process still holds the lock,
 *               which is named; FSDP_EINVAL: it is a checkpoint, or holds one of the old form */
fsdp_status ckpt_store_open(ckpt_store *s, const char *dir);
/* ckpt_store_claim -- settle the run's id, remove what killed saves of it left, and try out what a
 * save will do.
 *   run         of the checkpoint that the run goes on from, whose step is s->newest; NULL: a new
 *               run
 *   collective  as above
 *   errors      FSDP_EIO: DIR has checkpoints of another run, cannot be written, or is not the same
 *               directory on all ranks */
fsdp_status ckpt_store_claim(ckpt_store *s, const char *run);
/* ckpt_store_close -- wait for the removal in progress, and unlock; a zeroed or closed struct is
 * accepted. */
void ckpt_store_close(ckpt_store *s);

/* ckpt_save_begin -- make the directory, create this rank's file, and write its header. The values
 * of list->pieces follow, array after array. ckpt_save_end must follow in any case.
 *   collective  all ranks of s->world; a failure may be one rank's own
 *   errors      FSDP_EIO, FSDP_ENOMEM */
fsdp_status ckpt_save_begin(ckpt_store *s, int64_t next_step, const ckpt_pieces *list,
                            ckpt_out *out);
/* ckpt_save_end -- sync and close this rank's file, write the manifest, publish the checkpoint,
 * and remove those beyond s->keep. If a rank has failed, what was written is removed. With s->async
 * only the copy is complete, a thread writes it, and ckpt_save_finish must follow.
 *   mine        this rank's status since ckpt_save_begin
 *   collective  as above; all fail or none */
fsdp_status ckpt_save_end(ckpt_store *s, int64_t next_step, ckpt_out *out, fsdp_status mine);

/* ckpt_save_finish -- the rest of ckpt_save_end for the checkpoint that s->async writes: wait for
 * the thread, and publish; nothing if none is in flight. Collective as above. Another thread of
 * rank 0 removes the files of old checkpoints; the next save waits for it. */
fsdp_status ckpt_save_finish(ckpt_store *s);

/* ---- what is in DIR, for reading too --------------------------------------------------------- */

/* ckpt_steps -- the steps N with a DIR/step-N, the newest first; the caller frees *steps. A missing
 * DIR has none.
 *   errors  FSDP_EIO, FSDP_ENOMEM; *steps is NULL then */
fsdp_status ckpt_steps(const char *dir, int64_t **steps, int *n);
/* ckpt_latest -- the step that DIR/latest names; -1: there is no such file, or nothing in it. */
int64_t ckpt_latest(const char *dir);
/* ckpt_refuse_old_form -- FSDP_EINVAL if DIR is a checkpoint of the old form. */
fsdp_status ckpt_refuse_old_form(const char *dir);
/* ckpt_share -- what [bytes] = what rank 0 has there. Collective; errors as comm_host_gather. */
fsdp_status ckpt_share(comm *world, void *what, size_t bytes);
