/* units.h -- quantities: the ranges of what people give, and texts for people to read. */
#pragma once
#include <stddef.h>

/* The ranges of rates, times and work that a user may give. Sums of times stay finite in them: 2^63
 * bytes at the least rate, with the largest factor, take less than 1e26 s. */
#define LEAST_BYTES_PER_S 1.0
#define MOST_BYTES_PER_S  1e18
#define MOST_LATENCY_S    1e3
#define MOST_CALL_S       1e6  /* of one operation */
#define MOST_WORK         1e24 /* FLOP or bytes of one operation */

/* format_bytes -- "17 B", "9.5 kB", "340 MB", "1.2 GB": decimal units, one digit after the point
 * below 10. Returns buf; 8 bytes are enough for any value. */
char *format_bytes(size_t bytes, char *buf, size_t buf_bytes);
