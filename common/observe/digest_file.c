/* digest_file.c -- see digest_file.h. Both files are read at once, line by line. */
#include "common/observe/digest_file.h"
#include <limits.h>
#include <stdlib.h>
#include <string.h>

static const char HINT[] = "pass files that --digests wrote, whole";

enum { HASH_DIGITS = 16 };
#define END_OF_ROWS LLONG_MAX

typedef enum column { STEP, MICRO, UNIT, KIND, NAME, HASH, ELEMENT, VALUE, N_COLUMNS } column;

/* A file, and the row that was read last. */
typedef struct reader {
    FILE *in;
    const char *name;
    char *line;
    size_t room, n_lines, n_rows;
    const char *field[N_COLUMNS];
    long long step;  /* END_OF_ROWS: all rows were read */
    int first_micro; /* the rows of earlier micro-steps are skipped */
} reader;

/* ---- reading --------------------------------------------------------------------------------- */

static fsdp_status damaged(const reader *f)
{
    return fsdp_error(FSDP_EINVAL, HINT, "%s is cut or damaged: line %zu", f->name, f->n_lines);
}

static fsdp_status read_line(reader *f)
{
    const ssize_t bytes = getline(&f->line, &f->room, f->in);
    f->n_lines++;
    if (bytes <= 0 || f->line[bytes - 1] != '\n')
        return damaged(f);
    f->line[bytes - 1] = '\0';
    return FSDP_OK;
}

/* Read a row, or the last line, which says how many rows there are. */
static fsdp_status next_row(reader *f)
{
    const long long before = f->step;
    char last[40], *end;
    TRY(read_line(f));
    snprintf(last, sizeof last, "# end: %zu rows", f->n_rows++);
    const bool is_last = strcmp(f->line, last) == 0;
    char *rest = is_last ? NULL : f->line;
    for (int i = 0; i < N_COLUMNS; i++)
        f->field[i] = rest ? strsep(&rest, ",") : "";
    f->step = is_last ? END_OF_ROWS : strtoll(f->field[STEP], &end, 10);
    if (is_last)
        return FSDP_OK;
    const bool has_hash = strlen(f->field[HASH]) == HASH_DIGITS &&
                          strspn(f->field[HASH], "0123456789abcdef") == HASH_DIGITS;
    return has_hash && !*end && f->step >= before ? FSDP_OK : damaged(f);
}

/* Read up to the next sum that is compared. */
static fsdp_status next_sum(reader *f)
{
    do {
        TRY(next_row(f));
    } while (*f->field[ELEMENT] || (*f->field[MICRO] && atoi(f->field[MICRO]) < f->first_micro));
    return FSDP_OK;
}

/* ---- comparing ------------------------------------------------------------------------------- */

/* What a fact tells in which the runs differ. */
static fsdp_status note_fact(reader f[2], char *const value[2], FILE *notes)
{
    const char *name = f[0].line + 2;
    if (strcmp(name, "model") == 0 || strcmp(name, "seq-len") == 0 ||
        strcmp(name, "global-batch") == 0)
        return fsdp_error(FSDP_EINVAL, "compare runs that differ in how they are sharded",
                          "%s differs: %s has%s, %s has%s", name, f[0].name, value[0], f[1].name,
                          value[1]);
    if (strcmp(name, "micro-batch") == 0) /* it begins with the number of micro-steps */
        for (int i = 0; i < 2; i++)
            f[i].first_micro = atoi(value[i]) - 1;
    if (notes)
        fprintf(notes, "note: %s differs:%s and%s\n", name, value[0], value[1]);
    return FSDP_OK;
}

/* Read the lines up to the columns. Of runs that may be compared all have the same names, up to the
 * first fact that only one of them has. */
static fsdp_status compare_facts(reader f[2], FILE *notes, digest_verdict *out)
{
    while (strcmp(f[0].line, DIGEST_COLUMNS) != 0 || strcmp(f[1].line, DIGEST_COLUMNS) != 0) {
        char *value[2];
        for (int i = 0; i < 2; i++) {
            if (strcmp(f[i].line, DIGEST_COLUMNS) != 0)
                TRY(read_line(&f[i]));
            if (strcmp(f[i].line, "# reduction: fast") == 0)
                out->fast = f[i].name;
            value[i] = f[i].line;
            strsep(&value[i], ":");
        }
        if (value[0] && value[1] && strcmp(f[0].line, f[1].line) == 0 &&
            strcmp(value[0], value[1]) != 0)
            TRY(note_fact(f, value, notes));
    }
    return FSDP_OK;
}

