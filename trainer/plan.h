/* plan.h -- memory and traffic of a job by formula, before anything is allocated. */
#pragma once
#include "common/comm/mesh.h"
#include "trainer/fsdp_engine.h"

/* fsdp_plan -- memory and traffic of a job of the given shape. Any number of ranks can be planned
 * from one process.
 *   config   fsdp.mesh, run.dev and run.world are not read
 *   mem      most bytes of each category on any rank
 *   traffic  collectives of one optimizer step, and the bytes that world rank 0 sends
 *   errors   FSDP_ENOMEM, those of fsdp_lay_out and strategy_fill
 *   source   [ZeRO §7] [FSDP §3.2] */
fsdp_status fsdp_plan(const fsdp_engine_config *config, const mesh_shape *shape, memory_plan *mem,
                      traffic_plan *traffic);
/* fsdp_plan_export_bytes -- most bytes of MEM_PARAMS_FULL while the engine's read_params runs: the
 * fp32 masters of one unit, or 0 if every rank has them all.
 *   errors   as fsdp_plan */
fsdp_status fsdp_plan_export_bytes(const fsdp_engine_config *config, const mesh_shape *shape,
                                   size_t *bytes);
