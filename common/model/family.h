/* family.h -- the registry of models: GPT-2, ...
 *
 *   model_preset | import_model_config -> (caller changes sizes) -> model_create -> model_free
 *
 * A family is one file that defines a model_family: its sizes by name, its layers with their
 * parameters, and its config.json. It gets a row in family.c. README.md here shows one. */
#pragma once
#include <cjson/cJSON.h>
#include <limits.h>
#include "common/model/unit.h"

/* ---- config.json, both ways ------------------------------------------------------------------ */

/* How a field of config.json is read and written. Fields that are not listed are refused, unless
 * they are neutral, `harmless` or have no effect in any model of transformers. */
typedef enum config_kind {
    /* The value is of the model, or of every export. */
    CONFIG_SIZE,    /* a whole number from 1: the size_t at `at` */
    CONFIG_SIZE_OR, /* the same; missing or null: 0, which `complete` replaces */
    CONFIG_NUMBER,  /* above 0 and below `most`: the float at `at`; missing: `otherwise` */
    CONFIG_NOT,     /* true or false, missing: false. The bool at `at` is the negation */
    CONFIG_WRITTEN, /* ignored when read; `value` is written */
    CONFIG_OBJECT,  /* for read_more; `fields` are written, or `value` if the float at `at` is 0 */
    /* An export writes the value of the config.json that the weights came with, if there is one. */
    CONFIG_FIXED, /* missing, or one of the JSON texts `value` and or_value. `value` is written */
    CONFIG_LAST_TOKEN, /* ignored when read; vocab_size - 1 is written */
    CONFIG_OTHERWISE,  /* a dropout, which gives a note, or harmless; `value` is written */
    /* Of these nothing else is written. */
    CONFIG_SAME,  /* optional; must equal the size_t at `at`, which an earlier field set */
    CONFIG_ABSENT /* as CONFIG_FIXED */
} config_kind;

typedef struct config_field {
    const char *key;
    config_kind kind;
    size_t at;
    const char *value, *or_value;
    float otherwise, most;
    const struct config_field *fields;
} config_field;

#define CONFIG_AT(member) .at = offsetof(model_config, member)

/* ---- families -------------------------------------------------------------------------------- */

typedef struct model_preset_row {
    const char *name;
    model_config config;
} model_preset_row;

typedef struct model_family {
    const char *name, *title;        /* "gpt2", as in --model and model_type; "GPT-2" */
    const model_preset_row *presets; /* ends with a row without a name; the first is the default */
    /* Parameters of a block are named BLOCKS.number.NAME, its layers by the last word of BLOCKS:
     * "transformer.h" makes "transformer.h.0.ln_1.weight" and "h.0.attn". NULL: names get no
     * prefix, in blocks too. */
    const char *blocks;
    bool is_rms;         /* its norms are RMS norms, which have no bias */
    bool is_images;      /* a sample is an image, one position, not a sequence */
    const char *samples; /* a word for samples: "images"; NULL: "sequences" */
    const char *unit;    /* a unit of progress: "img"; NULL: "tok" */
    const char *prefix;  /* of parameters' names, which files may omit */
    const char *ignored; /* glob (FNM_EXTMATCH) of tensors to ignore in files, after prefix */
    const config_field *fields; /* in the order in which they are written; ends without a key */
    const char *harmless;       /* glob (FNM_EXTMATCH) of more fields to ignore: no effect here */
    /* complete -- replace each 0 in *c by its default, and check all sizes.
     *   errors  FSDP_EINVAL */
    fsdp_status (*complete)(model_config *c);
    /* read_more -- fields of the object j that are no texts or numbers, or NULL.
     *   errors  FSDP_EINVAL, with path */
    fsdp_status (*read_more)(const char *path, const cJSON *j, model_config *c);
    /* build -- set m->input, then call model_add_layer, model_add_param, ... in order. It is
     * called twice: the first call only counts. */
    void (*build)(model *m);
    /* Evaluations print the share of correct answers under this name, in percent; NULL: they print
     * the loss only. */
    const char *metric;
    /* count_correct -- how many of n answers are correct.
     *   logits  [n, vocab_size] of `type`, host */
    size_t (*count_correct)(const model *m, const void *logits, dtype type, const int32_t *targets,
                            size_t n);
} model_family;

