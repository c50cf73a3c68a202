/* matrix_table_lib.c -- see matrix_table_lib.h. */
#include "tests/equivalence/matrix_table_lib.h"
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include "common/base/status.h"

const char MATRIX_BASE[] = "--synthetic 4096 --steps 4 --lr 3e-3 --warmup-steps 0 --check-order";

/* clang-format off */
const matrix_axis MATRIX_AXES[] = {
    {"reduction", MATRIX_RECIPE, {"--reduction canonical", "--reduction fast"}},
    {"strategy", MATRIX_TRIPLES, {"--sharding full", "--sharding grad-op", "--sharding none",
                                  "--sharding hybrid --fsdp-size %G", "--parallel ddp", "--sharding optimizer"}},
    {"layout", MATRIX_TRIPLES, {"--layout flat", "--layout per-param"}},
    {"prefetch", MATRIX_TRIPLES, {"--prefetch none", "--prefetch backward", "--prefetch backward-post",
                                  "--prefetch forward", "--prefetch both"}},
    {"recompute", MATRIX_TRIPLES, {"", "--gradient-checkpointing", "--gradient-checkpointing=attention,from:1",
                                   "--gradient-checkpointing=mlp,every:2", "--gradient-checkpointing=from:1"}},
    {"loss", MATRIX_FAST_RECIPE, {"", "--chunk-loss=5", "--chunk-loss=19", "--chunk-loss"}},
    {"no_sync", MATRIX_TRIPLES, {"", "--no-sync"}},
    {"reshard", 0, {"", "--reshard-after step", "--reshard-to %d"}},
    {"offload", 0, {"", "--optimizer-offload --offload-piece 0.02", "--cpu-offload --offload-piece 0.02", "--cpu-offload"}},
    {"freeze", MATRIX_RECIPE, {"", "--freeze transformer.w*,*.h.0.*,*.h.1.attn.*,*.h.1.ln_1.*", "--freeze *.bias",
                               "--freeze *.mlp.*,lm_head.weight"}},
    {"wrap", 0, {"--wrap block", "--wrap sub-block", "--wrap size:20000", "--wrap model"}},
    {"limit", 0, {"--limit-all-gathers 2", "--limit-all-gathers 1"}},
    {"bucket", 0, {"--bucket block", "--bucket 60000", "--bucket 1000000000"}},
    {"parameters", MATRIX_RECIPE, {"--param-dtype fp32", "--param-dtype bf16"}},
    {"sums", MATRIX_RECIPE, {"--reduce-dtype fp32", "--reduce-dtype bf16"}},
    {"optimizer", MATRIX_RECIPE, {"--optimizer adamw", "--optimizer sgd --lr 0.5", "--optimizer sgd --momentum 0.9 --lr 0.1",
                                  "--optimizer sgd --momentum 0.9 --nesterov --weight-decay 0.1 --lr 0.1",
                                  "--optimizer adadelta --lr 1"}},
    {"schedule", MATRIX_RECIPE, {"", "--lr-schedule linear", "--lr-schedule step --lr-step-size 2", "--lr-schedule constant"}},
    {"clip", MATRIX_RECIPE, {"--clip-grad 0.5", "--clip-grad 0"}},
    {"batch", 0, {"--batch-size 2 --grad-accum 4", "--batch-size 4 --grad-accum 2", "--batch-size 1 --grad-accum 8",
                  "--batch-size 8 --grad-accum 1", "--batch-size 2 --grad-accum 3"}},
    {"model", MATRIX_RECIPE, {"--seq-len 16", "--n-layer 3 --d-model 34 --n-head 2 --vocab-size 131 --seq-len 13", "%M",
                              "--model llama --n-head 6 --n-kv-head 2 --d-model 36 --seq-len 14",
                              "--model mnist --size tiny"}},
    {"blocks", MATRIX_RECIPE, {"--tp-blocks 1", "--tp-blocks 2"}},
    {"tp", 0, {"--tp 1", "--tp 2", "--tp 2 --sequence-parallel"}},
    {"evaluation", MATRIX_RECIPE, {"", "--val-data LICENSE --eval-every 1"}},
    {"maths", MATRIX_RECIPE, {"--ops fast", "--ops portable"}},
    {"digests", 0, {"", "--digests %Tdigests"}},
    {"files", 0, {"", "--seed 2 --init-from %Tweights --export %Texport", "--export %Texport --export-init %Tinit",
                   "--save %Tsaved --stop-after 2", "--save %Tsaved --save-every 1 --save-async"}},
    {"transport", MATRIX_COSTLY, {"--comm auto", "--comm shm", "--comm mpi"}},
    {"host", 0, {"", "FSDP_ASYNC_COMPUTE=1", "FSDP_SCHEDULE=%S", "FSDP_HOST_SYNC=1"}},
    {"memory", 0, {"", "FSDP_DEBUG_FILL=1"}},
    {"threads", 0, {"OMP_NUM_THREADS=1", "OMP_NUM_THREADS=2"}},
    {0}};
/* clang-format on */

