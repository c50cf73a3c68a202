/* train_gpt2.c -- a stand-in for llm.c's trainer in tests/cli/llmc.sh: prints lines like that
 * trainer. It has no code of llm.c.
 *
 * It does not train: every step prints the loss STANDIN_LOSS. The times are made up: two cold
 * steps, then 20, 30, 40, 50 ms ... Output is not flushed, and the seventh step never ends, like a
 * run that takes too long. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(void)
{
    for (int step = 0; step < 41; step++) {
        if (step > 5) {
            alarm(60); /* the process ends in any case */
            pause();
        }
        printf("step %d: train loss %s (took %f ms)\n", step, getenv("STANDIN_LOSS"),
               step < 2 ? 9999.0 : 10.0 * step);
    }
    return 0;
}
