/* unit_lib.h -- what the unit programs under cmocka share: cmocka and the headers it wants, checks
 * of a status, a directory for files.
 *
 *     return cmocka_run_group_tests(tests, temp_dir_make, temp_dir_remove); */
#pragma once
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "common/base/status.h"

/* OK -- the call returns FSDP_OK; else the test fails with the call and its error. */
#define OK(call)                                                                                   \
    do {                                                                                           \
        fsdp_status ok_status_ = (call);                                                           \
        if (ok_status_ != FSDP_OK)                                                                 \
            fail_msg("%s: %s", #call, fsdp_error_get()->what);                                     \
    } while (0)

/* assert_says -- the last error has `part` in its text, and a hint. */
void assert_says(const char *part);

/* One directory of the program's own under TMPDIR, named after it; removed with its contents. */
int temp_dir_make(void **state);
int temp_dir_remove(void **state);
/* in_dir -- "directory/name"; valid until the sixteenth call from here. */
const char *in_dir(const char *name);
/* write_bytes -- a file that holds these; returns path. */
const char *write_bytes(const char *path, const void *bytes, size_t n_bytes);
/* files_like -- how many files of the directory match a pattern of the shell. */
int files_like(const char *pattern);
