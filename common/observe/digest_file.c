/* digest_file.c -- see digest_file.h. */
#include "common/observe/digest_file.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { MICRO_NONE = -1, N_FIELDS = 10, LEAST_FIELDS = 6, HASH_DIGITS = 16 };
enum { STEP, MICRO, UNIT, KIND, NAME, HASH, VALUE, ELEMENT, ROW, COLUMN };
static const char HINT[] = "pass files that --digests wrote, whole";

static fsdp_status damaged(const digest_file *f, size_t line, const char *why)
{
    return fsdp_error(FSDP_EINVAL, HINT, "%s: line %zu: %s", f->path, line, why);
}

/* ---- reading --------------------------------------------------------------------------------- */

/* Cut a line into its fields; the ones it lacks are "". false: it lacks one that all rows have. */
static bool split(char *line, char *fields[N_FIELDS])
{
    char *end = line + strlen(line);
    int n = 0;
    for (char *rest = line; n < N_FIELDS && rest; n++)
        fields[n] = strsep(&rest, ",\n");
    for (int i = n; i < N_FIELDS; i++)
        fields[i] = end;
    return n > LEAST_FIELDS; /* the new line begins one more */
}

static bool is_number(const char *text, int64_t *out)
{
    char *end;
    errno = 0;
    *out = strtoll(text, &end, 10);
    return end != text && *end == '\0' && errno == 0 && *out >= 0;
}

static bool is_of_values(const char *kind)
{
    const size_t n = strlen(kind), suffix = strlen("-value");
    return n > suffix && strcmp(kind + n - suffix, "-value") == 0;
}

/* The line is taken over, unless it holds a value. */
static fsdp_status read_row(digest_file *f, char **line, size_t number)
{
    char *fields[N_FIELDS], *end = NULL;
    digest_row row = {.line = *line, .micro = MICRO_NONE};
    bool good = split(*line, fields) && is_number(fields[STEP], &row.step) &&
                (!*fields[MICRO] || is_number(fields[MICRO], &row.micro));
    if (good && is_of_values(fields[KIND]))
        return FSDP_OK;
    good = good && strspn(fields[HASH], "0123456789abcdef") == HASH_DIGITS;
    row.hash = good ? strtoull(fields[HASH], &end, 16) : 0;
    if (!good || *end != '\0')
        return damaged(f, number, "expected step,micro,unit,kind,name,hash");
    row.unit = fields[UNIT];
    row.kind = fields[KIND];
    row.name = fields[NAME];
    row.value = fields[VALUE];
    if ((f->n_rows & (f->n_rows - 1)) == 0) { /* full: twice the room */
        digest_row *more = realloc(f->rows, (2 * f->n_rows + 1) * sizeof *more);
        if (!more)
            return fsdp_error(FSDP_ENOMEM, "", "%s: no memory for its rows", f->path);
        f->rows = more;
    }
    f->rows[f->n_rows++] = row;
    *line = NULL;
    return FSDP_OK;
}

static fsdp_status read_fact(digest_file *f, char **line, size_t number)
{
    (*line)[strcspn(*line, "\n")] = '\0';
    if (f->n_facts == DIGEST_MAX_FACTS || strncmp(*line, "# ", 2) != 0)
        return damaged(f, number, "expected '# name: value' or " DIGEST_COLUMNS);
    f->facts[f->n_facts++] = *line;
    *line = NULL;
    return FSDP_OK;
}

