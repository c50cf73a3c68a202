/* uncaught.h -- exceptions of C++ libraries (oneDNN), which C code cannot catch. */
#pragma once

/* uncaught_report -- from now on an uncaught exception ends the program with a message, a hint and
 * status 1, in place of abort(). Without a C++ library nothing changes. Call it in main(). */
void uncaught_report(void);
