/* fsdp_compare_main.c -- build/fsdp_compare A.csv B.csv: are two runs the same bits?
 *
 * Compares step, loss, grad_norm and lr of two loss files of build/fsdp_train as text, byte for
 * byte (nine significant digits tell every fp32 apart); the time column is ignored. Exit status 0:
 * identical, 1: they differ (the first difference is shown, with its distance in ULPs), 2: a file
 * cannot be compared. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "common/base/status.h"

enum { N_COLUMNS = 4, LINE_BYTES = 512, IDENTICAL = 0, DIFFERENT = 1, UNUSABLE = 2 };
static const char *const COLUMNS[N_COLUMNS] = {"step", "loss", "grad_norm", "lr"};

/* The first four fields of a line, cut in place. false at a line that has fewer. */
static int split(char *line, char *fields[N_COLUMNS])
{
    char *rest = line;
    for (int i = 0; i < N_COLUMNS; i++) {
        fields[i] = strsep(&rest, ",\n");
        if (!fields[i] || !*fields[i])
            return 0;
    }
    return 1;
}

static long long ulps(const char *a, const char *b)
{
    float x = strtof(a, NULL), y = strtof(b, NULL);
    int xi, yi;
    memcpy(&xi, &x, sizeof xi);
    memcpy(&yi, &y, sizeof yi);
    long long xo = xi < 0 ? -(long long)(xi & 0x7fffffff) : xi;
    long long yo = yi < 0 ? -(long long)(yi & 0x7fffffff) : yi;
    return llabs(xo - yo);
}

static int report_difference(char *const a[N_COLUMNS], char *const b[N_COLUMNS], int column)
{
    double x = strtod(a[column], NULL), y = strtod(b[column], NULL);
    printf("first difference: step %s, %s: %s and %s", a[0], COLUMNS[column], a[column], b[column]);
    if (column == 1 || column == 2)
        printf(" (%lld ULPs, relative %.3g)", ulps(a[column], b[column]), fabs(x - y) / fabs(x));
    printf("\n");
    return DIFFERENT;
}

static int compare(FILE *fa, FILE *fb)
{
    char la[LINE_BYTES], lb[LINE_BYTES], *a[N_COLUMNS], *b[N_COLUMNS];
    long rows = 0;
    for (;; rows++) {
        char *more_a = fgets(la, sizeof la, fa), *more_b = fgets(lb, sizeof lb, fb);
        if (!more_a && !more_b)
            break;
        if (!more_a || !more_b) {
            printf("first difference: one file ends after %ld steps\n", rows > 0 ? rows - 1 : 0);
            return DIFFERENT;
        }
        if (!split(la, a) || !split(lb, b)) {
            fsdp_error(FSDP_EINVAL, "pass files written by --loss-csv",
                       "line %ld has less than %d columns", rows + 1, N_COLUMNS);
            return UNUSABLE;
        }
        for (int i = 0; i < N_COLUMNS; i++)
            if (strcmp(a[i], b[i]) != 0)
                return report_difference(a, b, i);
    }
    if (rows < 2) {
        fsdp_error(FSDP_EINVAL, "pass files written by --loss-csv",
                   "the files have no steps to compare");
        return UNUSABLE;
    }
    printf("identical bits: %ld steps, columns step, loss, grad_norm, lr\n", rows - 1);
    return IDENTICAL;
}

int main(int argc, char **argv)
{
    FILE *f[2] = {NULL, NULL};
    int verdict = UNUSABLE;
    if (argc == 2 && strcmp(argv[1], "--help") == 0) {
        printf("build/fsdp_compare A.csv B.csv -- whether two files of --loss-csv hold the same "
               "bits\nexit status 0: identical, 1: they differ, 2: a file cannot be compared\n");
        return IDENTICAL;
    }
    if (argc != 3)
        fsdp_error(FSDP_EINVAL, "build/fsdp_compare A.csv B.csv",
                   "got %d arguments, expected two loss files", argc - 1);
    else if (!(f[0] = fopen(argv[1], "r")) || !(f[1] = fopen(argv[2], "r")))
        fsdp_error(FSDP_EIO, "pass files written by --loss-csv", "cannot read %s: %s",
                   f[0] ? argv[2] : argv[1], strerror(errno));
    else
        verdict = compare(f[0], f[1]);
    if (verdict == UNUSABLE)
        fsdp_error_print(stderr, 0, 0);
    for (int i = 0; i < 2; i++)
        if (f[i])
            fclose(f[i]);
    return verdict;
}