static bool same(const reader f[2], column c)
{
    return strcmp(f[0].field[c], f[1].field[c]) == 0;
}

static void describe(const reader f[2], digest_verdict *out)
{
    const char *const *a = f[0].field, *const *b = f[1].field;
    const char *odd = *a[VALUE] ? a[VALUE] : b[VALUE];
    char micro[48] = "", other[80] = "";
    if (*a[MICRO])
        snprintf(micro, sizeof micro, "micro-step %s, ", a[MICRO]);
    if (!same(f, UNIT))
        snprintf(other, sizeof other, " (%s in the other run)", b[UNIT]);
    snprintf(out->where, sizeof out->where, "step %s, %sunit %s%s: %s of %s%s%s", a[STEP], micro,
             a[UNIT], other, a[KIND], a[NAME], *odd ? ": " : "", odd);
    if (strchr(a[KIND], ' ')) /* the array of a parameter */
        snprintf(out->element, sizeof out->element,
                 "to see the element: both runs again with --digest-values %s:%s and %s:%s\n",
                 a[STEP], a[UNIT], b[STEP], b[UNIT]);
}

/* Rows of elements may follow: look for the first one that differs. */
static fsdp_status find_element(reader f[2], digest_verdict *out)
{
    do {
        TRY(next_row(&f[0]));
        TRY(next_row(&f[1]));
    } while (*f[0].field[ELEMENT] && same(f, HASH));
    if (*f[0].field[ELEMENT] && *f[1].field[ELEMENT])
        snprintf(out->element, sizeof out->element,
                 "first difference there: element %s: got %s, expected %s\n", f[0].field[ELEMENT],
                 f[0].field[VALUE], f[1].field[VALUE]);
    return FSDP_OK;
}

static fsdp_status compare_sums(reader f[2], digest_verdict *out)
{
    const bool same_micro = f[0].first_micro != f[1].first_micro || same(f, MICRO);
    if (f[0].step != f[1].step || !same_micro || !same(f, KIND) || !same(f, NAME))
        return fsdp_error(FSDP_EINVAL, "compare runs of one model, with the same of it frozen",
                          "step %lld: the files have rows of different arrays", out->last);
    out->n_sums++;
    if (same(f, HASH))
        return FSDP_OK;
    describe(f, out);
    return find_element(f, out);
}

/* Compare up to the first difference, and read on, so that both files are known to be whole. */
static fsdp_status compare_rows(reader f[2], digest_verdict *out)
{
    TRY(next_sum(&f[0]));
    TRY(next_sum(&f[1]));
    while (f[0].step != END_OF_ROWS || f[1].step != END_OF_ROWS) {
        const long long step = f[0].step < f[1].step ? f[0].step : f[1].step;
        if (!*out->where && (f[0].step == f[1].step || step == out->last)) {
            out->first = out->n_sums > 0 ? out->first : step;
            out->last = step;
            TRY(compare_sums(f, out));
        }
        for (int i = 0; i < 2; i++)
            if (f[i].step == step)
                TRY(next_sum(&f[i]));
    }
    return FSDP_OK;
}

static fsdp_status bisect(reader f[2], FILE *notes, digest_verdict *out)
{
    for (int i = 0; i < 2; i++) {
        TRY(read_line(&f[i]));
        if (strcmp(f[i].line, DIGEST_TITLE) != 0)
            return fsdp_error(FSDP_EINVAL, HINT, "%s: the first line is not '" DIGEST_TITLE "'",
                              f[i].name);
    }
    TRY(compare_facts(f, notes, out));
    TRY(compare_rows(f, out));
    return out->n_sums > 0 ? FSDP_OK
                           : fsdp_error(FSDP_EINVAL, "compare runs that make the same steps",
                                        "%s and %s have no step in common", f[0].name, f[1].name);
}

fsdp_status digest_bisect(FILE *const in[2], const char *const names[2], FILE *notes,
                          digest_verdict *out)
{
    reader f[2] = {{.in = in[0], .name = names[0]}, {.in = in[1], .name = names[1]}};
    *out = (digest_verdict){.last = -1};
    fsdp_status status = bisect(f, notes, out);
    free(f[0].line);
    free(f[1].line);
    return status;
}
