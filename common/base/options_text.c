/* options_text.c -- what an options table prints: --help, ranges, the canonical line. */
#include "common/base/options_impl.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum {
    HELP_COLUMN = 30, /* where descriptions begin */
    HELP_WIDTH = 79   /* where their lines end */
};

const option_spec OPTIONS_HELP = {.name = "help", .kind = OPT_BOOL, .help = "print this list"};

/* ---- rows: the table's, then HELP ------------------------------------------------------------ */

const option_spec *options_first_row(const option_spec *table)
{
    return table[0].kind == OPT_END ? &OPTIONS_HELP : table;
}

const option_spec *options_row_after(const option_spec *row)
{
    if (row == &OPTIONS_HELP)
        return NULL;
    return row[1].kind == OPT_END ? &OPTIONS_HELP : row + 1;
}

void options_range_text(const option_spec *spec, const char *from, char *buf, size_t buf_bytes)
{
    const double unlimited = 1e18; /* limits beyond it are there for the type, not for the reader */
    if (spec->min == spec->max || (spec->min <= -unlimited && spec->max >= unlimited))
        snprintf(buf, buf_bytes, "%s", "");
    else if (spec->max >= unlimited)
        snprintf(buf, buf_bytes, " of at least %.12g", spec->min);
    else if (spec->min <= -unlimited)
        snprintf(buf, buf_bytes, " of at most %.12g", spec->max);
    else
        snprintf(buf, buf_bytes, " %s%.12g to %.12g", from, spec->min, spec->max);
}

/* ---- --help ---------------------------------------------------------------------------------- */

/* print_words -- words of text from `column` on, wrapped into lines that begin at `indent`. Returns
 * the column after the last word.                                                                */
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
    static const char *const ARG[] = {
        [OPT_INT] = "N", [OPT_DOUBLE] = "X", [OPT_STRING] = "TEXT", [OPT_BOOL] = ""};
    const char *arg = spec->arg;
    if (arg == NULL)
        arg = spec->kind == OPT_ENUM ? spec->choices : ARG[spec->kind];
    int column = printf("  --%s%s%s", spec->name, spec->kind == OPT_BOOL ? "" : "=",
                        spec->kind == OPT_BOOL ? "" : arg);
    if (column >= HELP_COLUMN) { /* no room beside a long name */
        printf("\n");
        column = 0;
    }
    column = print_words(column, HELP_COLUMN, spec->help != NULL ? spec->help : "");

    char range[96], notes[256] = "";
    options_range_text(spec, "", range, sizeof range);
    bool has_def = spec->def != NULL && spec->kind != OPT_BOOL;
    if (has_def || range[0] != '\0')
        snprintf(notes, sizeof notes, "(%s%s%s%s)", has_def ? "default " : "",
                 has_def ? spec->def : "", has_def && range[0] ? ";" : "",
                 range + (range[0] != '\0' && !has_def));
    print_words(column, HELP_COLUMN, notes);
    printf("\n");
}

fsdp_status options_print_help(const option_spec *table, const char *program, const char *doc)
{
    printf("Usage: %s [OPTION...]\n", program);
    print_words(0, 0, doc != NULL ? doc : "");
    printf("\n\n");
    for (const option_spec *row = options_first_row(table); row != NULL;
         row = options_row_after(row)) {
        if (row->group != NULL)
            printf("%s%s:\n", row == table ? "" : "\n", row->group);
        else if (row == &OPTIONS_HELP)
            printf("\n");
        if (row->kind == OPT_REFUSED)
            printf("  --%s\n", row->name);
        else
            print_row(row);
    }
    if (fflush(stdout) != 0 || ferror(stdout))
        return fsdp_error(FSDP_EIO, "", "--help: standard output cannot be written");
    return fsdp_error(FSDP_HELP, "", "--help was asked for");
}

/* double_text -- the shortest decimal that reads back as the same double. */
static void double_text(double value, char *buf, size_t buf_bytes)
{
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(buf, buf_bytes, "%.*g", digits, value);
        if (strtod(buf, NULL) == value)
            return;
    }
}

/* value_text -- the field as it could be written on the command line. Strings of any length are
 * returned in place, everything else in buf.                                                     */
static const char *value_text(const option_spec *spec, const void *opts, char *buf,
                              size_t buf_bytes, size_t *text_bytes)
{
    const void *field = (const char *)opts + spec->offset;
    const char *text = buf;
    if (spec->kind == OPT_INT) {
        snprintf(buf, buf_bytes, "%lld", (long long)*(const int64_t *)field);
    } else if (spec->kind == OPT_DOUBLE) {
        double_text(*(const double *)field, buf, buf_bytes);
    } else if (spec->kind == OPT_BOOL) {
        snprintf(buf, buf_bytes, "%d", *(const bool *)field);
    } else if (spec->kind == OPT_ENUM) {
        text = spec->choices;
        for (int i = *(const int *)field; i > 0; i--) {
            text += strcspn(text, "|");
            FSDP_ASSERT(*text == '|'); /* else the field is no index into choices */
            text++;
        }
        *text_bytes = strcspn(text, "|");
        return text;
    } else {
        text = *(const char *const *)field != NULL ? *(const char *const *)field : "";
    }
    *text_bytes = strlen(text);
    return text;
}

/* append -- text onto buf[*used], cut at buf_bytes; control characters as '?', to stay one line. */
static void append(char *buf, size_t buf_bytes, size_t *used, const char *text, size_t text_bytes)
{
    for (size_t i = 0; i < text_bytes && *used + 1 < buf_bytes; i++)
        buf[(*used)++] = (unsigned char)text[i] < 0x20 ? '?' : text[i];
}

void options_canonical(const option_spec *table, const void *opts, char *buf, size_t buf_bytes)
{
    size_t used = 0;
    for (const option_spec *row = table; row->kind != OPT_END; row++) {
        char number[32];
        size_t text_bytes;
        if (row->kind == OPT_REFUSED)
            continue;
        const char *text = value_text(row, opts, number, sizeof number, &text_bytes);
        append(buf, buf_bytes, &used, " ", used > 0);
        append(buf, buf_bytes, &used, row->name, strlen(row->name));
        append(buf, buf_bytes, &used, "=", 1);
        append(buf, buf_bytes, &used, text, text_bytes);
    }
    if (buf_bytes > 0)
        buf[used] = '\0';
}
