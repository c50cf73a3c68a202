/* digest_file.c -- see digest_file.h. */
#include "common/observe/digest_file.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { MICRO_NONE = -1, N_FIELDS = 10, LEAST_FIELDS = 6, HASH_DIGITS = 16 };
static const char HINT[] = "pass files that --digests wrote, whole";

static fsdp_status no_memory(const digest_file *f)
{
    return fsdp_error(FSDP_ENOMEM, "", "%s: no memory to read it", f->path);
}

/* ---- reading --------------------------------------------------------------------------------- */

static bool is_number(const char *text, int64_t *out)
{
    char *end;
    errno = 0;
    *out = strtoll(text, &end, 10);
    return end != text && *end == '\0' && errno == 0 && *out >= 0;
}

static bool is_of_values(const digest_row *r)
{
    const char *suffix = strrchr(r->kind, '-');
    return suffix && strcmp(suffix, "-value") == 0;
}

/* Cut a line into its fields; the ones it lacks are "". */
static bool parse_row(char *line, digest_row *r)
{
    const char *fields[N_FIELDS], *none = line + strlen(line);
    char *end;
    int n = 0;
    for (int i = 0; i < N_FIELDS; i++) {
        n += line != NULL;
        fields[i] = line ? strsep(&line, ",") : none;
    }
    *r = (digest_row){
        fields[2], fields[3], fields[4], fields[5],           fields[6],
        fields[7], fields[8], fields[9], .micro = MICRO_NONE, .sum = strtoull(fields[5], &end, 16)};
    return n >= LEAST_FIELDS && is_number(fields[0], &r->step) &&
           (!*fields[1] || is_number(fields[1], &r->micro)) && *end == '\0' &&
           (is_of_values(r) || end - fields[5] == HASH_DIGITS);
}

/* The title, facts "# name: value", the columns, rows, and how many they were. */
static fsdp_status parse_lines(digest_file *f, char *rest, size_t n_lines)
{
    char *line = strsep(&rest, "\n"), last[40] = "# end: 0 rows";
    size_t number = 1;
    bool in_rows = false;
    if (!line || strcmp(line, DIGEST_TITLE) != 0)
        return fsdp_error(FSDP_EINVAL, HINT, "%s: the first line is not '" DIGEST_TITLE "'",
                          f->path);
    f->values = f->rows + n_lines;
    while ((line = strsep(&rest, "\n")) && rest && strcmp(line, last) != 0) {
        digest_row row;
        number++;
        if (!in_rows && strcmp(line, DIGEST_COLUMNS) == 0) {
            in_rows = true;
        } else if (!in_rows && f->n_facts < DIGEST_MAX_FACTS && strncmp(line, "# ", 2) == 0) {
            f->facts[f->n_facts++] = line + 2;
        } else if (in_rows && parse_row(line, &row)) {
            *(is_of_values(&row) ? f->values - f->n_values++ : f->rows + f->n_rows++) = row;
            snprintf(last, sizeof last, "# end: %zu rows", f->n_rows + f->n_values);
        } else {
            rest = NULL;
        }
    }
    if (rest)
        return FSDP_OK;
    return fsdp_error(FSDP_EINVAL, HINT, "%s is cut or damaged: line %zu, before '%s'", f->path,
                      number, last);
}

