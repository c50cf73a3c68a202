/* glob_in.h -- the files of a folder that match a pattern. */
#pragma once
#include <glob.h>

/* glob_in -- glob(), with patterns of names in `dir`, whose own name is no pattern. The files are
 * in name order, without hidden ones; the caller calls globfree after 0 was returned.
 *   names  also "{a,b}*" with GLOB_BRACE, which has the order of the list */
int glob_in(const char *dir, const char *names, int flags, glob_t *out);
