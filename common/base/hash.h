/* hash.h -- one 64-bit number for some bytes: to compare and to look up, not to protect. */
#pragma once
#include <stddef.h>
#include <stdint.h>

/* hash_bytes -- FNV-1a. */
uint64_t hash_bytes(const void *bytes, size_t n_bytes);