/* Find the steps among the rows, and their parts. */
static fsdp_status find_steps(digest_file *f)
{
    f->steps = calloc(f->n_rows + 1, sizeof *f->steps);
    if (!f->steps)
        return no_memory(f);
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

static fsdp_status read_file(FILE *in, digest_file *f)
{
    size_t room = 0, n_lines = 1;
    const ssize_t bytes = getdelim(&f->text, &room, '\0', in); /* a text has none: all of it */
    if (ferror(in))
        return fsdp_error(FSDP_EIO, HINT, "cannot read %s: %s", f->path, strerror(errno));
    for (ssize_t i = 0; i < bytes; i++)
        n_lines += f->text[i] == '\n';
    f->rows = calloc(n_lines + 1, sizeof *f->rows);
    if (!f->rows)
        return no_memory(f);
    TRY(parse_lines(f, bytes > 0 ? f->text : NULL, n_lines));
    return find_steps(f);
}

fsdp_status digest_file_read(FILE *in, const char *path, digest_file *out)
{
    *out = (digest_file){.path = path};
    fsdp_status status = read_file(in, out);
    if (status != FSDP_OK)
        digest_file_free(out);
    return status;
}

void digest_file_free(digest_file *f)
{
    free(f->text);
    free(f->rows);
    free(f->steps);
    *f = (digest_file){0};
}

const char *digest_fact(const digest_file *f, const char *name)
{
    const size_t n = strlen(name);
    for (int i = 0; i < f->n_facts; i++)
        if (strncmp(f->facts[i], name, n) == 0 && strncmp(f->facts[i] + n, ": ", 2) == 0)
            return f->facts[i] + n + 2;
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
    *hash = first->sum;
    for (size_t m = 1; whole && i < body && m < s->n_micro; m++) {
        const digest_row *row = first + m * s->micro_rows;
        if (strncmp(row->kind, "params", 6) != 0)
            *hash += row->sum;
        else if (taken == first && row->sum != first->sum)
            *hash = (taken = row)->sum;
    }
    return taken;
}

/* Whether each micro-step has the sequences that it has in the other run. */
static bool same_micro_steps(const digest_row *a, const digest_row *b, const digest_step *sa,
                             const digest_step *sb)
{
    bool same = sa->n_micro == sb->n_micro && sa->micro_rows == sb->micro_rows;
    for (size_t m = 0; m < sa->n_micro && same; m++)
        same = a[sa->first + m * sa->micro_rows].sum == b[sb->first + m * sb->micro_rows].sum;
    return same;
}

static fsdp_status compare_step(const digest_file *a, const digest_file *b, const digest_step *sa,
                                const digest_step *sb, digest_verdict *out)
{
    const bool whole = !same_micro_steps(a->rows, b->rows, sa, sb);
    const size_t n = (whole ? sa->micro_rows : rows_of(sa)) + sa->n_gradients;
    bool alike = sa->micro_rows == sb->micro_rows && sa->n_gradients == sb->n_gradients;
    out->n_steps++;
    out->n_whole += whole;
    for (size_t i = 0; i < n && alike && !out->a; i++, out->n_sums++) {
        uint64_t ha, hb;
        const digest_row *ra = take(a, sa, i, whole, &ha), *rb = take(b, sb, i, whole, &hb);
        alike = strcmp(ra->name, rb->name) == 0 && strcmp(ra->kind, rb->kind) == 0;
        out->a = ha != hb ? ra : NULL;
        out->b = rb;
    }
    return alike ? FSDP_OK
                 : fsdp_error(FSDP_EINVAL, "compare runs of one model, with the same of it frozen",
                              "step %lld: the files have rows of different arrays",
                              (long long)sa->step);
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
        {"params", "parameter %.64s, as gathered for forward"},
        {"output", "output of layer %.64s"},
        {"params-backward", "parameter %.64s, as gathered for backward"},
        {"gradient", "reduced gradient of %.64s"}};
    char micro[48] = "", other[80] = "", copy[80] = "";
    const digest_row *a = v->a, *odd = *a->value ? a : v->b;
    const char *what = "%.64s";
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
    n += snprintf(text + n, DIGEST_TEXT_BYTES / 2, what, a->name);
    snprintf(text + n, DIGEST_TEXT_BYTES - (size_t)n, "%s", copy);
}

/* ---- elements -------------------------------------------------------------------------------- */

/* The row of values after v of the array of row `of`; v NULL: the first. NULL: there is none. */
static const digest_row *next_value(const digest_file *f, const digest_row *of, const digest_row *v)
{
    const size_t kind = strcspn(of->kind, "-"); /* params-value is of params-backward, too */
    for (v = v ? v - 1 : f->values; v > f->values - f->n_values; v--)
        if (v->step == of->step && strcmp(v->name, of->name) == 0 &&
            strncmp(v->kind, of->kind, kind) == 0)
            return v;
    return NULL;
}

void digest_element(const digest_file *a, const digest_file *b, const digest_verdict *v,
                    char text[DIGEST_TEXT_BYTES])
{
    const digest_row *va = next_value(a, v->a, NULL), *vb = next_value(b, v->b, NULL);
    while (va && vb && strcmp(va->hash, vb->hash) == 0) {
        va = next_value(a, v->a, va);
        vb = next_value(b, v->b, vb);
    }
    *text = '\0';
    if (va && vb)
        snprintf(text, DIGEST_TEXT_BYTES,
                 "element %.20s (row %.20s, column %.20s): got %.20s (%.8s), expected %.20s (%.8s)",
                 va->element, va->row, va->column, va->value, va->hash, vb->value, vb->hash);
}
