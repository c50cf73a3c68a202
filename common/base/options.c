/* options.c -- parsing, checking and printing options, all from the caller's table.
 *
 *   options_parse:  defaults -> each word of argv: find the row, find the value, convert, store
 *   --help:         the same rows, laid out under their groups
 *
 * Parsed here, not by getopt_long or argp: only long options exist and a word that is no option is
 * an error, so little is left for them to do, while they keep the state of a parse in globals, tell
 * unknown, ambiguous, missing and superfluous apart only in text that they print themselves, and
 * argp_help sorts the rows, which here stand in the order a reader should meet them.
 * Nothing is allocated; strings in the caller's struct point into argv or the table.             */
#include "common/base/options_impl.h"

#include <errno.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum {
    NEAREST_MAX_BYTES = 64 /* longer names get no suggestion */
};

/* What the functions below share during one call. */
typedef struct parser {
    const option_spec *table;
    const char *program;
    void *out; /* the caller's struct */
} parser;

/* ---- error texts ----------------------------------------------------------------------------- */

typedef struct quoted {
    char text[80];
} quoted;

/* quote -- at most 60 bytes of what the user wrote, fit for a terminal: control characters shown as
 * '?', a cut marked by "...", no UTF-8 sequence cut in two.                                      */
static quoted quote(const char *text, size_t text_bytes)
{
    quoted q = {.text = ""};
    size_t take = text_bytes <= 60 ? text_bytes : 60;
    while (take < text_bytes && take > 0 && ((unsigned char)text[take] & 0xc0) == 0x80)
        take--;
    for (size_t i = 0; i < take; i++) {
        unsigned char c = (unsigned char)text[i];
        q.text[i] = c < 0x20 || c == 0x7f ? '?' : text[i];
    }
    if (take < text_bytes)
        strcpy(q.text + take, "...");
    return q;
}

static fsdp_status bad_value(const parser *p, const option_spec *spec, const char *got)
{
    char range[96], expected[384], hint[384];
    options_range_text(spec, "from ", range, sizeof range);
    if (spec->kind == OPT_INT)
        snprintf(expected, sizeof expected, "a whole number%s", range);
    else if (spec->kind == OPT_DOUBLE)
        snprintf(expected, sizeof expected, "a finite number%s", range);
    else if (spec->kind == OPT_ENUM)
        snprintf(expected, sizeof expected, "one of %s", spec->choices);
    else
        snprintf(expected, sizeof expected, "a value");
    if (spec->def != NULL)
        snprintf(hint, sizeof hint, "the default is --%s=%s", spec->name, spec->def);
    else
        snprintf(hint, sizeof hint, "%s --help describes --%s", p->program, spec->name);
    return fsdp_error(FSDP_EINVAL, hint, "--%s: got '%s', expected %s", spec->name,
                      quote(got, strlen(got)).text, expected);
}

/* edit_distance -- insertions, deletions and replacements between name[0..name_bytes) and known. */
static size_t edit_distance(const char *name, size_t name_bytes, const char *known)
{
    size_t
        row[NEAREST_MAX_BYTES + 1]; /* row[j]: from the first i of name to the first j of known */
    size_t known_bytes = strlen(known);
    for (size_t j = 0; j <= known_bytes; j++)
        row[j] = j;
    for (size_t i = 1; i <= name_bytes; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= known_bytes; j++) {
            size_t best = diagonal + (name[i - 1] != known[j - 1]);
            if (row[j] + 1 < best)
                best = row[j] + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            diagonal = row[j];
            row[j] = best;
        }
    }
    return row[known_bytes];
}

/* nearest_row -- the row whose name is closest, NULL when not even half of the letters agree. */
static const option_spec *nearest_row(const option_spec *table, const char *name, size_t name_bytes)
{
    const option_spec *nearest = NULL;
    size_t least = name_bytes / 2 + 1;
    for (const option_spec *row = options_first_row(table); row != NULL;
         row = options_row_after(row)) {
        if (row->kind == OPT_REFUSED || strlen(row->name) > NEAREST_MAX_BYTES)
            continue;
        size_t distance = edit_distance(name, name_bytes, row->name);
        if (distance < least) {
            least = distance;
            nearest = row;
        }
    }
    return nearest;
}

