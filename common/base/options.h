/* options.h -- parse a command line by a table of options, which also gives --help, defaults and
 * range checks.
 *
 *     static const option_spec TABLE[] = {
 *         {.name = "steps", .kind = OPT_INT, .offset = offsetof(config, steps), .def = "20",
 *          .min = 0, .max = 1e9, .group = "Training", .help = "optimizer steps"}, ... {0}};
 *     config cfg = {0};
 *     fsdp_status status = options_parse(TABLE, "fsdp_train", argc, argv, &cfg);
 *     if (status == FSDP_HELP)
 *         status = options_print_help(TABLE, "fsdp_train [OPTION...]", "trains ...");
 *
 * Options are GNU long options without abbreviations: `--name=value` or `--name value`. A value
 * that begins with -- needs the first form. `--batch_size` means
 * `--batch-size`. If an option is repeated, the last one wins. `--help` needs no row. Every error
 * is an FSDP_EINVAL that names the option, the value got and the value expected, with a hint (for
 * an unknown option, the nearest known one). A number must be finite and in range, and whole for
 * OPT_INT; one that is not whole must be 0 or at least 1e-30. A value is never empty.
 *
 * An option counts as given if its value is not the default. What else must hold for it to have an
 * effect, or a meaning, is in its row's `needs`; if that does not hold, it is an error too. */
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
    OPT_BOOL,   /* bool; the option takes no value; the default is false */
    OPT_ENUM    /* int: index into `choices` ("full|grad-op|none") */
} option_kind;

/* Room for a value of any kind. */
typedef union option_value {
    int64_t whole;
    double number;
    const char *text;
    bool is_set;
    int choice;
} option_value;

/* What must hold if an option is given, or if it has the value `at`: alternatives between |, of
 * which one must hold, in groups between &, all of which must. In "a&b=c|!d" --a is given, and --b
 * is c or --d is not given; b!=c: --b is not c. */
typedef struct option_need {
    const char *rule;
    const char
        *says;      /* the rule in words, for the message; NULL: one group without ! says itself */
    const char *at; /* NULL: any value but the default */
} option_need;

enum { OPTION_MOST_NEEDS = 2 };

typedef struct option_spec {
    const char *name;
    option_kind kind;
    size_t offset;   /* of the field in the caller's struct */
    const char *def; /* default, as text; NULL: `unset`, even if out of range */
    double unset;    /* OPT_DOUBLE; for other kinds it is 0 */
    option_need needs[OPTION_MOST_NEEDS];
    const char *implies; /* an OPT_BOOL that is set too if this option is given */
    const char *fact;    /* by which a checkpoint remembers the option; NULL: it does not */
    const char *bare;    /* value of --name without a value; NULL: a value is required */
    double min, max;     /* OPT_INT, OPT_DOUBLE: inclusive range; min == max: no range check */
    const char *choices; /* OPT_ENUM */
    const char *arg;     /* name of the value in --help */
    const char *group;   /* heading in --help; NULL: same as the row above */
    const char *help;    /* never NULL */
} option_spec;

/* TEXT -- a number that is a macro, as text: for a default in `def` or `help`. */
#define TEXT_OF(number) #number
#define TEXT(number)    TEXT_OF(number)

/* options_parse -- fill `out` (the caller's struct, all zero) with defaults, then with argv[1..].
 *   errors  FSDP_EINVAL (*out is then partly written)
 *           FSDP_HELP at --help: the words after it were not read, and nothing was printed
 * Never exits or prints. Asserts that each default is valid for its row. */
fsdp_status options_parse(const option_spec *table, const char *program, int argc, char **argv,
                          void *out);

/* options_lack -- FSDP_EINVAL: `option` (as it was given) has no effect or no meaning without what
 * it needs. The hint is "pass NEEDS, or leave OPTION out". */
fsdp_status options_lack(const char *option, const char *needs);

/* options_arg -- the name of the row's value in --help; "" for OPT_BOOL. */
const char *options_arg(const option_spec *row);

/* options_says -- write `need` in words into buf, as errors have it: "--a PATH, --b or --c 3". */
void options_says(const option_spec *table, const option_need *need, char *buf, size_t buf_bytes);

/* options_takes_next -- whether the option `word` takes its value from the next word. Programs use
 * it to find where their own options end. */
bool options_takes_next(const option_spec *table, const char *word);

/* options_number -- *value = the number that is all of text; false: it is not finite, not from min
 * to max, or nearer to 0 than 1e-30 but not 0 (min == max: any finite number). */
bool options_number(const char *text, double min, double max, double *value);

/* options_value -- convert text by the row and write the field in `out`; for values from elsewhere.
 *   errors  FSDP_EINVAL that names the row */
fsdp_status options_value(const option_spec *row, const char *hint, const char *text, void *out);

/* options_nearest -- the first row whose name begins with name, else the row with the closest name;
 * NULL if more than half of the letters differ. */
const option_spec *options_nearest(const option_spec *table, const char *name, size_t name_bytes);

/* options_choice -- the index of text in choices, "a|b|c" or "a,b,c"; -1: not found. */
int options_choice(const char *choices, const char *text);

/* options_word -- the choice number `value` of the OPT_ENUM row of that name. */
fsdp_text options_word(const option_spec *table, const char *name, int value);

/* options_print_help -- print usage, doc and every row of the table to stdout.
 *   usage   the program and its arguments: "fsdp_train [OPTION...]"
 *   errors  FSDP_EIO: stdout cannot be written */
fsdp_status options_print_help(const option_spec *table, const char *usage, const char *doc);

/* options_canonical -- write all fields in table order as one line "name=value name=value ...", to
 * compare ranks. A double is the shortest decimal that reads back the same; control characters
 * become '?'. The line is cut at buf_bytes, which must not be 0.
 *   errors  FSDP_ENOMEM */
fsdp_status options_canonical(const option_spec *table, const void *opts, char *buf,
                              size_t buf_bytes);
