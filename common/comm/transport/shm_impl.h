/* shm_impl.h -- declarations that the files of the shm transport share; internal.
 *
 * shm_file.c      the memory of a job: sizes, files, mappings
 * shm_sync.[ch]   the protocol of one group in shared memory
 * shm_watch.c     this process in its job: the one failure record, the watch for dead peers
 * shm_map.c       peers' shared blocks in this address space
 * shm_boot.c      how ranks find each other: over another group, or through fsdp_run
 * shm_call.c      one call of a rank
 * shm.c           the transport: groups
 *
 * Each file calls only files above it in this list.
 *
 * There are three kinds of shared memory. All are memfds, which vanish with the last process:
 *   job     one per job: every rank's process number and files; the failure that ended the job
 *   area    one per group: W rings of entries
 *   blocks  one file per rank: the memory that comm_alloc returns (device/host_share.h)
 *
 * The first failure anywhere is written into the job; every rank checks it during each wait. */
#pragma once
#include <pthread.h>
#include "common/comm/transport/transport_help.h"
#include "common/comm/transport/hier_parts.h"
#include "common/comm/transport/shm_launch.h"
#include "common/comm/transport/shm_sync.h"

/* ---- the job -------------------------------------------------------------------------------- */

enum { SHM_FAIL_NONE = 0, SHM_FAIL_WRITING = 1, SHM_FAIL_SET = 2 };

/* A file that another process has open: its process and descriptor, and its identity. */
typedef struct shm_file {
    int32_t pid, fd;
    uint64_t device, inode;
} shm_file;

typedef struct shm_member {
    shm_word ready;     /* 1: the fields below are filled */
    atomic_uint closed; /* 1: it left in order, so its end is not a failure */
    shm_file share;     /* the file of its shared blocks */
} shm_member;

typedef struct shm_job {
    int32_t launcher;    /* process that made the job and whose end ends it; 0: none */
    atomic_uint failed;  /* SHM_FAIL_* */
    int32_t failed_rank; /* rank that reported it; -1: print `why` without a rank */
    fsdp_error_info why;
    int32_t n_members;
    shm_member member[];
} shm_job;

/* shm_job_bytes -- size of a job of n_members, in whole pages. */
size_t shm_job_bytes(int n_members);

/* What this process has open for a member. */
typedef struct shm_peer {
    int file;  /* the member's shared blocks; -1: not open */
    int pidfd; /* -1: it cannot be watched */
} shm_peer;

/* One per process: what it knows of the job. The members are the job's ranks, all on one host,
 * counted from 0; messages use the rank in the first group. */
typedef struct shm_process {
    shm_job *job;
    comm_team team;         /* the members */
    shm_peer *peer;         /* [team.size] */
    int n_open;             /* open groups that were opened, not split */
    transport_group *world; /* the first of them, under world_lock; NULL after it is closed */
    pthread_mutex_t world_lock;
    pthread_t watcher;
    bool watching;
    atomic_bool stop;
    int stop_event;
    int launcher_fd;            /* the launcher's pidfd; -1: it cannot be watched */
    void (*_Atomic tell)(void); /* whom else to tell of a failure: see shm_on_failure */
    _Atomic double died_s;      /* when this process learned of the failure; 0: not yet */
} shm_process;

extern shm_process shm_self;

/* ---- groups --------------------------------------------------------------------------------- */

enum { SHM_INLINE_BYTES = 2048 };

/* What a rank shows a peer: `bytes` bytes, at offset `inner` of the call's block or of the entry's
 * inline bytes. */
typedef struct shm_part {
    uint64_t inner, bytes;
} shm_part;

/* One entry: the two words of the protocol, then the data of the turn. */
typedef struct shm_turn {
    shm_entry sync;
    comm_desc desc;
    uint64_t block_offset; /* in the rank's file */
    uint64_t block_bytes;  /* 0: the data is inline */
    _Alignas(SHM_LINE_BYTES) char inline_bytes[SHM_INLINE_BYTES];
    shm_part part[]; /* [W] one per peer */
} shm_turn;

