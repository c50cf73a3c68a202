/* explain_lib.c -- see explain_lib.h. */
#include "tests/grade/explain_lib.h"
#include <string.h>
#include "common/observe/digest_file.h"

/* On rank 0: the first difference in words. */
static fsdp_status first_difference(FILE *const in[2], char text[DIGEST_TEXT_BYTES])
{
    static const char *const names[] = {"this run", "the other run"};
    digest_file files[2] = {{0}};
    digest_verdict v = {0};
    fsdp_status st = FSDP_OK;
    for (int i = 0; i < 2 && st == FSDP_OK; i++) {
        rewind(in[i]);
        st = digest_file_read(in[i], names[i], &files[i]);
    }
    if (st == FSDP_OK)
        st = digest_bisect(&files[0], &files[1], &v);
    if (st == FSDP_OK && v.a)
        digest_describe(&v, text);
    else if (st == FSDP_OK)
        snprintf(text, DIGEST_TEXT_BYTES,
                 "nothing, if the host waits for the device: an event may be missing");
    digest_file_free(&files[0]);
    digest_file_free(&files[1]);
    return st;
}

fsdp_status explain(grade *g, fsdp_status st,
                    fsdp_status (*again)(void *ctx, int which, FILE *rows), void *ctx)
{
    fsdp_status agreed = comm_agree(g->comm, st);
    fsdp_error_info why = *fsdp_error_get();
    if (agreed != FSDP_EINVAL)
        return agreed;
    char text[DIGEST_TEXT_BYTES] = "";
    FILE *const in[2] = {tmpfile(), tmpfile()};
    fsdp_status found = comm_agree(g->comm, in[0] && in[1] ? FSDP_OK : FSDP_EIO);
    for (int i = 0; i < 2 && found == FSDP_OK; i++)
        found = again(ctx, i, in[i]);
    if (found == FSDP_OK && g->rank == 0)
        (void)first_difference(in, text);
    for (int i = 0; i < 2; i++)
        if (in[i])
            fclose(in[i]);
    const size_t used = strlen(why.what);
    if (*text)
        snprintf(why.what + used, sizeof why.what - used, "; what differs first: %s", text);
    fsdp_error_set(&why);
    return agreed;
}
