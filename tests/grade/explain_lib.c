/* explain_lib.c -- see explain_lib.h. */
#include "tests/grade/explain_lib.h"
#include <string.h>
#include "common/observe/digest_file.h"

fsdp_status explain(grade *g, fsdp_status st,
                    fsdp_status (*again)(void *ctx, int which, FILE *rows), void *ctx)
{
    fsdp_status agreed = comm_agree(g->comm, st);
    fsdp_error_info why = *fsdp_error_get();
    if (agreed != FSDP_EINVAL)
        return agreed;
    static const char *const names[] = {"this run", "the other run"};
    digest_verdict v;
    FILE *const in[2] = {tmpfile(), tmpfile()};
    fsdp_status found = comm_agree(g->comm, in[0] && in[1] ? FSDP_OK : FSDP_EIO);
    for (int i = 0; i < 2 && found == FSDP_OK; i++)
        found = again(ctx, i, in[i]);
    if (found == FSDP_OK && g->rank == 0) {
        rewind(in[0]);
        rewind(in[1]);
        found = digest_bisect(in, names, NULL, &v);
    }
    const size_t used = strlen(why.what);
    if (found == FSDP_OK && g->rank == 0)
        snprintf(why.what + used, sizeof why.what - used, "; what differs first: %s",
                 *v.where ? v.where
                          : "nothing, if the host waits for the device: an event may be missing");
    for (int i = 0; i < 2; i++)
        if (in[i])
            fclose(in[i]);
    fsdp_error_set(&why);
    return agreed;
}
