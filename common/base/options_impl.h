/* options_impl.h -- what options.c (parsing) and options_text.c (printing) share. */
#pragma once
#include "common/base/options.h"

/* The row every table has without listing it; it comes last. */
extern const option_spec OPTIONS_HELP;

/* options_first_row, options_row_after -- the table's rows, then OPTIONS_HELP, then NULL. */
const option_spec *options_first_row(const option_spec *table);
const option_spec *options_row_after(const option_spec *row);

/* options_range_text -- " from 0 to 10" (`from` is "from " or ""), " of at least 1", or "" when the
 * row has no range.                                                                              */
void options_range_text(const option_spec *spec, const char *from, char *buf, size_t buf_bytes);

/* options_print_help -- FSDP_HELP when it is out, FSDP_EIO when stdout cannot be written. */
fsdp_status options_print_help(const option_spec *table, const char *program, const char *doc);