/* Read the lines after the title. */
static fsdp_status read_lines(digest_file *f)
{
    char *line = NULL, last[40];
    size_t room = 0, number = 1, n_rows = 0;
    bool in_rows = false, ended = false;
    fsdp_status status = FSDP_OK;
    while (status == FSDP_OK && getline(&line, &room, f->in) > 0) {
        number++;
        snprintf(last, sizeof last, "# end: %zu rows\n", n_rows);
        if (in_rows && *line == '#') {
            ended = strcmp(line, last) == 0;
            break;
        }
        if (in_rows) {
            n_rows++;
            status = read_row(f, &line, number);
        } else if (strcmp(line, DIGEST_COLUMNS "\n") == 0) {
            in_rows = true;
        } else {
            status = read_fact(f, &line, number);
        }
    }
    free(line);
    if (status == FSDP_OK && ferror(f->in))
        return fsdp_error(FSDP_EIO, HINT, "cannot read %s: %s", f->path, strerror(errno));
    if (status == FSDP_OK && !ended)
        return damaged(f, number, "the file is cut: '# end: N rows' follows its N rows");
    return status;
}

/* Find the steps among the rows, and their parts. */
static fsdp_status find_steps(digest_file *f)
{
    f->steps = calloc(f->n_rows + 1, sizeof *f->steps);
    if (!f->steps)
        return fsdp_error(FSDP_ENOMEM, "", "%s: no memory for its steps", f->path);
    for (size_t i = 0; i < f->n_rows; i++) {
        const digest_row *row = &f->rows[i];
        if (i == 0 || row->step != row[-1].step)
            f->steps[f->n_steps++] = (digest_step){.step = row->step, .first = i};
        digest_step *s = &f->steps[f->n_steps - 1];
        s->n_micro += strcmp(row->kind, "tokens") == 0;
        s->n_gradients += row->micro == MICRO_NONE;
    }
    for (digest_step *s = f->steps; s < f->steps + f->n_steps; s++) {
        const size_t end = s + 1 < f->steps + f->n_steps ? s[1].first : f->n_rows;
        const size_t body = end - s->first - s->n_gradients;
        bool good =
            s->n_micro > 0 && body % s->n_micro == 0 && (s == f->steps || s->step > s[-1].step);
        s->micro_rows = good ? body / s->n_micro : 0;
        for (size_t i = 0; i < end - s->first && good; i++) {
            const int64_t m = i < body ? (int64_t)(i / s->micro_rows) : MICRO_NONE;
            good = f->rows[s->first + i].micro == m;
        }
        if (!good)
            return fsdp_error(FSDP_EINVAL, HINT, "%s: step %lld: rows are missing or out of order",
                              f->path, (long long)s->step);
    }
    return FSDP_OK;
}

fsdp_status digest_file_read(FILE *in, const char *path, digest_file *out)
{
    char title[sizeof DIGEST_TITLE + 1];
    *out = (digest_file){.path = path, .in = in};
    if (!fgets(title, sizeof title, in) || strcmp(title, DIGEST_TITLE "\n") != 0)
        return fsdp_error(FSDP_EINVAL, HINT, "%s: the first line is not '" DIGEST_TITLE "'", path);
    fsdp_status status = read_lines(out);
    if (status == FSDP_OK)
        status = find_steps(out);
    if (status != FSDP_OK)
        digest_file_free(out);
    return status;
}

void digest_file_free(digest_file *f)
{
    for (int i = 0; i < f->n_facts; i++)
        free(f->facts[i]);
    for (size_t i = 0; i < f->n_rows; i++)
        free(f->rows[i].line);
    free(f->rows);
    free(f->steps);
    *f = (digest_file){0};
}

const char *digest_fact(const digest_file *f, const char *name)
{
    const size_t n = strlen(name);
    for (int i = 0; i < f->n_facts; i++)
        if (strncmp(f->facts[i] + 2, name, n) == 0 && strncmp(f->facts[i] + 2 + n, ": ", 2) == 0)
            return f->facts[i] + 2 + n + 2;
    return NULL;
}

/* ---- comparing ------------------------------------------------------------------------------- */

static size_t rows_of(const digest_step *s)
{
    return s->n_micro * s->micro_rows;
}

/* Row i of a step. whole: the rows of its micro-steps as one, where a sum is that of the step, and
 * a parameter the first copy that differs from micro-step 0's, if any. */
