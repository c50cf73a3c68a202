/* plan.h -- memory and traffic of a job by formula, before anything is allocated. */
#pragma once
#include "common/comm/mesh.h"
#include "trainer/engine.h"

/* fsdp_plan -- bytes and collectives of one rank, for a job of the given shape: most of each
 * category of memory, and what world rank 0 sends in one optimizer step. config->fsdp.mesh, run.dev
 * and run.world are not read: any number of ranks can be planned from one process. */
fsdp_status fsdp_plan(const fsdp_engine_config *config, const mesh_shape *shape, memory_plan *mem,
                      traffic_plan *traffic);
/* fsdp_plan_export_bytes -- most of MEM_PARAMS_FULL while the full parameters are read: the fp32
 * masters of one unit; 0 when every rank has them all. */
fsdp_status fsdp_plan_export_bytes(const fsdp_engine_config *config, const mesh_shape *shape,
                                   size_t *bytes);
