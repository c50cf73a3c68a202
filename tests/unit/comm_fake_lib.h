/* comm_fake_lib.h -- a transport on top of any other. Like a transport that moves only device
 * memory, it cannot carry the calls of hosts. For test_comm and comm_faults.
 *
 *   comm_put_over(c, &fake_transport, ...) -> everything as before -> fake_count.host_calls is 0 */
#pragma once
#include "common/comm/comm_impl.h"

extern const comm_transport fake_transport;

/* host_calls: exchanges for a waiting host, which the transport refuses; exchanges: passed on to
 * the group below; splits: groups split off another; open_groups: groups that are open. */
typedef struct fake_figures {
    int host_calls, exchanges, splits, open_groups;
} fake_figures;
extern fake_figures fake_count;