static fsdp_status unknown_option(const parser *p, const char *name, size_t name_bytes)
{
    char hint[256];
    const option_spec *nearest = nearest_row(p->table, name, name_bytes);
    if (nearest != NULL)
        snprintf(hint, sizeof hint, "did you mean --%s? %s --help lists all options", nearest->name,
                 p->program);
    else
        snprintf(hint, sizeof hint, "%s --help lists all options", p->program);
    return fsdp_error(FSDP_EINVAL, hint, "unknown option --%s", quote(name, name_bytes).text);
}

/* ---- finding the row ------------------------------------------------------------------------- */

/* begins_with -- name[0..name_bytes) is the beginning of known; '_' in name stands for '-'. */
static bool begins_with(const char *known, const char *name, size_t name_bytes)
{
    for (size_t i = 0; i < name_bytes; i++)
        if (known[i] == '\0' || known[i] != (name[i] == '_' ? '-' : name[i]))
            return false;
    return true;
}

static fsdp_status ambiguous_option(const parser *p, const char *name, size_t name_bytes)
{
    char candidates[384] = "";
    size_t used = 0;
    for (const option_spec *row = options_first_row(p->table); row != NULL;
         row = options_row_after(row))
        if (begins_with(row->name, name, name_bytes) && used < sizeof candidates)
            used +=
                (size_t)snprintf(candidates + used, sizeof candidates - used, " --%s", row->name);
    return fsdp_error(FSDP_EINVAL, "write the option's full name", "--%s is short for any of%s",
                      quote(name, name_bytes).text, candidates);
}

/* find_row -- the row of that name, or the only row whose name begins so. */
static fsdp_status find_row(const parser *p, const char *name, size_t name_bytes,
                            const option_spec **found)
{
    int n_found = 0;
    for (const option_spec *row = options_first_row(p->table); row != NULL;
         row = options_row_after(row)) {
        if (!begins_with(row->name, name, name_bytes))
            continue;
        *found = row;
        n_found++;
        if (row->name[name_bytes] == '\0')
            return FSDP_OK;
    }
    if (n_found == 0 || name_bytes == 0)
        return unknown_option(p, name, name_bytes);
    if (n_found > 1)
        return ambiguous_option(p, name, name_bytes);
    return FSDP_OK;
}

/* ---- values ---------------------------------------------------------------------------------- */

static bool in_range(const option_spec *spec, double value)
{
    return spec->min == spec->max || (value >= spec->min && value <= spec->max);
}

static bool parse_int(const option_spec *spec, const char *text, int64_t *value)
{
    const char *digits = text + (*text == '-' || *text == '+');
    if (*digits == '\0' || digits[strspn(digits, "0123456789")] != '\0')
        return false;
    errno = 0;
    *value = strtoll(text, NULL, 10);
    return errno == 0 && in_range(spec, (double)*value);
}

static bool parse_double(const option_spec *spec, const char *text, double *value)
{
    char *end;
    if (text[strspn(text, "+-.0123456789eE")] != '\0') /* no blanks, hexadecimals, "inf", "nan" */
        return false;
    *value = strtod(text, &end);
    return *end == '\0' && isfinite(*value) && in_range(spec, *value);
}

/* choice_index -- where text stands in "a|b|c", -1 when nowhere. */
static int choice_index(const char *choices, const char *text)
{
    size_t text_bytes = strlen(text);
    for (int index = 0;; index++) {
        size_t choice_bytes = strcspn(choices, "|");
        if (choice_bytes == text_bytes && memcmp(choices, text, text_bytes) == 0)
            return index;
        if (choices[choice_bytes] == '\0')
            return -1;
        choices += choice_bytes + 1;
    }
}

