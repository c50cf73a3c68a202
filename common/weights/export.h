/* export.h -- weights on disk: safetensors with Hugging Face names, and config.json.
 *
 *   export_begin | export_begin_states -> export_append ... -> export_end | export_cancel
 *   import_model_config -> model_create -> import_open -> import_read ... -> import_close
 *
 * A writer streams the tensors one by one, so no process holds the whole model. Files are written
 * under temporary names (atomic_file.h), so an old export stays complete until export_end. */
#pragma once
#include "common/base/atomic_file.h"
#include "common/model/family.h"
#include "common/ops/optimizers.h"
#include "common/weights/safetensors.h"
#include "common/weights/source_files.h"

#define EXPORT_WEIGHTS "model.safetensors"
#define EXPORT_INDEX   "model.safetensors.index.json"

typedef struct export_file {
    atomic_file file;
    size_t left_elems; /* not written yet */
} export_file;

typedef struct export_writer {
    /* [n_files], owned, in the order in which they get their names: n_weights with the values, the
     * index, copies of the files of a source, and config.json */
    export_file *files;
    int n_files, n_weights, at; /* at: index of the file being written */
    char dir[PATH_MAX];         /* "": optimizer states, in one file */
} export_writer;

/* export_begin -- make DIR unless there is one, write its config.json, and begin its
 * model.safetensors with the header, which lists a tied tensor once. If that file would have more
 * than max_bytes of values, there are several, model-00001-of-0000N.safetensors and so on, and
 * model.safetensors.index.json, which says where each tensor is. A tensor is never cut. export_end
 * removes the files of an earlier export that the new ones replace.
 *   source  NULL, or what the weights came from: its files are copied, and fields of its
 *           config.json that training does not change are written as they are there
 *   errors  FSDP_EIO with the path; FSDP_ENOMEM; nothing is left behind */
fsdp_status export_begin(const model *m, const char *dir, uint64_t max_bytes,
                         const source_files *source, export_writer *w);
/* export_begin_states -- begin a safetensors file with the states of the trained parameters, such
 * as "transformer.wte.weight.exp_avg": state after state, each in order of the parameters. Its
 * metadata names the optimizer and the number of steps made.
 *   errors  as export_begin */
fsdp_status export_begin_states(const model *m, const optimizer_rule *rule, int64_t step,
                                const char *path, export_writer *w);
/* export_append -- the next `elems` floats (host). The parameters come in order of their global
 * index, without tied ones, whole or in pieces; more than all of them fails an assertion.
 *   writer  an export_writer *
 *   errors  FSDP_EIO */
fsdp_status export_append(void *writer, const float *values, size_t elems);
/* export_end -- check that all floats were written, fsync, rename; closes w, after a failure too.
 *   errors  FSDP_ESTATE: floats are missing; FSDP_EIO; FSDP_ENOMEM */
fsdp_status export_end(export_writer *w);
/* export_cancel -- remove the temporary files; a zeroed or closed struct is accepted. */
void export_cancel(export_writer *w);

/* Where the values of a parameter are. */
typedef struct import_tensor {
    int file;            /* index into files; -1: the parameter is tied and has no tensor */
    const char *name;    /* in the file; borrowed from its header */
    size_t begin;        /* first byte, counted from the end of the header */
    bool is_f32, is_f16; /* if neither, bf16 */
} import_tensor;

/* Open weights. */
typedef struct import {
    const model *m;
    safetensors *files; /* [n_files], owned */
    int n_files;
    import_tensor *tensors;    /* [m->n_params], owned */
    struct import_name *names; /* [m->n_params], owned; see import.c */
} import;

/* import_open -- open DIR/model.safetensors, or the files that DIR/model.safetensors.index.json
 * names, and check that they hold every parameter of m once, by its Hugging Face name with or
 * without the family's prefix, and no others except names that match the family's `ignored`. A
 * tensor of parameters that are tied may have the name of either. No value is read.
 *   m       borrowed until import_close
 *   errors  FSDP_EIO; FSDP_EINVAL: missing or unknown names, a dtype that is not F32, BF16 or F16,
 *           another shape, a damaged file; FSDP_ENOMEM; w is closed then */
fsdp_status import_open(const char *dir, const model *m, import *w);
/* import_read -- read elements [begin, begin + elems) of parameter p, which is not tied, and no
 * other bytes. If a parameter that is tied to p has a tensor, its elements must be the same.
 *   out     [elems], host
 *   errors  FSDP_EIO; FSDP_EINVAL: a value that is not finite, or two values of tied parameters */
fsdp_status import_read(const import *w, int p, size_t begin, size_t elems, float *out);
/* import_close -- a zeroed or closed struct is accepted. */
void import_close(import *w);