extern const model_family GPT2_FAMILY, LLAMA_FAMILY, MNIST_FAMILY;
#define MODEL_FAMILIES                                                                             \
    "gpt2|llama|mnist" /* their names, separated by |, in the order of family.c */

/* model_family_find -- NULL: there is none of that name. */
const model_family *model_family_find(const char *name);

/* model_family_at -- family `number` of MODEL_FAMILIES. */
const model_family *model_family_at(int number);

/* model_complete -- replace each 0 in *config by its family's default, and check all sizes.
 *   errors  FSDP_EINVAL (no such family; sizes that do not fit together) */
fsdp_status model_complete(model_config *config);

/* model_preset -- the preset `size` of a family; NULL: its first preset.
 *   errors  FSDP_EINVAL with the list of names */
fsdp_status model_preset(const char *family, const char *size, model_config *config);

/* model_create -- the lists of layers and parameters; no memory for the parameters themselves.
 *   config  sizes that are 0 get their defaults
 *   m       the caller's; owns the lists until model_free. It must not move: layers point back to
 *           it
 *   errors  FSDP_EINVAL (no such family; sizes that do not fit together, or overflow);
 *           FSDP_ENOMEM */
fsdp_status model_create(const model_config *config, model *m);

/* ---- for build ------------------------------------------------------------------------------- */

/* model_add_layer -- append a layer. kind: its name and functions; the other members are zero.
 * block -1: outside the blocks. */
void model_add_layer(model *m, const layer *kind, int block);
/* model_add_out -- the width of the array that the last added layer passes to the next one. */
void model_add_out(model *m, size_t width);
/* model_add_param -- append a parameter to the last added layer. `spec` has its dims (up to the
 * first 0), its initial values, and its name, to which the block's prefix is added. It decays if it
 * has two dimensions or more. */
void model_add_param(model *m, const param_spec *spec);
/* model_add_vector, model_add_matrix -- the same for one and for two dimensions; std: the standard
 * deviation of the initial values. */
void model_add_vector(model *m, const char *name, size_t n, init_rule init);
void model_add_matrix(model *m, const char *name, size_t rows, size_t cols, float std);
/* model_add_cut -- the last added parameter is cut into `blocks` blocks, config.tp_blocks or, if
 * several of these share one, a divisor of them; see param_cut. */
void model_add_cut(model *m, size_t blocks, size_t width);
/* model_add_tied -- append a parameter that shares the storage of parameter number `of`. */
void model_add_tied(model *m, const char *name, int of);
/* model_check_positive -- FSDP_EINVAL, with the name of --option, if value is 0. */
fsdp_status model_check_positive(const model_config *c, const char *option, size_t value);

/* ---- for files ------------------------------------------------------------------------------- */

#define EXPORT_CONFIG "config.json"
#define IMPORT_HINT   "pass a directory with the config.json and the model.safetensors of a model"
enum { IMPORT_PATH_ROOM = PATH_MAX + 1 /* a path cut to this room is still too long to open */ };

/* config_is_neutral -- whether a field that is unknown here asks for nothing: it is null, false, 0,
 * "", [] or {}; a factor is 1; a scale, multiplier, base or window is never neutral. */
bool config_is_neutral(const cJSON *item);

/* config_member -- the member of *c that holds the field. */
void *config_member(const model_config *c, const config_field *f);
/* config_read_fields -- read fields of an object in a config.json, or all fields of it.
 *   path, title  of the file and of the family, for messages
 *   errors       FSDP_EINVAL */
fsdp_status config_read_fields(const char *path, const char *title, const cJSON *object,
                               const config_field *fields, model_config *c);

/* config_read_object -- the same for an object (sizes and numbers) inside the file. */
fsdp_status config_read_object(const char *path, const cJSON *object, const config_field *fields,
                               model_config *c);

/* import_model_config -- read DIR/config.json into *config.
 *   *note   "", or a remark about a field that is ignored (dropout); a literal
 *   errors  FSDP_EIO; FSDP_EINVAL: a field, with the value got and the one expected; FSDP_ENOMEM */
fsdp_status import_model_config(const char *dir, model_config *config, const char **note);

/* model_write_config -- write *c as config.json. atomic_file_sync of out finds write errors.
 *   source  NULL, or the text of the config.json that the weights came with: its fields that do not
 *           follow from *c are written as they stand there */
void model_write_config(const model_config *c, const char *source, FILE *out);
