/* units.h -- format quantities for people. */
#pragma once
#include <stddef.h>

/* format_bytes -- "17 B", "9.5 kB", "340 MB", "1.2 GB": decimal units, one digit after the point
 * below 10. Returns buf; 8 bytes are enough for any value. */
char *format_bytes(size_t bytes, char *buf, size_t buf_bytes);
