/* ckpt_manifest.h -- DIR/step-N/manifest.json: which files a checkpoint has, and what the run was.
 *
 *   write: ckpt_about_add ... -> ckpt_manifest_write
 *   read:  ckpt_manifest_read -> ckpt_about_check -> ckpt_manifest_free */
#pragma once
#include "common/checkpoint/ckpt_file.h"

enum { CKPT_MAX_FACTS = 24 };

/* Something that a resumed run must have in common with the one that saved. */
typedef struct ckpt_fact {
    char name[24], value[232];
    bool fixed; /* the checkpoint is of no use to a run that differs; else --resume-change may */
} ckpt_fact;

typedef struct ckpt_about {
    ckpt_fact facts[CKPT_MAX_FACTS];
    int n;
} ckpt_about;

/* ckpt_about_add -- append a fact, in words. */
void ckpt_about_add(ckpt_about *a, const char *name, bool fixed, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* ckpt_about_check -- whether a run that is `now` may go on from one that was `saved`.
 *   change  names of facts that may differ, with commas between; NULL: none
 *   errors  FSDP_EINVAL naming the first fact that differs, and in the hint all that may */
fsdp_status ckpt_about_check(const ckpt_about *saved, const ckpt_about *now, const char *change,
                             const char *dir);

typedef struct ckpt_manifest {
    ckpt_id id; /* file is not used */
    ckpt_about about;
    ckpt_sum *files; /* [id.n_files], owned */
} ckpt_manifest;

/* ckpt_manifest_write -- write dir/manifest.json, sync it, read it back and compare.
 *   errors  FSDP_EIO, FSDP_ENOMEM */
fsdp_status ckpt_manifest_write(const char *dir, const ckpt_manifest *m);
/* ckpt_manifest_read -- read dir/manifest.json and check its ranges.
 *   errors  FSDP_EIO; FSDP_EINVAL: damaged, or of another form; FSDP_ENOMEM; m is empty then */
fsdp_status ckpt_manifest_read(const char *dir, ckpt_manifest *m);
/* ckpt_manifest_free -- free m; a zeroed struct is accepted. */
void ckpt_manifest_free(ckpt_manifest *m);
