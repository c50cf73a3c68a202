/* comm_fake_lib.h -- a transport on top of any other that cannot carry what hosts settle, as one
 * that moves device memory only; for test_comm and comm_faults.
 *
 *   comm_put_over(c, &fake_transport, ...) -> everything as before -> fake_count.host_calls is 0 */
#pragma once
#include "common/comm/comm_impl.h"

extern const comm_transport fake_transport;

/* Exchanges that it was given for a waiting host, which it refuses; those that it has passed on;
 * groups of it that were split off another; groups that are open. */
typedef struct fake_figures {
    int host_calls, exchanges, splits, open_groups;
} fake_figures;
extern fake_figures fake_count;
