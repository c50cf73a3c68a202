/* fsdp_compare_main.c -- build/fsdp_compare [--bisect] A B: compare the bits of two runs.
 *
 * The program compares step, loss, grad_norm and lr of two loss files of build/fsdp_train as text,
 * byte for byte (nine significant digits distinguish all fp32 values); it ignores the time column.
 * The exit status is 0 if they are identical, 1 if they differ (then the first difference is
 * printed, with its distance in ULPs), and 2 if a file cannot be compared. --bisect does the same
 * with two files of --digests (digest_file.h), and also exits with 2 if a run is not canonical. */
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include "common/base/status.h"
#include "common/observe/digest_file.h"

enum { LINE_BYTES = 1024, N_COLUMNS = 4, IDENTICAL = 0, DIFFERENT = 1, UNUSABLE = 2 };
static const char *const COLUMNS[N_COLUMNS] = {"step", "loss", "grad_norm", "lr"};
static const char HINT[] = "pass two files of --loss-csv, or --bisect and two files of --digests";

/* The first four fields of a line. */
typedef char fields[N_COLUMNS][64];

/* Cut a line into fields; false: it has too few fields, or a field is too long. */
static bool split(const char *line, fields f)
{
    return sscanf(line, "%63[^,\n],%63[^,\n],%63[^,\n],%63[^,\n]", f[0], f[1], f[2], f[3]) ==
           N_COLUMNS;
}

/* Read line n of a file; the first line has the column names. *more: false at the end. */
static fsdp_status next_row(FILE *in, const char *path, long n, fields f, bool *more)
{
    char line[LINE_BYTES];
    int bytes = 0, c = 0;
    while (bytes < LINE_BYTES - 1 && c != '\n' && (c = getc(in)) != EOF)
        line[bytes++] = (char)c;
    line[bytes] = '\0';
    *more = bytes > 0;
    bool ok = !*more || (split(line, f) && bytes < LINE_BYTES - 1);
    for (int i = 0; i < bytes; i++) /* refuse control characters, and text after a NUL */
        ok = ok && (!iscntrl((unsigned char)line[i]) || (line[i] == '\n' && i + 1 == bytes));
    for (int i = 0; i < N_COLUMNS && n == 1 && *more; i++)
        ok = ok && strcmp(f[i], COLUMNS[i]) == 0;
    if (ferror(in))
        return fsdp_error(FSDP_EIO, HINT, "cannot read %s: %s", path, strerror(errno));
    return ok ? FSDP_OK
              : fsdp_error(FSDP_EINVAL, HINT, "%s: line %ld: expected %s", path, n,
                           n == 1 ? "step,loss,grad_norm,lr,ms" : "a row of numbers");
}

/* The position of a float among all floats in ascending order; 0 is at 0. */
static long long place(const char *text)
{
    float x = strtof(text, NULL);
    int bits;
    memcpy(&bits, &x, sizeof bits);
    return bits < 0 ? -(long long)(bits & 0x7fffffff) : bits;
}

static void report_difference(const fields a, const fields b, int column)
{
    double x = strtod(a[column], NULL), y = strtod(b[column], NULL);
    printf("first difference: step %s, %s: %s and %s", a[0], COLUMNS[column], a[column], b[column]);
    if (column == 1 || column == 2)
        printf(" (%lld ULPs, relative %.3g)", llabs(place(a[column]) - place(b[column])),
               fabs(x - y) / fabs(x));
    printf("\n");
}

static fsdp_status compare(FILE *const in[2], const char *const paths[2], bool *differ)
{
    fields field[2];
    long n_rows = 0;
    *differ = true;
    for (;; n_rows++) {
        bool more[2];
        for (int i = 0; i < 2; i++)
            TRY(next_row(in[i], paths[i], n_rows + 1, field[i], &more[i]));
        if (!more[0] && !more[1])
            break;
        if (!more[0] || !more[1]) {
            printf("first difference: one file ends after %ld steps\n",
                   n_rows > 0 ? n_rows - 1 : 0);
            return FSDP_OK;
        }
        for (int i = 0; i < N_COLUMNS; i++)
            if (strcmp(field[0][i], field[1][i]) != 0) {
                report_difference(field[0], field[1], i);
                return FSDP_OK;
            }
    }
    if (n_rows < 2)
        return fsdp_error(FSDP_EINVAL, HINT, "the files have no steps to compare");
    *differ = false;
    printf("identical bits: %ld steps, columns step, loss, grad_norm, lr\n", n_rows - 1);
    return FSDP_OK;
}

static fsdp_status run(int argc, char **argv, int *verdict)
{
    const bool bisects = argc > 1 && strcmp(argv[1], "--bisect") == 0;
    const char *const *paths = (const char *const *)argv + 1 + bisects;
    FILE *in[2];
    if (argc != 3 + bisects)
        return fsdp_error(FSDP_EINVAL, HINT, "got %d paths, expected two", argc - 1 - bisects);
    for (int i = 0; i < 2; i++) {
        in[i] = fopen(paths[i], "r");
        if (in[i] == NULL)
            return fsdp_error(FSDP_EIO, HINT, "cannot read %s: %s", paths[i], strerror(errno));
    }
    /* the files are closed when the process exits */
    bool differ = false;
    TRY(bisects ? digest_bisect(in, paths, stdout, &differ) : compare(in, paths, &differ));
    TRY(fsdp_flush_stdout("send the output elsewhere"));
    *verdict = differ ? DIFFERENT : IDENTICAL;
    return FSDP_OK;
}

int main(int argc, char **argv)
{
    int verdict = UNUSABLE;
    if (argc == 2 && strcmp(argv[1], "--help") == 0) {
        puts("Usage: fsdp_compare A.csv B.csv, or fsdp_compare --bisect A B\n"
             "Says whether two files of --loss-csv hold the same bits; with --bisect, the first "
             "step, unit and array in which two files of --digests differ.\n"
             "Exit status 0: identical, 1: they differ, 2: a file cannot be compared.");
        if (fsdp_flush_stdout("send the output elsewhere") == FSDP_OK)
            return IDENTICAL;
    } else if (run(argc, argv, &verdict) == FSDP_OK) {
        return verdict;
    }
    fsdp_error_print(stderr, 0, 0);
    return UNUSABLE;
}
