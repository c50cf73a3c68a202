/* digest_file.c -- see digest_file.h. Both files are read in parallel, line by line. */
#include "common/observe/digest_file.h"
#include <limits.h>
#include <stdlib.h>
#include <string.h>

static const char HINT[] = "pass files that --digests wrote, whole";

enum { HASH_DIGITS = 16, LINE_BYTES = 1024 };
#define END_OF_ROWS LLONG_MAX

typedef enum column { STEP, MICRO, UNIT, KIND, NAME, HASH, ELEMENT, VALUE, N_COLUMNS } column;

/* A file, and the row read last. */
typedef struct reader {
    FILE *in;
    const char *name;
    char line[LINE_BYTES];
    size_t n_lines, n_rows;
    const char *field[N_COLUMNS];
    long long step;         /* END_OF_ROWS: all rows were read */
    int micro, first_micro; /* micro counts from first_micro; rows with micro < 0 are skipped */
} reader;

typedef struct pair {
    reader f[2];
    FILE *out;
    const char *fast;      /* the file of a run with --reduction fast; NULL: no such run */
    long long first, last; /* steps that were compared */
    size_t n_sums;         /* sums that were compared */
    bool differs;
} pair;

/* ---- reading --------------------------------------------------------------------------------- */

static fsdp_status damaged(const reader *f)
{
    return fsdp_error(FSDP_EINVAL, HINT, "%s is cut or damaged: line %zu", f->name, f->n_lines);
}

static fsdp_status read_line(reader *f)
{
    f->n_lines++;
    char *end = fgets(f->line, LINE_BYTES, f->in) ? strchr(f->line, '\n') : NULL;
    for (const char *c = f->line; end && c < end; c++)
        if ((unsigned char)*c < ' ' || *c == 0x7f)
            return damaged(f);
    if (!end)
        return damaged(f);
    *end = '\0';
    return FSDP_OK;
}

/* Read a row, or the last line, which says how many rows there are. */
static fsdp_status read_row(reader *f)
{
    const long long before = f->step;
    char last[40], *rest, *end;
    TRY(read_line(f));
    snprintf(last, sizeof last, "# end: %zu rows", f->n_rows++);
    if (strcmp(f->line, last) == 0) {
        f->step = END_OF_ROWS;
        return FSDP_OK;
    }
    rest = f->line;
    for (int i = 0; i < N_COLUMNS; i++)
        f->field[i] = rest ? strsep(&rest, ",") : "";
    f->step = strtoll(f->field[STEP], &end, 10);
    f->micro = atoi(f->field[MICRO]) - f->first_micro;
    const bool has_hash = strlen(f->field[HASH]) == HASH_DIGITS &&
                          strspn(f->field[HASH], "0123456789abcdef") == HASH_DIGITS;
    return has_hash && !*end && f->step >= before ? FSDP_OK : damaged(f);
}

/* Read rows up to the next one that is compared. */
static fsdp_status next_row(reader *f)
{
    do {
        TRY(read_row(f));
    } while (f->micro < 0 && f->step != END_OF_ROWS);
    return FSDP_OK;
}

/* ---- facts ----------------------------------------------------------------------------------- */

/* The runs differ in the fact read last: refuse to compare them, or print a note. */
static fsdp_status note_fact(pair *p, char *const value[2])
{
    const char *name = p->f[0].line + 2;
    if (strcmp(name, "model") == 0 || strcmp(name, "seq-len") == 0 ||
        strcmp(name, "global-batch") == 0)
        return fsdp_error(FSDP_EINVAL, "compare runs that differ in how they are sharded",
                          "%s differs:%s and%s", name, value[0], value[1]);
    if (strcmp(name, "micro-batch") == 0) /* the value begins with the number of micro-steps */
        for (int i = 0; i < 2; i++)
            p->f[i].first_micro = atoi(value[i]) - 1;
    fprintf(p->out, "note: %s differs:%s and%s\n", name, value[0], value[1]);
    return FSDP_OK;
}

static bool in_head(const reader *f)
{
    return strcmp(f->line, DIGEST_COLUMNS) != 0;
}

/* Read both files up to the column names. The facts of comparable runs have the same names, line by
 * line, up to the first fact that only one run has. */
