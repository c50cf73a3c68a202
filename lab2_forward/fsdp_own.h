/* fsdp_own.h -- lab 2, provided: members of a unit and of fsdp that only provided code uses. */
#pragma once
#include "common/comm/comm_pieces.h"

typedef struct unit_own {
    int first_layer, end_layer; /* its layers are some of these */
    comm_pieces shard_pieces;   /* dim0_gather.h: all shards of the group; flat layout: none */
    comm_pieces slice_pieces;   /* dim0_gather.h: the slices of all ranks; flat layout: none */
    int companion;              /* freeze.h: the unit of its frozen parameters; 0: none */
    bool forward_only;          /* freeze.h: backward uses none of its parameters */
    void *near;                 /* reshard_to.h: the part that this rank keeps; NULL: none */
} unit_own;

typedef struct fsdp_own {
    comm *near_group;           /* reshard_to.h: borrowed; NULL: no near groups */
    bool near_keeps;            /* the micro-step in progress trains */
    bool keeps_for_step;        /* units stay gathered until the step's last micro-step */
    bool keeps_now;             /* a later micro-step of the step needs the units */
    bool in_backward;           /* freeze.h: from the first pre_backward to the next micro-step */
    bool replicas_last;         /* no_sync.h: reduce_group is the shard group */
    bool defers;                /* no_sync.h: reductions wait for a later micro-step */
    struct offload *offload;    /* offload.h: owned; NULL: all state lives on the device */
    comm_slice *replica_slices; /* no_sync.h: [replicas] scratch, owned */
} fsdp_own;
