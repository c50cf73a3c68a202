/* cores.h -- the cores that this process may run on. */
#pragma once

/* cores_allowed -- their number; 1 when the system does not say. */
int cores_allowed(void);