static const digest_row *take(const digest_file *f, const digest_step *s, size_t i, bool whole,
                              uint64_t *hash)
{
    const size_t body = whole ? s->micro_rows : rows_of(s);
    const digest_row *first = f->rows + s->first + (i < body ? i : rows_of(s) + i - body);
    const digest_row *taken = first;
    *hash = first->hash;
    for (size_t m = 1; whole && i < body && m < s->n_micro; m++) {
        const digest_row *row = first + m * s->micro_rows;
        if (strncmp(row->kind, "params", 6) != 0)
            *hash += row->hash;
        else if (taken == first && row->hash != first->hash)
            *hash = (taken = row)->hash;
    }
    return taken;
}

/* Whether each micro-step has the sequences that it has in the other run. */
static bool same_micro_steps(const digest_row *a, const digest_row *b, const digest_step *sa,
                             const digest_step *sb)
{
    bool same = sa->n_micro == sb->n_micro && sa->micro_rows == sb->micro_rows;
    for (size_t m = 0; m < sa->n_micro && same; m++)
        same = a[sa->first + m * sa->micro_rows].hash == b[sb->first + m * sb->micro_rows].hash;
    return same;
}

static fsdp_status compare_step(const digest_file *a, const digest_file *b, const digest_step *sa,
                                const digest_step *sb, digest_verdict *out)
{
    const bool whole = !same_micro_steps(a->rows, b->rows, sa, sb);
    const size_t n = (whole ? sa->micro_rows : rows_of(sa)) + sa->n_gradients;
    if (sa->micro_rows != sb->micro_rows || sa->n_gradients != sb->n_gradients)
        return fsdp_error(FSDP_EINVAL, "compare runs of one model, with the same parameters frozen",
                          "step %lld: %zu and %zu rows of a micro-step, %zu and %zu gradients",
                          (long long)sa->step, sa->micro_rows, sb->micro_rows, sa->n_gradients,
                          sb->n_gradients);
    out->n_steps++;
    out->n_whole += whole;
    for (size_t i = 0; i < n && !out->a; i++, out->n_sums++) {
        uint64_t ha, hb;
        const digest_row *ra = take(a, sa, i, whole, &ha), *rb = take(b, sb, i, whole, &hb);
        if (strcmp(ra->name, rb->name) != 0 || strcmp(ra->kind, rb->kind) != 0)
            return fsdp_error(FSDP_EINVAL, "compare runs of one model",
                              "step %lld: got %s of %s and %s of %s, expected the same",
                              (long long)sa->step, ra->kind, ra->name, rb->kind, rb->name);
        if (ha != hb) {
            out->a = ra;
            out->b = rb;
        }
    }
    return FSDP_OK;
}

fsdp_status digest_bisect(const digest_file *a, const digest_file *b, digest_verdict *out)
{
    static const char *const alike[] = {"model", "seq-len", "global-batch"};
    *out = (digest_verdict){0};
    for (int i = 0; i < 3; i++) {
        const char *va = digest_fact(a, alike[i]), *vb = digest_fact(b, alike[i]);
        if (va && vb && strcmp(va, vb) != 0)
            return fsdp_error(FSDP_EINVAL, "compare runs that differ in how they are sharded",
                              "%s differs: %s has '%s', %s has '%s'", alike[i], a->path, va,
                              b->path, vb);
    }
    size_t i = 0, j = 0;
    while (i < a->n_steps && j < b->n_steps && !out->a) {
        const digest_step *sa = &a->steps[i], *sb = &b->steps[j];
        if (sa->step == sb->step)
            TRY(compare_step(a, b, sa, sb, out));
        i += sa->step <= sb->step;
        j += sb->step <= sa->step;
    }
    if (out->n_steps == 0)
        return fsdp_error(FSDP_EINVAL, "compare runs that make the same steps",
                          "no step is in both: %s has %zu from %lld, %s has %zu from %lld", a->path,
                          a->n_steps, a->n_steps ? (long long)a->steps->step : 0LL, b->path,
                          b->n_steps, b->n_steps ? (long long)b->steps->step : 0LL);
    return FSDP_OK;
}

