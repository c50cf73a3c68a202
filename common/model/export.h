/* export.h -- weights on disk: safetensors with Hugging Face names, and config.json.
 *
 *   export_begin -> export_append ... -> export_end | export_cancel
 *   import_model_config -> gpt2_create -> import_open -> import_param ... -> safetensors_close
 *
 * A writer streams one tensor after the other, so no process holds the whole model. Files are
 * written under temporary names (atomic_file.h): an old export stays whole until then. */
#pragma once
#include "common/base/atomic_file.h"
#include "common/model/safetensors.h"
#include "common/model/unit.h"

#define EXPORT_WEIGHTS "model.safetensors"
#define EXPORT_CONFIG  "config.json"

typedef struct export_writer {
    atomic_file weights, config;
    size_t expected_elems, written_elems;
} export_writer;

/* export_begin -- make DIR unless there is one, write its config.json, and begin its
 * model.safetensors with the header, which lists a tied tensor once.
 *   errors  FSDP_EIO with the path; FSDP_ENOMEM; nothing is left behind */
fsdp_status export_begin(const model *m, const char *dir, export_writer *w);
/* export_append -- the next `elems` floats (host). The parameters come in order of their global
 * index, without tied ones, whole or in pieces; more than all of them fails an assertion.
 *   writer  an export_writer *
 *   errors  FSDP_EIO */
fsdp_status export_append(void *writer, const float *values, size_t elems);
/* export_end -- check that everything came, fsync, rename; w is closed also after a failure.
 *   errors  FSDP_ESTATE floats are missing; FSDP_EIO; FSDP_ENOMEM */
fsdp_status export_end(export_writer *w);
/* export_cancel -- remove the temporary files; a zeroed or closed struct is accepted. */
void export_cancel(export_writer *w);

/* import_model_config -- read DIR/config.json into *config.
 *   errors  FSDP_EIO; FSDP_EINVAL: a field, with the value got and the one expected; FSDP_ENOMEM */
fsdp_status import_model_config(const char *dir, model_config *config);
/* import_open -- safetensors_open of DIR/model.safetensors. */
fsdp_status import_open(const char *dir, safetensors *f);
/* import_param -- read one parameter by its Hugging Face name, with or without "transformer.".
 *   out     [spec->elems], host
 *   errors  FSDP_EIO; FSDP_EINVAL: no such tensor, not fp32, another shape, a damaged range */
fsdp_status import_param(const safetensors *f, const param_spec *spec, float *out);