/* store -- convert text and write the row's field; false when text is no value of that kind. */
static bool store(const option_spec *spec, const char *text, void *out)
{
    void *field = (char *)out + spec->offset;
    if (text[0] == '\0')
        return false;
    switch (spec->kind) {
    case OPT_INT:
        return parse_int(spec, text, field);
    case OPT_DOUBLE:
        return parse_double(spec, text, field);
    case OPT_STRING:
        *(const char **)field = text;
        return true;
    case OPT_BOOL: /* defaults only: on the command line the name alone says it */
        *(bool *)field = strcmp(text, "1") == 0 || strcmp(text, "true") == 0;
        return *(bool *)field || strcmp(text, "0") == 0 || strcmp(text, "false") == 0;
    case OPT_ENUM:
        *(int *)field = choice_index(spec->choices, text);
        return *(int *)field >= 0;
    case OPT_END:
    case OPT_REFUSED:
        break;
    }
    return false;
}

static void store_zero(const option_spec *spec, void *out)
{
    static const size_t FIELD_BYTES[] = {
        [OPT_INT] = sizeof(int64_t), [OPT_DOUBLE] = sizeof(double), [OPT_STRING] = sizeof(char *),
        [OPT_BOOL] = sizeof(bool),   [OPT_ENUM] = sizeof(int),      [OPT_REFUSED] = 0};
    memset((char *)out + spec->offset, 0,
           FIELD_BYTES[spec->kind]); /* all zero bits: 0, NULL, false */
}

static void store_defaults(const option_spec *table, void *out)
{
    for (const option_spec *row = table; row->kind != OPT_END; row++) {
        store_zero(row, out);
        if (row->kind != OPT_REFUSED && row->def != NULL)
            FSDP_ASSERT(store(row, row->def, out)); /* the table's own default must be valid */
    }
}

/* ---- public ---------------------------------------------------------------------------------- */

/* parse_option -- one option word, and the next word (NULL at the end) if it is the value. *used:
 * how many of the two were taken. *help: the option was --help.                                  */
static fsdp_status parse_option(const parser *p, const char *word, const char *next, int *used,
                                bool *help)
{
    const option_spec *spec = NULL;
    const char *name = word + 2, *value = strchr(name, '=');
    size_t name_bytes = value != NULL ? (size_t)(value - name) : strlen(name);
    TRY(find_row(p, name, name_bytes, &spec));
    *used = 1;
    *help = spec == &OPTIONS_HELP;
    if (spec->kind == OPT_REFUSED)
        return fsdp_error(FSDP_EINVAL, spec->help != NULL ? spec->help : "",
                          "--%s is not available", spec->name);
    if (spec->kind == OPT_BOOL) {
        if (value != NULL)
            return fsdp_error(FSDP_EINVAL, "write the option alone, or leave it out",
                              "--%s: got '%s', expected no value", spec->name,
                              quote(value + 1, strlen(value + 1)).text);
        if (!*help)
            *(bool *)((char *)p->out + spec->offset) = true;
        return FSDP_OK;
    }
    if (value != NULL) {
        value++;
    } else {
        if (next == NULL ||
            strncmp(next, "--", 2) == 0) /* a forgotten value, not one named "--x" */
            return fsdp_error(FSDP_EINVAL, "write --name=value, all in one word",
                              "--%s: no value given", spec->name);
        value = next;
        *used = 2;
    }
    return store(spec, value, p->out) ? FSDP_OK : bad_value(p, spec, value);
}

fsdp_status options_parse(const option_spec *table, const char *program, const char *doc, int argc,
                          char **argv, void *out)
{
    const parser p = {.table = table, .program = program, .out = out};
    store_defaults(table, out);
    for (int i = 1, used; i < argc; i += used) {
        bool help = false;
        if (strncmp(argv[i], "--", 2) != 0)
            return fsdp_error(FSDP_EINVAL, "options are written --name=value or --name value",
                              "got '%s', expected an option", quote(argv[i], strlen(argv[i])).text);
        TRY(parse_option(&p, argv[i], i + 1 < argc ? argv[i + 1] : NULL, &used, &help));
        if (help)
            return options_print_help(table, program, doc);
    }
    return FSDP_OK;
}
