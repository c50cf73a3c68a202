/* export.h -- weights on disk: safetensors with Hugging Face names, and config.json.
 *
 * A writer streams one tensor after the other, so no process holds the whole model. Files are
 * written under a temporary name, fsynced and renamed: an old export stays whole
 * until the new one is. */
#pragma once
#include "common/model/unit.h"

typedef struct export_writer export_writer;

/* export_begin -- DIR/model.safetensors.tmp with its header (all tensors, tied ones once) and
 * DIR/config.json.tmp; makes DIR. errors: FSDP_EIO with the path.                                */
fsdp_status export_begin(const model *m, const char *dir, export_writer **out);
/* export_append -- the next `elems` floats (host) of the parameters, which come whole or in pieces
 * in order of their global index, tied ones left out. */
fsdp_status export_append(export_writer *w, const float *values, size_t elems);
/* export_end -- checks that everything came, then fsync and rename. export_cancel removes. Both
 * free w. */
fsdp_status export_end(export_writer *w);
void export_cancel(export_writer *w);

/* import_model_config -- DIR/config.json to *config. import_param -- one parameter by its HF name
 * into out [spec->elems] (host; fp32 files; checks shape). */
fsdp_status import_model_config(const char *dir, model_config *config);
typedef struct import_reader import_reader;
fsdp_status import_open(const char *dir, import_reader **out);
fsdp_status import_param(import_reader *r, const param_spec *spec, float *out);
void import_close(import_reader *r);
