/* fuzz_lib.h -- random input from a seed, and what must hold after every call.
 *
 *   fuzz_open -> per group: fuzz_group; per try: fuzz_try, then FUZZ_EXPECT ... ; fuzz_close
 * A group is one PASS or FAIL line. Its first failure prints the try; `PROGRAM 1 SEED TRY` repeats
 * this try alone. A try that computes for 20 s ends the program by SIGPROF. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/base/status.h"

typedef struct fuzz {
    uint64_t seed, state;
    long tries, first_try, at; /* at: number of the try */
    const char *group;
    bool failed;
    int n_passed, n_failed, fds;
    char dir[256];    /* a temporary folder in $TMPDIR or /tmp, removed by fuzz_close */
    FILE *report;     /* standard output; stdout itself goes to /dev/null (--help prints there) */
    char input[2048]; /* what the try does, for the report */
} fuzz;

/* argv: [TRIES [SEED [FIRST_TRY]]] */
void fuzz_open(fuzz *f, int argc, char **argv, long default_tries);
int fuzz_close(fuzz *f); /* prints "N passed, N failed"; exit status */
void fuzz_group(fuzz *f, const char *name);
/* fuzz_try -- the random numbers of a try depend on seed, group and number only. */
void fuzz_try(fuzz *f, long number);

uint64_t fuzz_next(fuzz *f);
size_t fuzz_below(fuzz *f, size_t n); /* 0 ... n-1 */
bool fuzz_chance(fuzz *f, int percent);

/* fuzz_expect -- the group fails if ok is false. */
void fuzz_expect(fuzz *f, bool ok, const char *what);
#define FUZZ_EXPECT(f, cond) fuzz_expect((f), (cond), #cond)
/* fuzz_expect_error -- the error record has this status, a message and a hint. */
void fuzz_expect_error(fuzz *f, fsdp_status status);
/* fuzz_expect_no_leak -- there are as many file descriptors as at the start of the group, and no
 * mapping of a file in f->dir. */
void fuzz_expect_no_leak(fuzz *f);

/* A file in memory. */
typedef struct blob {
    unsigned char *bytes; /* room for capacity */
    size_t n, capacity;
} blob;

blob blob_of(const void *bytes, size_t n); /* a copy with room to grow */
/* blob_damaged -- a damaged copy of from, also written to path. The report shows it. */
blob blob_damaged(fuzz *f, const blob *from, const char *path);
blob blob_read(const char *path);
void blob_write(const blob *b, const char *path);
/* blob_end -- frees it and checks that the try leaves nothing open. */
void blob_end(fuzz *f, blob *b);
void blob_free(blob *b);
/* blob_mutate -- makes one to four changes: bytes, 32-bit words, runs, copies within the blob,
 * cuts, growth; digits and quotes of text. */
void blob_mutate(fuzz *f, blob *b);
