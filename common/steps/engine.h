/* engine.h -- the table of functions through which the training loop uses the parameters. The
 * single-device and DDP baselines (steps/baseline.c) and FSDP (labs 1-5) each fill in this table.
 *
 *   begin_step -> (runner_forward, runner_backward) x grad_accum -> optimizer_step -> ... */
#pragma once
#include <stdbool.h>
#include "common/model/run_context.h"

typedef struct ckpt_store ckpt_store;   /* ckpt_store.h */
typedef struct ckpt_source ckpt_source; /* ckpt_source.h */

/* The scalars of a step's update. */
typedef struct step_scalars {
    optim_config optim; /* of this step */
    float clip_norm;    /* 0: no clipping */
    float grad_scale;   /* fp32(1 / tokens of the global batch) */
} step_scalars;

/* engine_sink -- receives whole arrays on rank 0: one call per parameter, in order of the global
 * index, without tied parameters. values [elems] is host memory, valid during the call. */
typedef fsdp_status (*engine_sink)(void *ctx, const float *values, size_t elems);

/* A rank's part of a gradient: elements [begin, begin + elems), in device memory. */
typedef struct engine_piece {
    size_t begin, elems;
    const void *values;
} engine_piece;

typedef struct engine {
    void *self;
    int n_units;
    const int *layer_unit;                          /* [n_layers], valid while the engine lives */
    const char *(*unit_name)(void *self, int unit); /* valid while the engine lives */
    unit_hooks hooks;
    model_views *views;
    fsdp_status (*begin_step)(void *self); /* NULL: nothing to do */
    /* Finish the gradients (scale once), compute their norm, clip, and update the parameters.
     * norm [1], device: receives the norm before clipping. */
    fsdp_status (*optimizer_step)(void *self, const step_scalars *sc, float *norm);
    /* After optimizer_step: *out = this rank's piece of the mean gradient of a trained parameter,
     * before clipping. Every element is in the piece of exactly one rank. Order reads after the
     * compute stream. */
    fsdp_status (*find_grad)(void *self, int param, engine_piece *out);
    /* Collective: pass array 0 (the parameters) or k + 1 (state k of the trained parameters) to
     * sink, on rank 0 only; its errors reach every rank. sink NULL: copy nothing to the host. */
    fsdp_status (*read_array)(void *self, int array, engine_sink sink, void *ctx);
    /* Collective: save the parameters, optimizer states and step to a checkpoint, which any kind of
     * engine can load on any number of ranks. */
    fsdp_status (*save)(void *self, ckpt_store *to, int64_t next_step);
    /* *out = an upper bound on the number of floats that save writes on this rank. Fails if save
     * would not work. */
    fsdp_status (*saved_elems)(void *self, size_t *out);
    /* Collective: load a checkpoint. If it fails, the engine's state is undefined. */
    fsdp_status (*load)(void *self, const ckpt_source *from);
    void (*free)(void *self);
} engine;
