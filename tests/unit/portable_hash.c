/* portable_hash.c -- run every operation of the portable table; print a hash of each result's bits.
 *
 *     portable_hash          one line per case
 *     portable_hash total    one line: the hash of all
 * tests/unit/portable_hash.sh builds it with several compilers and instruction sets. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/device/device.h"
#include "tests/unit/ops_cases_lib.h"

/* 64-bit FNV-1a over the bytes of each word from the lowest, so that byte order does not matter. */
static uint64_t hash_floats(uint64_t hash, const float *x, size_t elems)
{
    for (size_t i = 0; i < elems; i++) {
        uint32_t bits;
        memcpy(&bits, x + i, sizeof bits);
        for (int shift = 0; shift < 32; shift += 8)
            hash = (hash ^ (bits >> shift & 0xff)) * 1099511628211u;
    }
    return hash;
}

int main(int argc, char **argv)
{
    const bool only_total = argc > 1 && strcmp(argv[1], "total") == 0;
    const uint64_t empty = 14695981039346656037u;
    uint64_t total = empty;
    device *d = NULL;
    if (device_open(&(device_config){.backend = &device_cpu, .n_threads = 2}, &d) != FSDP_OK) {
        fsdp_error_print(stderr, 0, 0);
        return 1;
    }
    for (size_t i = 0; i < ops_case_count(); i++) {
        ops_result r = ops_case_run(i, ops_cpu_portable(), device_compute_stream(d));
        if (r.status != FSDP_OK) {
            fsdp_error_print(stderr, 0, 0);
            return 1;
        }
        if (!only_total)
            printf("%016llx %s\n", (unsigned long long)hash_floats(empty, r.data, r.elems),
                   ops_case_name(i));
        total = hash_floats(total, r.data, r.elems);
        free(r.data);
    }
    printf("%016llx total\n", (unsigned long long)total);
    device_close(d);
    return 0;
}
