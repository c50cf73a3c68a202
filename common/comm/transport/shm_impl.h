/* shm_impl.h -- what the parts of the shm transport share; internal.
 *
 * shm_file.c      the memory of a job: sizes, files, mappings
 * shm_sync.[ch]   the protocol of one group in shared memory
 * shm_watch.c     this process in its job: the one failure record, the watch for dead peers
 * shm_map.c       peers' shared blocks in this address space
 * shm_boot.c      how ranks find each other: by talking over another group, or by fsdp_run
 * shm_call.c      one call of a rank
 * shm.c           the transport: groups
 *
 * Each calls only those above it.
 *
 * Three kinds of shared memory, all memfds, which vanish with the last process:
 *   job     one per job: every rank's process number and files; the failure that ended the job
 *   area    one per group: W rings of entries
 *   blocks  one file per rank: what comm_alloc gives (device/host_share.h)
 *
 * A failure anywhere is written into the job once; every wait of every rank looks there. */
#pragma once
#include <pthread.h>
#include "common/comm/transport_help.h"
#include "common/comm/transport/hier_parts.h"
#include "common/comm/transport/shm_launch.h"
#include "common/comm/transport/shm_sync.h"

/* ---- the job -------------------------------------------------------------------------------- */

enum { SHM_FAIL_NONE = 0, SHM_FAIL_WRITING = 1, SHM_FAIL_SET = 2 };

/* A file that another process has open: its number there, and what tells it from any other. */
typedef struct shm_file {
    int32_t pid, fd;
    uint64_t device, inode;
} shm_file;

typedef struct shm_member {
    shm_word ready;     /* 1: the fields below are filled */
    atomic_uint closed; /* 1: leaves in order; its end is no failure */
    shm_file share;     /* where its shared blocks stand */
} shm_member;

typedef struct shm_job {
    int32_t launcher;    /* process that made it and whose end is the job's; 0: none */
    atomic_uint failed;  /* SHM_FAIL_* */
    int32_t failed_rank; /* who says so; -1: what is said stands for itself */
    fsdp_error_info why;
    int32_t n_members;
    shm_member member[];
} shm_job;

/* shm_job_bytes -- of a job of so many members, in whole pages. */
size_t shm_job_bytes(int n_members);

/* What this process holds of a member. */
typedef struct shm_peer {
    int file;  /* of the member's shared blocks, -1 */
    int pidfd; /* -1: cannot be watched */
} shm_peer;

/* One per process: what this process knows of the job. Members are the job's ranks, those of one
 * host, counted from 0; messages name the rank in the first group. */
typedef struct shm_process {
    shm_job *job;
    comm_team team;         /* of the members */
    shm_peer *peer;         /* [team.size] */
    int n_open;             /* groups that were opened, not split */
    transport_group *world; /* the first of them; under world_lock, NULL when it is closed */
    pthread_mutex_t world_lock;
    pthread_t watcher;
    bool watching;
    atomic_bool stop;
    int stop_event;
    int launcher_fd;            /* its pidfd; -1: cannot be watched */
    void (*_Atomic tell)(void); /* who else must hear: see shm_on_failure */
    _Atomic double died_s;      /* when it heard of the failure; 0: not yet */
} shm_process;

extern shm_process shm_self;

/* ---- groups --------------------------------------------------------------------------------- */

enum { SHM_INLINE_BYTES = 2048 };

/* What a rank shows a peer: bytes at `inner` of the call's block or of the entry's inline bytes. */
typedef struct shm_part {
    uint64_t inner, bytes;
} shm_part;

/* The data of a turn behind its two words. */
typedef struct shm_turn {
    shm_entry sync;
    comm_desc desc;
    uint64_t block_offset; /* in the rank's file */
    uint64_t block_bytes;  /* 0: the bytes are inline */
    _Alignas(SHM_LINE_BYTES) char inline_bytes[SHM_INLINE_BYTES];
    shm_part part[]; /* [W] for each peer */
} shm_turn;

