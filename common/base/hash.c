/* hash.c -- see hash.h. */
#include "common/base/hash.h"

uint64_t hash_bytes(const void *bytes, size_t n_bytes)
{
    const unsigned char *p = bytes;
    uint64_t hash = 14695981039346656037u;
    for (size_t i = 0; i < n_bytes; i++)
        hash = (hash ^ p[i]) * 1099511628211u;
    return hash;
}