typedef struct shm_group {
    const comm_team *team;
    char *area; /* [size][SHM_RING] turns of turn_bytes */
    size_t turn_bytes;
    atomic_uint spin; /* length of the next spin, adapted; two streams may write it */
    bool may_spin;
    pthread_mutex_t lock; /* guards the two below */
    pthread_cond_t freed;
    uint64_t next[SHM_RING]; /* number of the call that may use this rank's entry now */
    unsigned owed[SHM_RING]; /* peers that may still read it; the next call waits for them */
} shm_group;

/* ---- calls (shm_call.c) ---------------------------------------------------------------------- */

/* shm_exchange -- the function of a comm_transport with this name. If s is NULL, the call is done
 * on return. */
fsdp_status shm_exchange(transport_group *group, stream *s, const comm_call *call,
                         const comm_part *parts, const comm_peer_read *v);

/* ---- failure (shm_watch.c) ------------------------------------------------------------------- */

/* shm_fail -- shm_tell; returns the job's status, and sets this thread's record to its failure. */
fsdp_status shm_fail(void);
/* shm_failed -- the function `failed` of a comm_transport; group may be NULL. */
fsdp_status shm_failed(transport_group *group);
/* shm_watch_launcher -- begin to watch the launcher. shm_launcher_check: end this process if the
 * launcher has ended. */
void shm_watch_launcher(void);
void shm_launcher_check(void);
fsdp_status shm_watch_start(void);
void shm_watch_stop(void);

/* ---- peers' memory (shm_map.c) --------------------------------------------------------------- */

/* shm_map_get -- map `block_bytes` at block_offset of the member's file for reading; valid until
 * shm_map_put. Returns NULL and sets this thread's record on failure. */
const char *shm_map_get(int member, uint64_t block_offset, uint64_t block_bytes);
void shm_map_put(int member, uint64_t block_offset);
void shm_map_free_all(void);

/* ---- files (shm_file.c) ---------------------------------------------------------------------- */

/* shm_turn_bytes, shm_area_bytes -- size of an entry in whole cache lines, and of a group's area in
 * whole pages. */
size_t shm_turn_bytes(int n_ranks);
size_t shm_area_bytes(int n_ranks);

/* shm_file_of -- describe fd of this process for other processes. fd -1: no file. */
shm_file shm_file_of(int fd);
/* shm_file_open -- open another process's file here. -1 with errno on failure; ESTALE if the
 * numbers lead to another file (ranks in different process namespaces). */
int shm_file_open(const shm_file *f);
/* shm_area_map -- map the whole file; NULL on failure. */
char *shm_area_map(int fd, size_t bytes);

/* Memory for ranks of a group to share. */
typedef struct shm_shared {
    const char *label;      /* of the host call */
    int first;              /* the rank of the group that makes the memory; the others map it */
    size_t bytes;           /* 0: this rank takes part but needs no memory */
    fsdp_error_info cannot; /* the error of a rank that cannot map it */
} shm_shared;
/* shm_area_share -- make the memory on one rank and map it on the others; collective over talk. An
 * error is returned on all ranks, and nothing stays mapped. */
fsdp_status shm_area_share(transport_group *talk, const shm_shared *x, char **area);

/* ---- starting (shm_boot.c) ------------------------------------------------------------------- */

/* shm_join -- make the ranks of `talk` on this host the members of a job: each announces its files
 * to the others, opens theirs and starts its watcher. *area: memory for a group of them; NULL if
 * some rank of talk cannot map its peers' memory. collective over talk */
fsdp_status shm_join(transport_group *talk, const comm_team *host, char **area);
/* shm_join_launched -- the same with the files that fsdp_run made. */
fsdp_status shm_join_launched(const comm_team *team, const comm_run_start *run, char **area);
/* shm_leave -- free what this process holds of the job. The record of a failed job stays, because
 * calls that streams have not run yet check it. */
void shm_leave(void);
