/* options.c -- parse, check and print options by the caller's table.
 *
 *   options_parse        defaults -> each word of argv: find the row and the value, convert, store
 *   options_print_help   the same rows, laid out under their groups
 *
 * getopt_long and argp are not used. All options are long and every word must be an option, so they
 * would do little. getopt_long keeps the state of a parse in globals, and both report unknown
 * options and missing or superfluous values only in messages that they print themselves. argp_help
 * sorts the rows, but the rows should appear in the order of the table. Nothing is allocated:
 * strings in the caller's struct point into argv or the table. */
#include "common/base/options.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    NEAREST_MAX_BYTES = 64, /* longer names get no suggestion */
    HELP_COLUMN = 30,       /* where the descriptions of --help begin */
    HELP_WIDTH = 79,        /* where their lines end */
    MOST_RULE_BYTES = 160   /* of option_need */
};

/* Many numbers become fp32. A smaller one would be 0 there, which often means "none". */
static const double LEAST_NUMBER = 1e-30;

/* The arguments of one options_parse. */
typedef struct parser {
    const option_spec *table;
    const char *program;
    void *out; /* the caller's struct */
} parser;

/* ---- error texts ----------------------------------------------------------------------------- */

typedef struct quoted {
    char text[80];
} quoted;

/* quote -- at most 60 bytes of what the user wrote, with "..." if it is cut. */
static quoted quote(const char *text, size_t text_bytes)
{
    quoted q;
    const bool is_cut = text_bytes > 60;
    snprintf(q.text, sizeof q.text, "%.*s%s", is_cut ? 60 : (int)text_bytes, text,
             is_cut ? "..." : "");
    return q;
}

/* range_text -- " from 0 to 10"; " of at least 1" if the upper limit is huge; "" if the row has no
 * range. */
static void range_text(const option_spec *spec, char *buf, size_t buf_bytes)
{
    if (spec->min == spec->max)
        snprintf(buf, buf_bytes, "%s", "");
    else if (spec->max >= 1e18)
        snprintf(buf, buf_bytes, " of at least %.12g", spec->min);
    else
        snprintf(buf, buf_bytes, " from %.12g to %.12g", spec->min, spec->max);
}

/* is_tiny -- whether the text is a number nearer to 0 than LEAST_NUMBER, but not 0. */
static bool is_tiny(const char *text)
{
    errno = 0;
    const double value = fabs(strtod(text, NULL));
    return value < LEAST_NUMBER && (value > 0 || errno == ERANGE);
}

/* bad_value -- called: "--steps"; more: the rest of the hint. */
static fsdp_status bad_value(const option_spec *spec, const char *called, const char *hint,
                             const char *got)
{
    static const char *const WHAT[] = {[OPT_INT] = "a whole number",
                                       [OPT_DOUBLE] = "a finite number",
                                       [OPT_STRING] = "a value",
                                       [OPT_ENUM] = "one of "};
    char range[96];
    range_text(spec, range, sizeof range);
    return fsdp_error(
        FSDP_EINVAL, hint, "%s: got '%s', expected %s%s%s", called, quote(got, strlen(got)).text,
        WHAT[spec->kind], spec->kind == OPT_ENUM ? spec->choices : range,
        spec->kind == OPT_DOUBLE && is_tiny(got) ? ", either 0 or at least 1e-30" : "");
}

/* edit_distance -- the least number of insertions, deletions and replacements that turn
 * name[0..name_bytes) into known. */
