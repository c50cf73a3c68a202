/* npu_view.h -- the address, type, shape and strides of an array, for aclnn_call.h. C and C++.
 *
 *     const npu_view w = view_2d(a->w, ACL_FLOAT, rows, cols);
 *     TRY(aclnn_mm(s, out, x, view_transposed(w)));        out = x w^T
 *
 * Each call runs both phases of one operator: aclnnXxxGetWorkspaceSize, then aclnnXxx on ACL's
 * stream, accel_queue_of(s). The tensors (aclTensor) that describe views live only during the call.
 * The workspace is allocated by device_alloc(s, MEM_OTHER, bytes, label, &workspace) and freed by
 * device_free(s, workspace) after the second phase was issued; both are in order of s. A workspace
 * of 0 bytes is NULL and takes no memory. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include "acl/acl_base.h"
#include "common/base/status.h"

EXTERN_C_BEGIN

enum { NPU_MOST_DIMS = 4 };

/* Element (i,j,...) is at ptr + (i * stride[0] + j * stride[1] + ...) elements. */
typedef struct npu_view {
    const void *ptr; /* written if the view is an output */
    aclDataType type;
    int n_dims;
    int64_t dim[NPU_MOST_DIMS], stride[NPU_MOST_DIMS];
} npu_view;

/* view_rows -- a matrix whose rows begin `stride` elements apart. view_1d, view_2d, view_3d -- a
 * dense array. */
static inline npu_view view_rows(const void *ptr, aclDataType type, size_t rows, size_t cols,
                                 size_t stride)
{
    const npu_view v = {ptr, type, 2, {(int64_t)rows, (int64_t)cols}, {(int64_t)stride, 1}};
    return v;
}
static inline npu_view view_3d(const void *ptr, aclDataType type, size_t a, size_t b, size_t c)
{
    const int64_t A = (int64_t)a, B = (int64_t)b, C = (int64_t)c;
    const npu_view v = {ptr, type, 3, {A, B, C}, {B * C, C, 1}};
    return v;
}
static inline npu_view view_2d(const void *ptr, aclDataType type, size_t rows, size_t cols)
{
    return view_rows(ptr, type, rows, cols, cols);
}
static inline npu_view view_1d(const void *ptr, aclDataType type, size_t elems)
{
    const npu_view v = {ptr, type, 1, {(int64_t)elems}, {1}};
    return v;
}
static inline npu_view view_f32(const void *ptr, size_t elems)
{
    return view_1d(ptr, ACL_FLOAT, elems);
}
/* view_transposed -- the transposed matrix, by exchanging strides; nothing is moved. */
static inline npu_view view_transposed(npu_view v)
{
    npu_view t = v;
    t.dim[0] = v.dim[1], t.dim[1] = v.dim[0];
    t.stride[0] = v.stride[1], t.stride[1] = v.stride[0];
    return t;
}

EXTERN_C_END
