/* digest_file.c -- see digest_file.h. Both files are read at once, line by line. */
#include "common/observe/digest_file.h"
#include <errno.h>
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
    long long step; /* -1: no row was read yet; END_OF_ROWS: all were */
    size_t n_steps;
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
    if (ferror(f->in))
        return fsdp_error(FSDP_EIO, HINT, "cannot read %s: %s", f->name, strerror(errno));
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
    f->n_steps += f->step != before;
    if (*end || f->step < before || f->step < 0 || strlen(f->field[HASH]) != HASH_DIGITS ||
        strspn(f->field[HASH], "0123456789abcdef") != HASH_DIGITS)
        return damaged(f);
    return FSDP_OK;
}

/* Read up to the next sum. whole: the next that any split into micro-steps gives. */
static fsdp_status next_sum(reader *f, bool whole)
{
    bool skips = true;
    while (skips) {
        TRY(next_row(f));
        const bool is_step = !*f->field[MICRO];
        const bool is_first_copy =
            strcmp(f->field[MICRO], "0") == 0 && strstr(f->field[KIND], "copy");
        skips =
            f->step != END_OF_ROWS && (*f->field[ELEMENT] || (whole && !is_step && !is_first_copy));
    }
    return FSDP_OK;
}

/* ---- comparing ------------------------------------------------------------------------------- */

/* Read the lines up to the columns. Of runs that may be compared all have the same names, up to the
 * first fact that only one of them has. *whole: micro-steps hold other sequences. */
static fsdp_status compare_facts(reader f[2], FILE *notes, digest_verdict *out, bool *whole)
{
    bool more[2] = {true, true};
    *whole = false;
    while (more[0] || more[1]) {
        char *value[2];
        for (int i = 0; i < 2; i++) {
            if (more[i])
                TRY(read_line(&f[i]));
            if (f[i].n_lines == 1 && strcmp(f[i].line, DIGEST_TITLE) != 0)
                return fsdp_error(FSDP_EINVAL, HINT, "%s: the first line is not '" DIGEST_TITLE "'",
                                  f[i].name);
            more[i] = strcmp(f[i].line, DIGEST_COLUMNS) != 0;
            value[i] = f[i].line;
            strsep(&value[i], ":");
            if (value[i] && strcmp(f[i].line, "# reduction") == 0)
                out->canonical[i] = strcmp(value[i], " canonical") == 0;
        }
        const char *name = f[0].line;
        if (!value[0] || !value[1] || strcmp(name, f[1].line) != 0 ||
            strcmp(value[0], value[1]) == 0)
            continue;
        if (strcmp(name, "# model") == 0 || strcmp(name, "# seq-len") == 0 ||
            strcmp(name, "# global-batch") == 0)
            return fsdp_error(FSDP_EINVAL, "compare runs that differ in how they are sharded",
                              "%s differs: %s has%s, %s has%s", name + 2, f[0].name, value[0],
                              f[1].name, value[1]);
        *whole = *whole || strcmp(name, "# micro-batch") == 0;
        if (notes)
            fprintf(notes, "note: %s differs:%s and%s\n", name + 2, value[0], value[1]);
    }
    return FSDP_OK;
}

static void describe(const reader *a, const reader *b, digest_verdict *out)
{
    char micro[48] = "", other[80] = "", copy[80] = "";
    const char *odd = *a->field[VALUE] ? a->field[VALUE] : b->field[VALUE];
    if (*a->field[MICRO])
        snprintf(micro, sizeof micro, "micro-step %s, ", a->field[MICRO]);
    if (strcmp(a->field[UNIT], b->field[UNIT]) != 0)
        snprintf(other, sizeof other, " (%s in the other run)", b->field[UNIT]);
    if (*odd)
        snprintf(copy, sizeof copy, ": %s's differs from rank 0's", odd);
    snprintf(out->where, sizeof out->where, "step %lld, %sunit %s%s: %s of %s%s", a->step, micro,
             a->field[UNIT], other, a->field[KIND], a->field[NAME], copy);
    if (strstr(a->field[KIND], " ")) /* the array of a parameter */
        snprintf(out->element, sizeof out->element,
                 "to see the element: both runs again with --digest-values %lld:%s and %lld:%s\n",
                 a->step, a->field[UNIT], a->step, b->field[UNIT]);
}

/* Rows of elements may follow: look for the first one that differs. */
static fsdp_status find_element(reader f[2], digest_verdict *out)
{
    do {
        TRY(next_row(&f[0]));
        TRY(next_row(&f[1]));
    } while (*f[0].field[ELEMENT] && strcmp(f[0].field[HASH], f[1].field[HASH]) == 0);
    if (*f[0].field[ELEMENT] && *f[1].field[ELEMENT])
        snprintf(out->element, sizeof out->element,
                 "first difference there: element %s: got %s, expected %s\n", f[0].field[ELEMENT],
                 f[0].field[VALUE], f[1].field[VALUE]);
    return FSDP_OK;
}

static fsdp_status other_arrays(long long step)
{
    return fsdp_error(FSDP_EINVAL, "compare runs of one model, with the same of it frozen",
                      "step %lld: the files have rows of different arrays", step);
}

static fsdp_status compare_sums(reader f[2], digest_verdict *out)
{
    for (column c = MICRO; c <= NAME; c++)
        if (c != UNIT && strcmp(f[0].field[c], f[1].field[c]) != 0)
            return other_arrays(f[0].step);
    out->n_sums++;
    if (strcmp(f[0].field[HASH], f[1].field[HASH]) == 0)
        return FSDP_OK;
    describe(&f[0], &f[1], out);
    return find_element(f, out);
}

/* Compare up to the first difference, and read on, so that both files are known to be whole. */
static fsdp_status compare_rows(reader f[2], bool whole, digest_verdict *out)
{
    long long shared = -1; /* the last step that both files have */
    TRY(next_sum(&f[0], whole));
    TRY(next_sum(&f[1], whole));
    while (f[0].step != END_OF_ROWS || f[1].step != END_OF_ROWS) {
        long long step = f[0].step < f[1].step ? f[0].step : f[1].step;
        if (!*out->where && f[0].step == f[1].step) {
            out->n_both += step != shared;
            shared = step;
            TRY(compare_sums(f, out));
        } else if (!*out->where && step == shared) {
            return other_arrays(step);
        }
        for (int i = 0; i < 2; i++)
            if (f[i].step == step)
                TRY(next_sum(&f[i], whole));
    }
    return FSDP_OK;
}

static fsdp_status bisect(reader f[2], FILE *notes, digest_verdict *out)
{
    bool whole;
    TRY(compare_facts(f, notes, out, &whole));
    TRY(compare_rows(f, whole, out));
    for (int i = 0; i < 2; i++)
        out->n_steps[i] = f[i].n_steps;
    return out->n_both > 0 ? FSDP_OK
                           : fsdp_error(FSDP_EINVAL, "compare runs that make the same steps",
                                        "%s (%zu steps) and %s (%zu steps) have no step in common",
                                        f[0].name, f[0].n_steps, f[1].name, f[1].n_steps);
}

fsdp_status digest_bisect(FILE *const in[2], const char *const names[2], FILE *notes,
                          digest_verdict *out)
{
    reader f[2];
    *out = (digest_verdict){0};
    for (int i = 0; i < 2; i++)
        f[i] = (reader){.in = in[i], .name = names[i], .step = -1};
    fsdp_status status = bisect(f, notes, out);
    free(f[0].line);
    free(f[1].line);
    return status;
}
