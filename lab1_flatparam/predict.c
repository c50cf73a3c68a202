/* predict.c -- task 1.0 (unscored): predict what four collectives leave behind before you run any.
 *
 * There are W = 3 ranks. Before each call rank r holds x = {10*r + 1, 10*r + 2, 10*r + 3}. */
#include "lab1_flatparam/flat_param.h"

const predict_answer *predict_answers(int *n_answers)
{
    static const predict_answer answers[] = {
        /* SOLUTION BEGIN 1.0 */
        {"broadcast of x from rank 1: x[0] on rank 2", 11},
        {"all-gather of x: element 7 on rank 0, counted from 0", 22},
        {"all-gather of x: length on every rank", 9},
        {"reduce-scatter (sum) of x, one element each: the element on rank 1", 36},
        {"reduce-scatter (sum) of x: length on every rank", 1},
        {"all-reduce (sum) of x: x[2] on rank 0", 39},
        {"all-reduce is 1 = all-gather, then broadcast; 2 = reduce-scatter, then all-gather", 2},
        {"elements that one rank sends in a ring all-gather of 3 per rank", 6},
        /* SOLUTION END 1.0 */
    };
    *n_answers = (int)(sizeof answers / sizeof *answers);
    return answers;
}
