/* comm_host.c -- calls in which only the hosts of a group take part.
 *
 * Host calls are collectives too: the control group numbers and compares them. */
#include <stdlib.h>
#include <string.h>
#include "common/comm/comm_impl.h"

fsdp_status comm_host_gather(comm *c, const char *label, const void *mine, size_t bytes, void **all)
{
    device_host_call_begin();
    fsdp_status status = transport_gather(transport_control(c->data), label, mine, bytes, all);
    device_host_call_end();
    return status;
}

fsdp_status comm_agree(comm *c, fsdp_status mine)
{
    device_host_call_begin();
    fsdp_status status = transport_agree(transport_control(c->data), mine);
    device_host_call_end();
    return status;
}

typedef struct same_text {
    uint64_t hash, length;
    char text[240]; /* for the message; longer texts are cut */
} same_text;

fsdp_status comm_same(comm *c, const char *what, const char *text)
{
    const comm_team *team = &c->team;
    same_text mine = {.hash = hash_bytes(text, strlen(text)), .length = strlen(text)};
    snprintf(mine.text, sizeof mine.text, "%s", text);
    void *texts;
    fsdp_status status = comm_host_gather(c, "comm_same", &mine, sizeof mine, &texts);
    const same_text *all = texts;
    for (int r = 1; status == FSDP_OK && r < team->size; r++) {
        if (all[r].hash == all[0].hash && all[r].length == all[0].length)
            continue;
        status = fsdp_error(FSDP_EMISMATCH, "start every rank with the same options and files",
                            "%s differs: rank %d has '%s', rank %d has '%s'", what,
                            comm_world_rank(team, r), all[r].text, team->first, all[0].text);
    }
    free(texts);
    return status;
}
