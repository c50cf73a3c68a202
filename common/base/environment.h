/* environment.h -- the environment variables that the programs read, in one table.
 *
 *   environment_check, when a program starts -> environment_number, environment_text ...
 *
 * A variable that is empty counts as unset. The names must be rows of the table (asserted). */
#pragma once
#include <stdbool.h>
#include "common/base/status.h"

/* environment_check -- check the values of all variables of the table.
 *   notes   print a note for each variable whose name begins with FSDP_ and that nobody reads
 *   errors  FSDP_EINVAL that names the variable, got and expected */
fsdp_status environment_check(bool notes);

/* environment_read -- *value (int64_t for a whole number, or double) = the value of a variable or
 * its default. A variable that is unset and has no default leaves it as it is.
 *   errors  as environment_check */
fsdp_status environment_read(const char *name, void *value);
/* environment_number -- the same, but the default also instead of a bad value, which
 * environment_check refuses; 0 if there is none. */
double environment_number(const char *name);
/* environment_text -- the value of a variable, or NULL. */
const char *environment_text(const char *name);