static size_t edit_distance(const char *name, size_t name_bytes, const char *known)
{
    /* row[j]: from the first i bytes of name to the first j of known */
    size_t row[NEAREST_MAX_BYTES + 1];
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

const option_spec *options_nearest(const option_spec *table, const char *name, size_t name_bytes)
{
    const option_spec *nearest = NULL;
    size_t least = name_bytes > 0 ? name_bytes / 2 + 1 : 0;
    for (const option_spec *row = table; row->kind != OPT_END; row++) {
        if (strlen(row->name) > NEAREST_MAX_BYTES)
            continue;
        bool begins = strncmp(row->name, name, name_bytes) == 0;
        size_t distance = begins ? 0 : edit_distance(name, name_bytes, row->name);
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
    const option_spec *nearest = options_nearest(p->table, name, name_bytes);
    if (nearest != NULL)
        snprintf(hint, sizeof hint, "did you mean --%s? %s --help lists all options", nearest->name,
                 p->program);
    else
        snprintf(hint, sizeof hint, "%s --help lists all options", p->program);
    return fsdp_error(FSDP_EINVAL, hint, "unknown option --%s", quote(name, name_bytes).text);
}

/* ---- finding the row ------------------------------------------------------------------------- */

/* same_name -- whether name[0..name_bytes) equals known, where '_' in name means '-'. */
static bool same_name(const char *known, const char *name, size_t name_bytes)
{
    for (size_t i = 0; i < name_bytes; i++)
        if (known[i] != (name[i] == '_' ? '-' : name[i]))
            return false;
    return known[name_bytes] == '\0';
}

/* find_row -- the row of that name, or NULL. */
static const option_spec *find_row(const option_spec *table, const char *name, size_t name_bytes)
{
    for (const option_spec *row = table; row->kind != OPT_END; row++)
        if (same_name(row->name, name, name_bytes))
            return row;
    return NULL;
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

bool options_number(const char *text, double min, double max, double *value)
{
    char *end;
    if (text[strspn(text, "+-.0123456789eE")] != '\0') /* no blanks, hexadecimals, "inf", "nan" */
        return false;
    *value = strtod(text, &end) + 0.0; /* -0 becomes 0 */
    return end != text && *end == '\0' && isfinite(*value) &&
           (min == max || (*value >= min && *value <= max && !is_tiny(text)));
}

int options_choice(const char *choices, const char *text)
{
    size_t text_bytes = strlen(text);
    for (int index = 0;; index++) {
        size_t choice_bytes = strcspn(choices, "|,");
        if (choice_bytes == text_bytes && memcmp(choices, text, text_bytes) == 0)
            return index;
        if (choices[choice_bytes] == '\0')
            return -1;
        choices += choice_bytes + 1;
    }
}

/* store -- convert text and write the row's field; false if text is not a value of that kind. */
static bool store(const option_spec *spec, const char *text, void *out)
{
    void *field = (char *)out + spec->offset;
    if (text[0] == '\0')
        return false;
    switch (spec->kind) {
    case OPT_INT:
        return parse_int(spec, text, field);
    case OPT_DOUBLE:
        return options_number(text, spec->min, spec->max, field);
    case OPT_STRING:
        *(const char **)field = text;
        return true;
    case OPT_ENUM:
        *(int *)field = options_choice(spec->choices, text);
        return *(int *)field >= 0;
    case OPT_BOOL:
    case OPT_END:
        break; /* these kinds take no value */
    }
    return false;
}

/* ---- parsing --------------------------------------------------------------------------------- */

/* parse_option -- parse one option word, and the next word (NULL at the end) if that is its value.
 * *used = how many of the two words were used. */
static fsdp_status parse_option(const parser *p, const char *word, const char *next, int *used)
{
    const char *name = word + 2, *equals = strchr(name, '=');
    const char *value = equals != NULL ? equals + 1 : NULL;
    size_t name_bytes = equals != NULL ? (size_t)(equals - name) : strlen(name);
    if (same_name("help", name, name_bytes))
        return FSDP_HELP;
    const option_spec *spec = find_row(p->table, name, name_bytes);
    if (spec == NULL)
        return unknown_option(p, name, name_bytes);
    *used = 1;
    /* If the next word begins with --, it is an option, and not a value. */
    const bool has_next = next != NULL && strncmp(next, "--", 2) != 0;
    if (spec->kind == OPT_BOOL) {
        value = value == NULL && has_next ? next : value;
        if (value != NULL)
            return fsdp_error(FSDP_EINVAL, "write the option alone, or leave it out",
                              "--%s: got '%s', expected no value", spec->name,
                              quote(value, strlen(value)).text);
        *(bool *)((char *)p->out + spec->offset) = true;
        return FSDP_OK;
    }
    if (value == NULL && !has_next)
        value = spec->bare;
    if (value == NULL) {
        if (!has_next)
            return fsdp_error(FSDP_EINVAL, "write --name=value, all in one word",
                              "--%s: no value given", spec->name);
        value = next;
        *used = 2;
    }
    char called[NEAREST_MAX_BYTES + 3], choices[256] = "", hint[384];
    snprintf(called, sizeof called, "--%s", spec->name);
    if (spec->kind == OPT_ENUM)
        snprintf(choices, sizeof choices, "pass one of %s; ", spec->choices);
    if (spec->def != NULL)
        snprintf(hint, sizeof hint, "%sthe default is --%s=%s", choices, spec->name, spec->def);
    else
        snprintf(hint, sizeof hint, "%s%s --help describes --%s", choices, p->program, spec->name);
    return store(spec, value, p->out) ? FSDP_OK : bad_value(spec, called, hint, value);
}

fsdp_status options_value(const option_spec *row, const char *hint, const char *text, void *out)
{
    return store(row, text, out) ? FSDP_OK : bad_value(row, row->name, hint, text);
}

bool options_takes_next(const option_spec *table, const char *word)
{
    const option_spec *spec = strncmp(word, "--", 2) == 0 && strchr(word, '=') == NULL
                                  ? find_row(table, word + 2, strlen(word + 2))
                                  : NULL;
    return spec != NULL && spec->kind != OPT_BOOL && spec->bare == NULL;
}

/* ---- options that need others ---------------------------------------------------------------- */

const char *options_arg(const option_spec *spec)
{
    static const char *const ARG[] = {
        [OPT_INT] = "N", [OPT_DOUBLE] = "X", [OPT_STRING] = "TEXT", [OPT_BOOL] = ""};
    return spec->arg != NULL ? spec->arg : spec->kind == OPT_ENUM ? spec->choices : ARG[spec->kind];
}

/* has_value -- whether the option's field in `opts` has the value `text`; NULL: as without it. */
static bool has_value(const option_spec *spec, const char *text, const void *opts)
{
    const size_t bytes = spec->kind == OPT_BOOL   ? sizeof(bool)
                         : spec->kind == OPT_ENUM ? sizeof(int)
                                                  : sizeof(int64_t);
    const void *field = (const char *)opts + spec->offset;
    const char *word = spec->kind == OPT_STRING ? *(const char *const *)field : NULL;
    option_spec at_0 = *spec;
    option_value value = {.number = spec->unset}; /* if that is 0, all kinds are */
    at_0.offset = 0;
    if (word != NULL && text != NULL)
        return strcmp(word, text) == 0;
    if (text != NULL)
        store(&at_0, text, &value);
    return memcmp(field, &value, bytes) == 0;
}

/* is_given -- whether the option's value is not the default. */
static bool is_given(const option_spec *spec, const void *opts)
{
    return !has_value(spec, spec->def, opts);
}

/* holds -- whether the word "a", "!a", "a=c" or "a!=c" of a rule is true. */
static bool holds(const parser *p, const char *word, size_t word_bytes)
{
    char text[MOST_RULE_BYTES];
    snprintf(text, sizeof text, "%.*s", (int)word_bytes, word);
    const bool is_absent = text[0] == '!';
    const char *name = text + is_absent, *end = name + strcspn(name, "!=");
    const option_spec *row = find_row(p->table, name, (size_t)(end - name));
    FSDP_ASSERT(row != NULL);
    if (*end == '\0')
        return is_given(row, p->out) != is_absent;
    return has_value(row, end + 1 + (*end == '!'), p->out) == (*end == '=');
}

/* is_met -- whether a rule holds; see option_need. */
static bool is_met(const parser *p, const char *rule)
{
    bool all = true, any = false; /* of the groups; of the words of this group */
    for (size_t n; *rule != '\0'; rule += n + (rule[n] != '\0')) {
        n = strcspn(rule, "|&");
        any = any || holds(p, rule, n);
        all = all && (any || rule[n] == '|');
        any = any && rule[n] == '|';
    }
    return all;
}

void options_says(const option_spec *table, const option_need *need, char *buf, size_t buf_bytes)
{
    char list[MOST_RULE_BYTES], *rest = list;
    const option_spec *last = NULL;
    snprintf(buf, buf_bytes, "%s", need->says != NULL ? need->says : "");
    snprintf(list, sizeof list, "%s", need->rule);
    for (const char *word; need->says == NULL && (word = strsep(&rest, "|")) != NULL;) {
        const option_spec *other = find_row(table, word, strcspn(word, "="));
        FSDP_ASSERT(other != NULL);
        const char *value = strchr(word, '='),
                   *arg = value != NULL ? value + 1 : options_arg(other);
        const size_t n = strlen(buf);
        const bool named = other != last;
        snprintf(buf + n, buf_bytes - n, "%s%s%s%s%s",
                 n == 0         ? ""
                 : rest != NULL ? ", "
                                : " or ",
                 named ? "--" : "", named ? other->name : "", named && *arg ? " " : "", arg);
        last = other;
    }
}

fsdp_status options_lack(const char *option, const char *needs)
{
    char hint[320];
    snprintf(hint, sizeof hint, "pass %s, or leave %s out", needs, option);
    return fsdp_error(FSDP_EINVAL, hint, "%s: expected %s beside it, got other options", option,
                      needs);
}

/* check_needs -- check what the option of `row` needs, if it is given. */
static fsdp_status check_needs(const parser *p, const option_spec *row)
{
    for (int i = 0; i < OPTION_MOST_NEEDS && row->needs[i].rule != NULL; i++) {
        const option_need *need = &row->needs[i];
        char option[2 * NEAREST_MAX_BYTES], needs[160];
        if (need->at != NULL ? !has_value(row, need->at, p->out) : !is_given(row, p->out))
            continue;
        snprintf(option, sizeof option, "--%s%s%s", row->name, need->at != NULL ? " " : "",
                 need->at != NULL ? need->at : "");
        options_says(p->table, need, needs, sizeof needs);
        if (!is_met(p, need->rule))
            return options_lack(option, needs);
    }
    return FSDP_OK;
}

fsdp_status options_parse(const option_spec *table, const char *program, int argc, char **argv,
                          void *out)
{
    const parser p = {.table = table, .program = program, .out = out};
    for (const option_spec *row = table; row->kind != OPT_END; row++)
        if (row->def != NULL)
            FSDP_ASSERT(store(row, row->def, out)); /* the table's own default must be valid */
        else if (row->kind == OPT_DOUBLE)
            *(double *)((char *)out + row->offset) = row->unset;
    for (int i = 1, used = 0; i < argc; i += used) {
        if (strncmp(argv[i], "--", 2) != 0)
            return fsdp_error(FSDP_EINVAL, "options are written --name=value or --name value",
                              "got '%s', expected an option", quote(argv[i], strlen(argv[i])).text);
        TRY(parse_option(&p, argv[i], i + 1 < argc ? argv[i + 1] : NULL, &used));
    }
    for (const option_spec *row = table; row->kind != OPT_END; row++)
        if (row->implies != NULL && is_given(row, out)) {
            const option_spec *flag = find_row(table, row->implies, strlen(row->implies));
            *(bool *)((char *)out + flag->offset) = true;
        }
    for (const option_spec *row = table; row->kind != OPT_END; row++)
        TRY(check_needs(&p, row));
    return FSDP_OK;
}

/* ---- --help ---------------------------------------------------------------------------------- */

/* print_words -- words of text from `column` on, wrapped into lines that begin at `indent`. Returns
 * the column after the last word. */
static int print_words(int column, int indent, const char *text)
{
    while (*(text += strspn(text, " \n")) != '\0') {
        int word_bytes = (int)strcspn(text, " \n");
        if (column > indent && column + 1 + word_bytes > HELP_WIDTH) {
            printf("\n");
            column = 0;
        }
        if (column < indent)
            column += printf("%*s", indent - column, "");
        else if (column > indent)
            column += printf(" ");
        column += printf("%.*s", word_bytes, text);
        text += word_bytes;
    }
    return column;
}

static void print_row(const option_spec *spec)
{
    int column = printf("  --%s", spec->name);
    if (spec->kind != OPT_BOOL)
        column += printf(spec->bare != NULL ? "[=%s]" : "=%s", options_arg(spec));
    if (column >= HELP_COLUMN) { /* no room beside a long name */
        printf("\n");
        column = 0;
    }
    column = print_words(column, HELP_COLUMN, spec->help);

    char range[96], notes[256] = "";
    range_text(spec, range, sizeof range);
    if (spec->def != NULL)
        snprintf(notes, sizeof notes, "(default %s%s%s)", spec->def, range[0] ? ";" : "", range);
    else if (range[0] != '\0')
        snprintf(notes, sizeof notes, "(%s)", range + 1);
    print_words(column, HELP_COLUMN, notes);
    printf("\n");
}

fsdp_status options_print_help(const option_spec *table, const char *usage, const char *doc)
{
    printf("Usage: %s\n", usage);
    print_words(0, 0, fsdp_commands(doc).text);
    printf("\n\n");
    for (const option_spec *row = table; row->kind != OPT_END; row++) {
        if (row->group != NULL)
            printf("%s%s:\n", row == table ? "" : "\n", row->group);
        print_row(row);
    }
    printf("\n  %-*sprint this list\n", HELP_COLUMN - 2, "--help");
    return fsdp_flush_stdout("");
}

/* ---- canonical text -------------------------------------------------------------------------- */

/* put_double -- the shortest decimal that reads back as the same double. */
static void put_double(FILE *out, double value)
{
    char text[32];
    int digits = 15;
    do
        snprintf(text, sizeof text, "%.*g", digits, value);
    while (strtod(text, NULL) != value && digits++ < 17);
    fputs(text, out);
}

/* choice_at -- choice number `index` of the row. */
static fsdp_text choice_at(const option_spec *row, int index)
{
    fsdp_text word;
    const char *text = row->choices;
    for (; index > 0; index--, text++) {
        text = strchr(text, '|');
        FSDP_ASSERT(text != NULL); /* the row must have as many */
    }
    snprintf(word.text, sizeof word.text, "%.*s", (int)strcspn(text, "|"), text);
    return word;
}

fsdp_text options_word(const option_spec *table, const char *name, int value)
{
    return choice_at(find_row(table, name, strlen(name)), value);
}

/* put_value -- the field as it could be written on the command line. */
static void put_value(FILE *out, const option_spec *spec, const void *field)
{
    if (spec->kind == OPT_INT) {
        fprintf(out, "%lld", (long long)*(const int64_t *)field);
    } else if (spec->kind == OPT_DOUBLE) {
        put_double(out, *(const double *)field);
    } else if (spec->kind == OPT_BOOL) {
        fprintf(out, "%d", *(const bool *)field);
    } else if (spec->kind == OPT_ENUM) {
        fputs(choice_at(spec, *(const int *)field).text, out);
    } else {
        const char *text = *(const char *const *)field;
        fputs(text != NULL ? text : "", out);
    }
}

fsdp_status options_canonical(const option_spec *table, const void *opts, char *buf,
                              size_t buf_bytes)
{
    FILE *out = fmemopen(buf, buf_bytes, "w");
    if (out == NULL)
        return fsdp_error(FSDP_ENOMEM, "", "no host memory to compare options");
    for (const option_spec *row = table; row->kind != OPT_END; row++) {
        fprintf(out, "%s%s=", row == table ? "" : " ", row->name);
        put_value(out, row, (const char *)opts + row->offset);
    }
    fclose(out);
    buf[buf_bytes - 1] = '\0';
    for (char *c = buf; *c != '\0'; c++)
        *c = (unsigned char)*c < 0x20 ? '?' : *c;
    return FSDP_OK;
}
