/* native_cases_lib.h -- checks of the transport that the device named by FSDP_DEVICE brings along;
 * for test_cuda_nccl and test_npu_hccl. */
#pragma once
#include "tests/unit/comm_cases_lib.h"

void native_case_drawn(comm_fixture *f);
void native_case_one_thread(comm_fixture *f);

/* native_case_under -- runs a case in a new group of all ranks, with this environment variable. */
void native_case_under(comm_fixture *f, const char *variable, const char *value,
                       void (*run)(comm_fixture *));

/* native_cases_run -- the body of main: runs the cases of every such transport and these n cases
 * over it, and prints like comm_test_run and comm_test_close. */
int native_cases_run(const comm_case *cases, size_t n);
