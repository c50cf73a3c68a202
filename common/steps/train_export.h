/* train_export.h -- write an engine's weights or optimizer states to files for other programs. Rank
 * 0 writes; the engine gathers one parameter at a time. */
#pragma once
#include "common/steps/train.h"

/* train_export -- collective: export the engine's weights to a directory, or the full states of the
 * optimizer to a file; all ranks fail or none.
 *   step    the next step to train
 *   errors  FSDP_EIO; any error of ckpt_check_finite. On an error nothing at path changes */
typedef enum train_exported { TRAIN_WEIGHTS, TRAIN_STATES } train_exported;
fsdp_status train_export(const train_setup *setup, train_exported what, const char *path,
                         int64_t step);
