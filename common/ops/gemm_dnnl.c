/* gemm_dnnl.c -- oneDNN's sgemm as a single-threaded gemm. See cpu_kernels.h.
 *
 * oneDNN cuts a product by the number of OpenMP threads it may use, along k too, which changes the
 * sums. So it gets one thread, set in the calling thread around every call; being inside a parallel
 * region of one thread is not enough (measured: other bits for m = 1). Which OpenMP runtime that
 * is: a program linked with clang's libomp serves libdnnl.so's calls too, because libomp defines
 * libgomp's symbol versions and comes first; tests/unit/test_ops.c checks it.                    */
#include "common/ops/cpu_kernels.h"

#ifdef FSDP_HAVE_DNNL
#include <dnnl.h>
#include <omp.h>

fsdp_status gemm_dnnl(const gemm_args *g)
{
    const int n_threads = omp_get_max_threads();
    omp_set_num_threads(1);
    const dnnl_status_t status =
        dnnl_sgemm(g->trans_a ? 'T' : 'N', g->trans_b ? 'T' : 'N', (dnnl_dim_t)g->m,
                   (dnnl_dim_t)g->n, (dnnl_dim_t)g->k, 1.0f, g->a, (dnnl_dim_t)g->lda, g->b,
                   (dnnl_dim_t)g->ldb, g->accumulate ? 1.0f : 0.0f, g->c, (dnnl_dim_t)g->ldc);
    omp_set_num_threads(n_threads);
    if (status != dnnl_success)
        return fsdp_error(FSDP_ENOMEM, "free memory, or pass --ops portable",
                          "dnnl_sgemm m %zu n %zu k %zu: status %d, expected 0", g->m, g->n, g->k,
                          (int)status);
    return FSDP_OK;
}
#else
fsdp_status gemm_dnnl(const gemm_args *g)
{
    return gemm_portable(g);
}
#endif