static int smallest_divisor(int world_size)
{
    for (int s = 2; s < world_size; s++)
        if (world_size % s == 0)
            return s;
    return 2;
}

/* Properties of a place. A row of REFUSALS names what the place must have, and NO(...) what it must
 * not have. */
enum {
    GROUPS = 1,      /* one or several ranks can be divided into groups of %G */
    NEAR = 2,        /* a shard group of all ranks can be divided into several groups of %d */
    NEAR_GROUPS = 4, /* a shard group can also be divided into groups of %G */
    RANKS = 8,       /* more than one */
    PORTABLE = 16,
    MPI = 32,
    HOST_MEMORY = 64,
    EVEN = 128,           /* the ranks can be divided into pairs */
    NEAR_IN_PAIRS = 256,  /* and then a shard group can be divided into several groups of %d */
    GROUP_IN_PAIRS = 512, /* or into shard groups of %G */
    BLOCKS = 1024,        /* the device has operations for blocks of a vocabulary */
    ALL = 2047
};
#define NO(facts) ((facts) << 11)

bool matrix_is_refused_at(const matrix_refusal *r, const matrix_place *at)
{
    const int w = at->world_size, near = smallest_divisor(w), group = matrix_group_size(w);
    const int has = (w % group == 0 ? GROUPS : 0) | (near < w && w % near == 0 ? NEAR : 0) |
                    (near < group && group % near == 0 ? NEAR_GROUPS : 0) | (w > 1 ? RANKS : 0) |
                    (at->has_portable ? PORTABLE : 0) | (at->no_mpi ? 0 : MPI) |
                    (strcmp(at->device, "cpu") == 0 ? HOST_MEMORY : 0) | (w % 2 == 0 ? EVEN : 0) |
                    (near < w / 2 && w / 2 % near == 0 ? NEAR_IN_PAIRS : 0) |
                    (w / 2 % group == 0 && w > 2 ? GROUP_IN_PAIRS : 0) |
                    (at->has_portable ? BLOCKS : 0);
    return (r->where & ~(has | NO(ALL & ~has))) == 0;
}