void digest_describe(const digest_verdict *v, char text[DIGEST_TEXT_BYTES])
{
    static const char *const words[][2] = {
        {"tokens", "the input: other data, or in another order"},
        {"params", "parameter %s, as gathered for forward"},
        {"output", "output of layer %s"},
        {"params-backward", "parameter %s, as gathered for backward"},
        {"gradient", "reduced gradient of %s"}};
    char micro[48] = "", other[80] = "", copy[80] = "";
    const digest_row *a = v->a, *odd = *a->value ? a : v->b;
    const char *what = "%s";
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        what = strcmp(words[i][0], a->kind) == 0 ? words[i][1] : what;
    if (a->micro != MICRO_NONE && (v->n_whole == 0 || strncmp(a->kind, "params", 6) == 0))
        snprintf(micro, sizeof micro, "micro-step %lld, ", (long long)a->micro);
    if (strcmp(a->unit, v->b->unit) != 0)
        snprintf(other, sizeof other, " (%.40s in the other run)", v->b->unit);
    if (*odd->value)
        snprintf(copy, sizeof copy, ": the copy of %.40s differs from rank 0's", odd->value);
    int n = snprintf(text, DIGEST_TEXT_BYTES, "step %lld, %sunit %.40s%s: ", (long long)a->step,
                     micro, a->unit, other);
    n += snprintf(text + n, DIGEST_TEXT_BYTES - (size_t)n, what, a->name);
    snprintf(text + n, DIGEST_TEXT_BYTES - (size_t)n, "%s", copy);
}

/* ---- elements -------------------------------------------------------------------------------- */

/* The rows of values of one array, one after the other. */
typedef struct walk {
    FILE *in;
    const digest_row *of;
    char *line;
    size_t room;
    char *fields[N_FIELDS];
} walk;

/* Go to the next row; `first`: to the first one, from the beginning. false: there is none. */
static bool next_value(walk *w, bool first)
{
    char kind[32];
    snprintf(kind, sizeof kind, "%.*s-value", (int)strcspn(w->of->kind, "-"), w->of->kind);
    if (first)
        rewind(w->in);
    do {
        if (getline(&w->line, &w->room, w->in) <= 0)
            return false;
        if (split(w->line, w->fields) && strcmp(w->fields[KIND], kind) == 0 &&
            strcmp(w->fields[NAME], w->of->name) == 0 &&
            strtoll(w->fields[STEP], NULL, 10) == w->of->step)
            return true;
    } while (first);
    return false;
}

fsdp_status digest_element(const digest_file *a, const digest_file *b, const digest_verdict *v,
                           char text[DIGEST_TEXT_BYTES])
{
    walk wa = {.in = a->in, .of = v->a}, wb = {.in = b->in, .of = v->b};
    bool more = next_value(&wa, true) && next_value(&wb, true);
    *text = '\0';
    while (more && strcmp(wa.fields[HASH], wb.fields[HASH]) == 0)
        more = next_value(&wa, false) && next_value(&wb, false);
    if (more)
        snprintf(text, DIGEST_TEXT_BYTES,
                 "element %.20s (row %.20s, column %.20s): got %.20s (%.8s), expected %.20s (%.8s)",
                 wa.fields[ELEMENT], wa.fields[ROW], wa.fields[COLUMN], wa.fields[VALUE],
                 wa.fields[HASH], wb.fields[VALUE], wb.fields[HASH]);
    bool failed = ferror(a->in) || ferror(b->in);
    free(wa.line);
    free(wb.line);
    return failed ? fsdp_error(FSDP_EIO, HINT, "cannot read the values again") : FSDP_OK;
}
