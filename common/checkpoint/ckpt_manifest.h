/* ckpt_manifest.h -- DIR/step-N/manifest.json: the files of a checkpoint, and facts about its run.
 *
 *   write: ckpt_about_add ... -> ckpt_manifest_write
 *   read:  ckpt_manifest_read -> ckpt_about_check -> ckpt_manifest_free */
#pragma once
#include "common/checkpoint/ckpt_file.h"
#include "common/data/data.h"

enum { CKPT_MAX_FACTS = 24 };

/* A property of a run, such as its seed. A resuming run must have the same value, unless
 * --resume-change names the fact. */
typedef struct ckpt_fact {
    char name[24], value[232];
    bool fixed; /* --resume-change cannot allow it to differ; not stored in a manifest */
} ckpt_fact;

typedef struct ckpt_about {
    ckpt_fact facts[CKPT_MAX_FACTS];
    int n;
} ckpt_about;

/* ckpt_about_add -- append a fact; format gives its value. */
void ckpt_about_add(ckpt_about *a, const char *name, bool fixed, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* ckpt_about_check -- check that a run with facts `now` may resume a run with facts `saved`.
 *   change  comma-separated names of facts that may differ; NULL: none
 *   errors  FSDP_EINVAL naming the first fixed fact that differs. If no fixed fact differs, the
 *           message names the first fact that differs, and the hint lists all of them */
fsdp_status ckpt_about_check(const ckpt_about *saved, const ckpt_about *now, const char *change,
                             const char *dir);

typedef struct ckpt_manifest {
    ckpt_id id; /* file is not used */
    ckpt_about about;
    ckpt_sum *files;   /* [id.n_files], owned */
    int64_t n_samples; /* that the run has read; -1: an older checkpoint, which does not say */
    corpus_notes data, mask; /* without hashes of blocks; owned */
} ckpt_manifest;

/* ckpt_about_value -- the value of a fact; "nothing" if there is none. */
const char *ckpt_about_value(const ckpt_about *a, const char *name);

/* ckpt_manifest_write -- write dir/manifest.json, sync it, read it back and compare.
 *   errors  FSDP_EIO, FSDP_ENOMEM */
fsdp_status ckpt_manifest_write(const char *dir, const ckpt_manifest *m);
/* ckpt_manifest_read -- read dir/manifest.json and check its ranges.
 *   errors  FSDP_EIO; FSDP_EINVAL: damaged, or another format; FSDP_ENOMEM. m is then empty */
fsdp_status ckpt_manifest_read(const char *dir, ckpt_manifest *m);
/* ckpt_manifest_free -- free m; a zeroed struct is accepted. */
void ckpt_manifest_free(ckpt_manifest *m);
