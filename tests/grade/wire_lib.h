/* wire_lib.h -- messages between the judge (judge.c) and its workers (worker.c), in memory and on a
 * socket. Both sides run on one machine, so nothing is converted.
 *
 *   wire_begin -> wire_put_* -> wire_send        wire_receive -> wire_get_* -> wire_ended */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include "common/base/status.h"

enum { WIRE_MOST_BYTES = 1 << 24 };

typedef struct wire {
    unsigned char *bytes; /* owned; wire_free */
    size_t used, room;
    size_t read;  /* of `used`: what was read */
    bool is_torn; /* more was read than there is: numbers and floats read then are 0 */
} wire;

void wire_free(wire *w);
void wire_begin(wire *w);
void wire_put(wire *w, long long x);
void wire_put_bytes(wire *w, const void *x, size_t bytes);
void wire_put_floats(wire *w, const float *x, size_t n);
/* wire_put_rows -- n, and n things of row_bytes each. */
void wire_put_rows(wire *w, const void *rows, size_t n, size_t row_bytes);
void wire_put_text(wire *w, const char *text);

long long wire_get(wire *w);
void wire_get_bytes(wire *w, void *x, size_t bytes);
void wire_get_floats(wire *w, float *x, size_t n);
/* wire_get_rows -- what wire_put_rows has put: n, or 0 if there are more than `most`. */
size_t wire_get_rows(wire *w, void *rows, size_t most, size_t row_bytes);
/* wire_get_text -- a text of wire_put_text, cut to `room` bytes with its zero. */
void wire_get_text(wire *w, char *text, size_t room);
/* wire_get_below -- a number; if it is not in 0 ... end-1, the message counts as torn, and 0. */
size_t wire_get_below(wire *w, size_t end);
/* wire_ended -- FSDP_OK if everything was read and nothing was missing. */
fsdp_status wire_ended(const wire *w);

/* wire_send, wire_receive -- one message. errors: FSDP_EIO: the other side has ended, or sends more
 * than WIRE_MOST_BYTES. */
fsdp_status wire_send(const wire *w, int socket);
fsdp_status wire_receive(wire *w, int socket);

/* wire_address -- the socket in a folder whose path may be longer than sun_path. The address is
 * valid while the returned descriptor of the folder is open; -1: errno says why. */
struct sockaddr_un;
int wire_address(const char *folder, struct sockaddr_un *out);
