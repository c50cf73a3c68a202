/* fsdp_own.h -- lab 2, provided: what only provided files use of a unit and of all units. */
#pragma once
#include "common/comm/comm_pieces.h"

typedef struct unit_own {
    comm_pieces shard_pieces; /* dim0_gather.h: of the shard group; this and the next: zeroed in */
    comm_pieces slice_pieces; /* the flat layout */
    int companion;            /* freeze.h: the unit of its frozen parameters; 0: none */
    bool forward_only;        /* freeze.h: backward uses none of its parameters */
    void *near;               /* reshard_to.h: what this rank keeps of it; NULL: nothing */
} unit_own;

typedef struct fsdp_own {
    comm *near_group;           /* reshard_to.h: borrowed; NULL: there are none */
    bool near_keeps;            /* the micro-step in progress trains */
    bool keeps_for_step;        /* no unit is resharded before the step's last backward */
    bool keeps_now;             /* that backward is not the one in progress */
    bool in_backward;           /* freeze.h: from the first pre_backward to the next micro-step */
    bool replicas_last;         /* no_sync.h: reduce_group is the shard group */
    bool defers;                /* no_sync.h: reductions wait for a later micro-step */
    comm_slice *replica_slices; /* no_sync.h: [replicas] scratch, owned */
} fsdp_own;
