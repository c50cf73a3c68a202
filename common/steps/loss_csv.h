/* loss_csv.h -- the loss file: one row per step, written by rank 0. A resumed run keeps the rows of
 * the steps before its first step.
 *
 *   loss_csv_open -> (loss_csv_row ... -> loss_csv_save) ... -> atomic_file_commit
 *
 * The file appears at every save and at the end; see atomic_file.h. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "common/base/atomic_file.h"

typedef struct loss_row {
    int64_t step;
    float loss, norm;
    double lr, ms;
} loss_row;

/* loss_csv_open -- begin a new file with the rows of the old file for steps before `step`.
 *   errors  FSDP_EIO: path cannot be written, or an old file there cannot be read */
fsdp_status loss_csv_open(atomic_file *csv, const char *path, int64_t step);
/* loss_csv_row -- append a row and flush it. errors: FSDP_EIO. */
fsdp_status loss_csv_row(atomic_file *csv, const loss_row *row);
/* loss_csv_save -- publish the rows so far, for the checkpoint of next_step; if goes_on, open a new
 * file with these rows. Do nothing if path is a device or a pipe: its rows are visible at once. */
fsdp_status loss_csv_save(atomic_file *csv, const char *path, int64_t next_step, bool goes_on);