const matrix_refusal MATRIX_REFUSALS[] = {
    {"--*-offload*", NULL, "pass --device separate", HOST_MEMORY},
    {"--*-offload*", "--sharding none", "a --sharding that shards", NO(HOST_MEMORY)},
    {"--*-offload*", "--parallel ddp", "a --sharding that shards", NO(HOST_MEMORY)},
    {"--sharding hybrid*", NULL, "a shard group's size that divides the number", NO(GROUPS)},
    {"--ops portable", NULL, "--ops fast", NO(PORTABLE)},
    {"--comm mpi", NULL, "fsdp_run", NO(MPI)},
    {"--reshard-to %d", NULL, "pass the ranks of a host", NO(NEAR)},
    {"--reshard-to %d", "--sharding hybrid*", "pass the ranks of a host", NEAR | NO(NEAR_GROUPS)},
    {"--reshard-to %d", "--sharding grad-op", "--sharding full or hybrid", NEAR},
    {"--reshard-to %d", "--sharding none", "--sharding full or hybrid", NEAR},
    {"--reshard-to %d", "--sharding optimizer", "--sharding full or hybrid", NEAR},
    {"--reshard-to %d", "--parallel ddp", "--sharding full or hybrid", NEAR},
    {"--reshard-to %d", "--reshard-after step",
     "--sharding full or hybrid, and --reshard-after use", NEAR},
    {"--reshard-after step", "--sharding none", "leave --reshard-after step out", 0},
    {"--reshard-after step", "--parallel ddp", "leave --reshard-after step out", 0},
    {"--no-sync", "--batch-size 2 --grad-accum 3", "power of two", 0},
    {"--sharding optimizer", "--batch-size 2 --grad-accum 3", "power of two", 0},
    {"--no-sync=replicas", NULL, "--sharding hybrid --fsdp-size N", 0},
    {"--no-sync=replicas", "--sharding hybrid*", "--reduction fast and", RANKS | GROUPS},
    {"--gradient-checkpointing=block,mlp", NULL, "such as mlp,from:0", 0},
    {"--gradient-checkpointing=from:0,from:1", NULL, "such as mlp,from:0", 0},
    {"--gradient-checkpointing=mlp,", NULL, "such as mlp,from:0", 0},
    {"--gradient-checkpointing=from:+1", NULL, "such as mlp,from:0", 0},
    {"--layout per-param", "--parallel ddp", "or leave --layout per-param out", 0},
    {"--no-sync=replicas", "--parallel ddp", "or leave --no-sync=replicas out", 0},
    {"--gradient-checkpointing=from:99", NULL, "such as mlp,from:0", 0},
    {"--gradient-checkpointing=every:99", NULL, "some of blocks 0 to 1", 0},
    {"--gradient-checkpointing=every:2,from:1", "--n-layer 1", "some of blocks 0 to 0", 0},
    {"--gradient-checkpointing=every:2,from:2", "--n-layer 3", "such as mlp,from:0", 0},
    {"--gradient-checkpointing=heads", NULL, "expected auto, or block", 0},
    {"--freeze nothing", NULL, "transformer.", 0},
    {"--model mnist*", NULL, "has no operation", NO(PORTABLE)}, /* an NPU: no convolution */
    {"--model mnist*", "--gradient-checkpointing=attention*", "leave attention and mlp out", 0},
    {"--model mnist*", "--gradient-checkpointing=mlp,every*", "leave attention and mlp out", 0},
    {"--model mnist*", "--freeze transformer*", "conv1.weight", 0},
    {"--model mnist*", "--freeze *.mlp*", "conv1.weight", 0},
    {"--model mnist*", "--seed 2*", NULL, 0}, /* the seed orders images and drops elements */
    {"--model mnist*", "--val-data LICENSE*", "MNIST's files", PORTABLE}, /* a text */
    {"--model llama*", "--freeze transformer*", "model.", 0},             /* GPT-2's names */
    {"--model llama*", "--freeze [*].bias", "model.", 0},                 /* the model has none */
    {"--tp 2*", NULL, "pass a --tp that divides", NO(EVEN)},
    {"--tp 2*", "--tp-blocks 1", "--tp-blocks with a multiple of --tp", EVEN},
    {"--tp 2*", "--parallel ddp", "pass --parallel fsdp, or leave", EVEN},
    {"--tp 2*", "--sharding hybrid*", "a shard group's size that divides",
     EVEN | GROUPS | NO(GROUP_IN_PAIRS)},
    {"--tp 2*", "--reshard-to %d", "pass the ranks of a host", EVEN | NEAR | NO(NEAR_IN_PAIRS)},
    {"--tp 2*", "--model mnist*", "leave the option out", EVEN},
    {"--tp 2*", "*--seq-len 13", "a --seq-len that --tp-blocks divides", EVEN},
    {"--tp 2*", "%M", NULL, EVEN},
    {"--tp-blocks 2", NULL, "npu has no operation", NO(BLOCKS)},
    {"--tp-blocks 2", "--model mnist*", "leave the option out", 0},
    {"--tp-blocks 2", "*--seq-len 13", "a --seq-len that --tp-blocks divides", 0},
    {"--tp-blocks 2", "%M", NULL, 0}, /* odd widths and lengths */
    {"--digest-values 0:h.0", NULL, "pass --digests FILE", 0},
    {"--parallel single", NULL, "--parallel single without a launcher", RANKS},
    {"--sharding hybrid --fsdp-size 1", NULL, "--sharding none, which replicates", RANKS},
    {"--comm self", NULL, "leave --comm out", RANKS},
    {"--sharding hybrid", NULL, "pass --fsdp-size N", 0},
    {"--sharding [!h]*", "--fsdp-size 2", "pass --sharding hybrid", 0},
    {"--reduction canonical", "--batch-size 3", "--batch-size 1", 0},
    {"--data LICENSE", NULL, "leave --data out", 0}, /* MATRIX_BASE has --synthetic */
    {"--resume auto", NULL, "pass --save DIR", 0},
    {"--save-async", NULL, "pass --save DIR", 0},
    {0}};

int matrix_group_size(int world_size)
{
    for (int s = world_size / 2; s > 1; s--)
        if (world_size % s == 0)
            return s;
    return world_size == 1 ? 1 : 2;
}

/* Unusual shapes: heads of odd widths, and sequence lengths that are no multiple of a kernel's
 * block. */
static int write_model(int number, char *out, int chars)
{
    const uint64_t x = ((uint64_t)number * 0x9E3779B97F4A7C15u) >> 8;
    const int layers = 2 + (int)(x % 2), heads = 1 + (int)(x / 3 % 4);
    const int width = 3 + (int)(x / 12 % 15);
    return snprintf(out, (size_t)chars,
                    "--n-layer %d --n-head %d --d-model %d --vocab-size %d --seq-len %d", layers,
                    heads, heads * width, 128 + (int)(x / 180 % 129), 3 + (int)(x / 23220 % 22));
}

static int write_mark(char mark, const matrix_place *at, int number, const char *folder, char *out,
                      int chars)
{
    switch (mark) {
    case 'W':
        return snprintf(out, (size_t)chars, "%d", at->world_size);
    case 'G':
        return snprintf(out, (size_t)chars, "%d", matrix_group_size(at->world_size));
    case 'd':
        return snprintf(out, (size_t)chars, "%d", smallest_divisor(at->world_size));
    case 'S':
        return snprintf(out, (size_t)chars, "%d", number);
    case 'T':
        return snprintf(out, (size_t)chars, "%s/%d-", folder, number);
    default:
        FSDP_ASSERT_EQ(mark, 'M');
        return write_model(number, out, chars);
    }
}

void matrix_write(const char *words, const matrix_place *at, int number, const char *folder,
                  char *out, int chars)
{
    int used = 0;
    for (const char *c = words; *c; c++) {
        if (*c == '%')
            used += write_mark(*++c, at, number, folder, out + used, chars - used);
        else
            out[used++] = *c;
        FSDP_ASSERT(used < chars);
    }
    out[used] = '\0';
}
