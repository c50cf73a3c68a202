/* options.h -- one table gives parsing, --help, defaults and range checks.
 *
 *     static const option_spec TABLE[] = {
 *         {.name = "steps", .kind = OPT_INT, .offset = offsetof(cfg, steps), .def = "20",
 *          .min = 0, .max = 1e9, .group = "Training", .help = "optimizer steps"}, ... {0}};
 *     config cfg = {0};
 *     fsdp_status status = options_parse(TABLE, "fsdp_train", argc, argv, &cfg);
 *     if (status == FSDP_HELP)
 *         status = options_print_help(TABLE, "fsdp_train", "trains ...");
 *
 * GNU long options, written out: `--name=value` or `--name value` (a value that begins with --, or
 * that may be left out, needs the former). `--batch_size` is read as `--batch-size`. The last of
 * repeated options wins. `--help` needs no row. Every error is an FSDP_EINVAL that names the
 * option, the value got and what was expected, with a hint (an unknown option gets the nearest
 * known one). A number must be finite, whole where the kind says so, and in range. A value is never
 * empty. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "common/base/status.h"

typedef enum option_kind {
    OPT_END = 0,
    OPT_INT,    /* int64_t; decimal digits, an optional sign */
    OPT_DOUBLE, /* double; finite */
    OPT_STRING, /* const char * into argv or the table: valid while they live */
    OPT_BOOL,   /* bool; the option takes no value and has no default but false */
    OPT_ENUM    /* int: index into `choices` ("full|grad-op|none") */
} option_kind;

typedef struct option_spec {
    const char *name;
    option_kind kind;
    size_t offset;       /* of the field in the caller's struct */
    const char *def;     /* default, as text; NULL: zero, whatever the range */
    const char *bare;    /* value of the option if none is given; NULL: a value is required */
    double min, max;     /* OPT_INT, OPT_DOUBLE: inclusive range; min == max: no range check */
    const char *choices; /* OPT_ENUM */
    const char *arg;     /* name of the value in --help */
    const char *group;   /* heading in --help; NULL: same as the row above */
    const char *help;    /* never NULL */
} option_spec;

/* options_parse -- fill `out` (a caller's struct, all zero) with defaults, then with argv[1..].
 *   errors  FSDP_EINVAL (*out is then half written)
 *           FSDP_HELP at --help: the words after it were not read, and nothing was printed
 * Never exits, never prints. A default that its own row refuses is asserted. */
fsdp_status options_parse(const option_spec *table, const char *program, int argc, char **argv,
                          void *out);

/* options_takes_next -- whether `word`, an option as it is written, has its value in the next word:
 * for programs that find out where their options end. */
bool options_takes_next(const option_spec *table, const char *word);

/* options_choice -- the index of text in choices, "a|b|c" or "a,b,c"; -1: it is not there. */
int options_choice(const char *choices, const char *text);

/* options_print_help -- usage, doc and a line for every row, to stdout.
 *   errors  FSDP_EIO when stdout cannot be written */
fsdp_status options_print_help(const option_spec *table, const char *program, const char *doc);

/* options_canonical -- one line "name=value name=value ..." of every field, in table order, for
 * comparing ranks and for the head of logs. A double is the shortest decimal that reads back the
 * same; control characters are shown as '?'. Cut at buf_bytes, which is not 0.
 *   errors  FSDP_ENOMEM */
fsdp_status options_canonical(const option_spec *table, const void *opts, char *buf,
                              size_t buf_bytes);
