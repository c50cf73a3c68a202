/* fsdp_compare_main.c -- build/fsdp_compare A.csv B.csv: are two runs the same bits?
 *
 * Compares step, loss, grad_norm and lr of two loss files of build/fsdp_train as text, byte for
 * byte (nine significant digits tell every fp32 apart); the time column is ignored. Exit status 0:
 * identical, 1: they differ (the first difference is shown, with its distance in ULPs), 2: a file
 * cannot be compared. */
#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include "common/base/status.h"

enum { N_COLUMNS = 4, LINE_BYTES = 512, IDENTICAL = 0, DIFFERENT = 1, UNUSABLE = 2 };
static const char *const COLUMNS[N_COLUMNS] = {"step", "loss", "grad_norm", "lr"};
static const char HINT[] = "pass files written by --loss-csv";

/* The first four fields of a line, cut in place. false at a line that has fewer. */
static bool split(char *line, char *fields[N_COLUMNS])
{
    char *rest = line;
    for (int i = 0; i < N_COLUMNS; i++) {
        fields[i] = strsep(&rest, ",\n");
        if (!fields[i] || !*fields[i])
            return false;
    }
    return true;
}

/* The place of a float among all floats, in ascending order. */
static long long place(const char *text)
{
    float x = strtof(text, NULL);
    int bits;
    memcpy(&bits, &x, sizeof bits);
    return bits < 0 ? -(long long)(bits & 0x7fffffff) : bits;
}

static void report_difference(char *const a[N_COLUMNS], char *const b[N_COLUMNS], int column)
{
    double x = strtod(a[column], NULL), y = strtod(b[column], NULL);
    printf("first difference: step %s, %s: %s and %s", a[0], COLUMNS[column], a[column], b[column]);
    if (column == 1 || column == 2)
        printf(" (%lld ULPs, relative %.3g)", llabs(place(a[column]) - place(b[column])),
               fabs(x - y) / fabs(x));
    printf("\n");
}

static fsdp_status compare(FILE *fa, FILE *fb, int *verdict)
{
    char la[LINE_BYTES], lb[LINE_BYTES], *a[N_COLUMNS], *b[N_COLUMNS];
    long rows = 0;
    *verdict = DIFFERENT;
    for (;; rows++) {
        char *more_a = fgets(la, sizeof la, fa), *more_b = fgets(lb, sizeof lb, fb);
        if (!more_a && !more_b)
            break;
        if (!more_a || !more_b) {
            printf("first difference: one file ends after %ld steps\n", rows > 0 ? rows - 1 : 0);
            return FSDP_OK;
        }
        if (!split(la, a) || !split(lb, b))
            return fsdp_error(FSDP_EINVAL, HINT, "line %ld has less than %d columns", rows + 1,
                              N_COLUMNS);
        for (int i = 0; i < N_COLUMNS; i++)
            if (strcmp(a[i], b[i]) != 0) {
                report_difference(a, b, i);
                return FSDP_OK;
            }
    }
    if (rows < 2)
        return fsdp_error(FSDP_EINVAL, HINT, "the files have no steps to compare");
    *verdict = IDENTICAL;
    printf("identical bits: %ld steps, columns step, loss, grad_norm, lr\n", rows - 1);
    return FSDP_OK;
}

static fsdp_status run(int argc, char **argv, int *verdict)
{
    if (argc != 3)
        return fsdp_error(FSDP_EINVAL, "build/fsdp_compare A.csv B.csv",
                          "got %d arguments, expected two loss files", argc - 1);
    FILE *a = fopen(argv[1], "r"), *b = a != NULL ? fopen(argv[2], "r") : NULL;
    if (b == NULL)
        return fsdp_error(FSDP_EIO, HINT, "cannot read %s: %s", argv[a != NULL ? 2 : 1],
                          strerror(errno));
    return compare(a, b, verdict); /* the end of the process closes both */
}

int main(int argc, char **argv)
{
    int verdict = UNUSABLE;
    if (argc == 2 && strcmp(argv[1], "--help") == 0) {
        printf("build/fsdp_compare A.csv B.csv -- whether two files of --loss-csv hold the same "
               "bits\nexit status 0: identical, 1: they differ, 2: a file cannot be compared\n");
        return IDENTICAL;
    }
    if (run(argc, argv, &verdict) == FSDP_OK)
        return verdict;
    fsdp_error_print(stderr, 0, 0);
    return UNUSABLE;
}