static fsdp_status compare_facts(pair *p)
{
    reader *f = p->f;
    while (in_head(&f[0]) || in_head(&f[1])) {
        char *value[2];
        for (int i = 0; i < 2; i++) {
            if (in_head(&f[i]))
                TRY(read_line(&f[i]));
            if (f[i].n_lines == 1 && strcmp(f[i].line, DIGEST_TITLE) != 0)
                return fsdp_error(FSDP_EINVAL, HINT, "%s: the first line is not '" DIGEST_TITLE "'",
                                  f[i].name);
            if (strcmp(f[i].line, "# reduction: fast") == 0)
                p->fast = f[i].name;
            value[i] = f[i].line;
            strsep(&value[i], ":");
        }
        if (value[0] && value[1] && strcmp(f[0].line, f[1].line) == 0 &&
            strcmp(value[0], value[1]) != 0)
            TRY(note_fact(p, value));
    }
    return FSDP_OK;
}

/* ---- rows ------------------------------------------------------------------------------------ */

static bool same(const pair *p, column c)
{
    return strcmp(p->f[0].field[c], p->f[1].field[c]) == 0;
}

static void print_difference(const pair *p)
{
    const char *const *a = p->f[0].field, *const *b = p->f[1].field;
    fprintf(p->out, "first difference: step %s, micro-step %s, unit %s", a[STEP], a[MICRO],
            a[UNIT]);
    if (!same(p, UNIT))
        fprintf(p->out, " (%s in the other run)", b[UNIT]);
    fprintf(p->out, ": %s of %s", a[KIND], a[NAME]);
    if (*a[ELEMENT])
        fprintf(p->out, ", %s: got %s, expected %s", a[ELEMENT], a[VALUE], b[VALUE]);
    else if (*a[VALUE] || *b[VALUE])
        fprintf(p->out, ": %s", *a[VALUE] ? a[VALUE] : b[VALUE]);
    fprintf(p->out, "\n");
    if (!*a[ELEMENT] && strcmp(a[KIND], "output") != 0)
        fprintf(p->out,
                "to see the element: both runs again with --digest-values %s:%s and %s:%s\n",
                a[STEP], a[UNIT], b[STEP], b[UNIT]);
}

static fsdp_status compare_row(pair *p)
{
    const reader *f = p->f;
    if (f[0].step != f[1].step || f[0].micro != f[1].micro || !same(p, KIND) || !same(p, NAME))
        return fsdp_error(FSDP_EINVAL, "compare runs of one model, with the same of it frozen",
                          "step %lld: the files have rows of different arrays", p->last);
    p->n_sums += !*f[0].field[ELEMENT];
    p->differs = !same(p, HASH);
    if (p->differs)
        print_difference(p);
    return FSDP_OK;
}

/* Whether f's row is of an element, while the other file has no elements of that array. */
static bool is_extra(const reader *f, const reader *other)
{
    return f->step == other->step && *f->field[ELEMENT] && !*other->field[ELEMENT];
}

/* Compare up to the first difference, then read on, to check that both files are whole. */
static fsdp_status compare_rows(pair *p)
{
    reader *f = p->f;
    TRY(next_row(&f[0]));
    TRY(next_row(&f[1]));
    while (f[0].step != END_OF_ROWS || f[1].step != END_OF_ROWS) {
        const long long step = f[0].step < f[1].step ? f[0].step : f[1].step;
        const bool extra[2] = {is_extra(&f[0], &f[1]), is_extra(&f[1], &f[0])};
        const bool is_shared = f[0].step == f[1].step || step == p->last;
        if (!p->differs && is_shared && !extra[0] && !extra[1]) {
            p->first = p->n_sums > 0 ? p->first : step;
            p->last = step;
            TRY(compare_row(p));
        }
        for (int i = 0; i < 2; i++)
            if (f[i].step == step && !extra[1 - i])
                TRY(next_row(&f[i]));
    }
    return FSDP_OK;
}

fsdp_status digest_bisect(FILE *const in[2], const char *const names[2], FILE *out, bool *differ)
{
    pair p = {.out = out, .last = -1};
    for (int i = 0; i < 2; i++)
        p.f[i] = (reader){.in = in[i], .name = names[i]};
    TRY(compare_facts(&p));
    TRY(compare_rows(&p));
    if (p.n_sums == 0)
        return fsdp_error(FSDP_EINVAL, "compare runs that make the same steps",
                          "%s and %s have no step in common", names[0], names[1]);
    *differ = p.differs;
    if (!p.differs)
        fprintf(out,
                "identical digests: %zu sums of parameters, outputs and gradients in steps %lld to "
                "%lld\n",
                p.n_sums, p.first, p.last);
    return !p.fast ? FSDP_OK
                   : fsdp_error(FSDP_EINVAL, "make both runs with --reduction canonical",
                                "no verdict on bits: %s is of a run with --reduction fast", p.fast);
}