typedef struct shm_group {
    const comm_team *team;
    char *area; /* [size][SHM_RING] turns of turn_bytes */
    size_t turn_bytes;
    atomic_uint spin; /* length of the next one, adapted; two streams may write it */
    bool may_spin;
    pthread_mutex_t lock; /* guards the two below */
    pthread_cond_t freed;
    uint64_t next[SHM_RING]; /* number of the call that may use this rank's entry now */
    unsigned owed[SHM_RING]; /* peers whose reading of it is not waited for yet */
} shm_group;

/* ---- calls (shm_call.c) ---------------------------------------------------------------------- */

/* shm_exchange -- the table's function of this name: see transport.h. s may be NULL: then the call
 * is done on return. */
fsdp_status shm_exchange(transport_group *group, stream *s, const comm_call *call,
                         const comm_part *parts, const comm_peer_read *v);

/* ---- failure (shm_watch.c) ------------------------------------------------------------------- */

/* shm_fail -- as shm_tell; returns the job's status, and this thread's record says why. */
fsdp_status shm_fail(void);
/* shm_failed -- the transport's function `failed`; group may be NULL. */
fsdp_status shm_failed(transport_group *group);
/* shm_watch_launcher -- from now on, as of a member; shm_launcher_check: look, and end this process
 * when the launcher is gone. */
void shm_watch_launcher(void);
void shm_launcher_check(void);
fsdp_status shm_watch_start(void);
void shm_watch_stop(void);

/* ---- peers' memory (shm_map.c) --------------------------------------------------------------- */

/* shm_map_get -- `block_bytes` at block_offset of the member's file, readable here; valid until
 * shm_map_put. NULL with this thread's record set. */
const char *shm_map_get(int member, uint64_t block_offset, uint64_t block_bytes);
void shm_map_put(int member, uint64_t block_offset);
void shm_map_free_all(void);

/* ---- files (shm_file.c) ---------------------------------------------------------------------- */

/* shm_turn_bytes, shm_area_bytes -- of one turn, and of a group's area, in whole cache lines and
 * pages. */
size_t shm_turn_bytes(int n_ranks);
size_t shm_area_bytes(int n_ranks);

/* shm_file_of -- fd of this process, for others. fd -1 is no file. */
shm_file shm_file_of(int fd);
/* shm_file_open -- another process's file as one of ours; -1 with errno, ESTALE when the numbers
 * lead to another file (ranks in different process namespaces). */
int shm_file_open(const shm_file *f);
/* shm_area_map -- the whole file, or NULL. */
char *shm_area_map(int fd, size_t bytes);

/* Memory that ranks of a group have in common. */
typedef struct shm_shared {
    const char *label;      /* of the call of hosts */
    int first;              /* the rank that makes it, in the group; the others map it */
    size_t bytes;           /* 0: this rank only takes part */
    fsdp_error_info cannot; /* why a rank that cannot map it gives up */
} shm_shared;
/* shm_area_share -- collective over talk. After an error, on all ranks, nothing stays mapped. */
fsdp_status shm_area_share(transport_group *talk, const shm_shared *x, char **area);

/* ---- starting (shm_boot.c) ------------------------------------------------------------------- */

/* shm_join -- the ranks of this host, among those of `talk`, become the members of a job: each
 * tells the others its files, opens theirs and starts its watcher. *area: memory for a group of
 * them; NULL when some rank of talk cannot map its peers' memory. collective over talk */
fsdp_status shm_join(transport_group *talk, const comm_team *host, char **area);
/* shm_join_launched -- the same with what fsdp_run has made. */
fsdp_status shm_join_launched(const comm_team *team, const comm_run_start *run, char **area);
/* shm_leave -- free what is held of the job. The record of a failed one stays: calls that streams
 * have still to run ask for it. */
void shm_leave(void);
