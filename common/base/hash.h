/* hash.h -- a 64-bit hash, for comparisons and look-ups; it is not cryptographic. */
#pragma once
#include <stddef.h>
#include <stdint.h>

/* hash_bytes -- FNV-1a. */
uint64_t hash_bytes(const void *bytes, size_t n_bytes);
