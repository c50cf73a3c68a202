/* page.h -- the unit in which memory is mapped, protected and shared, and advice if that fails. */
#pragma once

/* The largest page of Linux on common machines, which have pages of 4, 16 or 64 KiB. Addresses,
 * offsets and sizes that are multiples of it suit all of them, so every machine maps the same. */
enum { PAGE_BYTES = 65536 };

/* page_hint -- the hint for a failed call that maps memory or makes a file in memory.
 *   err        the call's errno
 *   otherwise the hint if err is ENOMEM, or says nothing that helps */
const char *page_hint(int err, const char *otherwise);
