/* explain_lib.c -- see explain_lib.h. */
#include "tests/grade/explain_lib.h"
#include <string.h>
#include "common/observe/digest_file.h"

fsdp_status expect_same_run(const char *what, const run_result *got, const run_result *want,
                            size_t n_steps)
{
    const size_t n_params = got->params && want->params ? want->param_elems : 0;
    TRY(expect_f32(WHAT("%s: losses of the evaluation before step", what), got->eval, want->eval,
                   n_steps));
    TRY(expect_f32(WHAT("%s: loss of step", what), got->loss, want->loss, n_steps));
    TRY(expect_f32(WHAT("%s: norm of step", what), got->norm, want->norm, n_steps));
    return expect_f32(WHAT("%s: weight", what), got->params, want->params, n_params);
}

/* The rest of the first line in `said` that begins with `head`, cut off in place; or NULL. */
static char *line_after(char *said, const char *head)
{
    char *line = strstr(said, head);
    if (!line)
        return NULL;
    line += strlen(head);
    line[strcspn(line, "\n")] = '\0';
    return line;
}

/* Find the first difference between the digests of both runs, from the current positions. */
static fsdp_status compare_digests(FILE *const in[2], char *said, size_t said_bytes)
{
    static const char *const names[] = {"this run", "the other run"};
    bool differ;
    FILE *out = fmemopen(said, said_bytes, "w");
    if (!out)
        return FSDP_EIO;
    fsdp_status status = digest_bisect(in, names, out, &differ);
    fclose(out);
    return status;
}

fsdp_status explain(grade *g, fsdp_status st,
                    fsdp_status (*again)(void *ctx, int which, FILE *rows), void *ctx)
{
    fsdp_status agreed = comm_agree(g->comm, st);
    fsdp_error_info why = *fsdp_error_get();
    if (agreed != FSDP_EINVAL)
        return agreed;
    char said[2048] = "";
    FILE *const in[2] = {tmpfile(), tmpfile()};
    fsdp_status found = comm_agree(g->comm, in[0] && in[1] ? FSDP_OK : FSDP_EIO);
    for (int i = 0; i < 2 && found == FSDP_OK; i++)
        found = again(ctx, i, in[i]);
    if (found == FSDP_OK && g->rank == 0) {
        rewind(in[0]);
        rewind(in[1]);
        found = compare_digests(in, said, sizeof said);
    }
    const size_t used = strlen(why.what);
    const char *first = line_after(said, "first difference: ");
    if (found == FSDP_OK && g->rank == 0)
        snprintf(why.what + used, sizeof why.what - used, "; what differs first: %s",
                 first ? first
                       : "nothing, if the host waits for the device: an event may be missing");
    for (int i = 0; i < 2; i++)
        if (in[i])
            fclose(in[i]);
    fsdp_error_set(&why);
    return agreed;
}
