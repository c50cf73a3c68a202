/* native_cases_lib.h -- checks of the transport that the device named by FSDP_DEVICE brings along;
 * for test_cuda_nccl and test_npu_hccl. */
#pragma once
#include "tests/unit/comm_cases_lib.h"

typedef struct native_case {
    const char *name;
    void (*run)(comm_fixture *);
} native_case;

void native_case_name(comm_fixture *f);
void native_case_link(comm_fixture *f);
void native_case_split(comm_fixture *f);
void native_case_split_uneven(comm_fixture *f);
void native_case_drawn(comm_fixture *f);
void native_case_watch(comm_fixture *f);
void native_case_time(comm_fixture *f);
void native_case_one_call(comm_fixture *f);
void native_case_one_thread(comm_fixture *f);

/* The cases that every such transport must pass. */
#define NATIVE_CASES                                                                               \
    {"name", native_case_name}, {"link", native_case_link}, {"all_gather", comm_case_all_gather},  \
        {"broadcast", comm_case_broadcast}, {"all_to_all", comm_case_all_to_all},                  \
        {"split", native_case_split}, {"split_uneven", native_case_split_uneven},                  \
        {"drawn", native_case_drawn}, {"watch", native_case_watch}, {"time", native_case_time},    \
        {"one_call", native_case_one_call}, {"one_thread", native_case_one_thread},                \
        {"reduce_scatter", comm_case_reduce_scatter},                                              \
        {"all_gather_pieces", comm_case_all_gather_pieces},                                        \
        {"reduce_scatter_pieces", comm_case_reduce_scatter_pieces},                                \
    {                                                                                              \
        "all_reduce", comm_case_all_reduce                                                         \
    }

/* native_cases_run -- the body of main: runs all cases over the transport, and prints like
 * comm_test_run and comm_test_close. */
int native_cases_run(const native_case *cases, int n);
