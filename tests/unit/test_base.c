/* test_base.c -- the base of common/base: error records, sizes, tree sums. */
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "common/base/bytes_copy.h"
#include "common/base/dtype.h"
#include "common/base/philox.h"
#include "common/sum/tree_sum.h"
#include "tests/unit/unit_lib.h"

static float bits_to_float(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static void assert_same_bits(float a, float b)
{
    assert_memory_equal(&a, &b, sizeof a);
}

/* ---- status.c ------------------------------------------------------------------------------ */

static void assert_commands(const char *called, const char *expected)
{
    char *const name = program_invocation_name, *const short_name = program_invocation_short_name;
    program_invocation_name = program_invocation_short_name = (char *)called;
    if (strrchr(called, '/') != NULL)
        program_invocation_short_name = strrchr(called, '/') + 1;
    fsdp_text text = fsdp_commands("build/fsdp_run -n 2 build/fsdp_train, not build/tests");
    program_invocation_name = name;
    program_invocation_short_name = short_name;
    assert_string_equal(text.text, expected);
}

TEST(test_commands_are_those_of_the_program_as_called)
{
    assert_commands("fsdp_train", "fsdp_run -n 2 fsdp_train, not build/tests");
    assert_commands("/opt/a b/fsdp_run",
                    "/opt/a b/fsdp_run -n 2 /opt/a b/fsdp_train, not build/tests");
    assert_commands("build/tests/unit/x", "build/fsdp_run -n 2 build/fsdp_train, not build/tests");
    char folder[2 * sizeof((fsdp_text *)0)->text];
    memset(folder, '/', sizeof folder);
    strcpy(folder + sizeof folder - sizeof "/fsdp_run", "/fsdp_run");
    char expected[sizeof((fsdp_text *)0)->text];
    memset(expected, '/', sizeof expected);
    expected[sizeof expected - 1] = '\0';
    assert_commands(folder, expected);
}

static fsdp_status fails(void)
{
    return fsdp_error(FSDP_EIO, "free some space", "write %s: %d bytes", "x.bin", 7);
}

static fsdp_status passes_up(int *reached)
{
    TRY(FSDP_OK);
    ++*reached;
    TRY(fails());
    ++*reached;
    return FSDP_OK;
}

TEST(test_status_record)
{
    int reached = 0;
    assert_int_equal(passes_up(&reached), FSDP_EIO);
    assert_int_equal(reached, 1);
    assert_int_equal(fsdp_error_get()->status, FSDP_EIO);
    assert_string_equal(fsdp_error_get()->what, "write x.bin: 7 bytes");
    assert_string_equal(fsdp_error_get()->hint, "free some space");

    /* an outer message that quotes the record it replaces */
    fsdp_error(FSDP_ECOMM, fsdp_error_get()->hint, "rank 3: %s", fsdp_error_get()->what);
    assert_string_equal(fsdp_error_get()->what, "rank 3: write x.bin: 7 bytes");
    assert_string_equal(fsdp_error_get()->hint, "free some space");
    fsdp_error_set(fsdp_error_get());
    assert_string_equal(fsdp_error_get()->hint, "free some space");

    assert_int_equal(fsdp_todo("2.1"), FSDP_ETODO);
    assert_string_equal(fsdp_error_get()->what, "task 2.1 is not implemented");
    assert_string_equal(fsdp_status_name(FSDP_EMISMATCH), "FSDP_EMISMATCH");
    assert_string_equal(fsdp_status_name((fsdp_status)99), "unknown status");
}

TEST(test_status_cuts_long_texts)
{
    char text[2000];
    memset(text, 'a', sizeof text);
    text[sizeof text - 1] = '\0';
    fsdp_error(FSDP_EINVAL, text, "%s", text);
    assert_int_equal(strlen(fsdp_error_get()->what), sizeof fsdp_error_get()->what - 1);
    assert_int_equal(strlen(fsdp_error_get()->hint), sizeof fsdp_error_get()->hint - 1);
}

/* Characters that a terminal would act on are escaped, the rest is kept, even in a text that is
 * cut. */
TEST(test_status_control_characters)
{
    char text[2000];
    fsdp_error(FSDP_EIO, "\r\x7f", "%s", "\033[2J a\nb\t\xc3\xa4\xc2\x9b \xe2\x82\xac");
    assert_string_equal(fsdp_error_get()->what,
                        "\\x1b[2J a\\x0ab\\x09\xc3\xa4\\xc2\\x9b \xe2\x82\xac");
    assert_string_equal(fsdp_error_get()->hint, "\\x0d\\x7f");
    memset(text, '\n', sizeof text);
    text[sizeof text - 1] = '\0';
    fsdp_error(FSDP_EINVAL, text, "%s", text);
    assert_int_equal(strlen(fsdp_error_get()->what), 764);
    assert_string_equal(fsdp_error_get()->what + 760, "\\x0a");
}

static void *other_thread(void *out)
{
    fsdp_error(FSDP_ETIMEOUT, "wait longer", "from the other thread");
    *(fsdp_error_info *)out = *fsdp_error_get();
    return NULL;
}

TEST(test_status_is_per_thread)
{
    pthread_t thread;
    fsdp_error_info handed_over;
    fsdp_error(FSDP_EINVAL, "", "mine");
    assert_int_equal(pthread_create(&thread, NULL, other_thread, &handed_over), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_string_equal(fsdp_error_get()->what, "mine");
    assert_int_equal(fsdp_error_set(&handed_over), FSDP_ETIMEOUT);
    assert_int_equal(fsdp_error_get()->status, FSDP_ETIMEOUT);
    assert_string_equal(fsdp_error_get()->what, "from the other thread");
}

/* assert_prints -- one fsdp_error_print sends `want` in a single write: a datagram socket keeps
 * writes apart. */
static void assert_prints(int rank, int world_size, const char *want)
{
    int pair[2];
    char got[2048];
    assert_int_equal(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair), 0);
    FILE *out = fdopen(pair[0], "w");
    fsdp_error_print(out, rank, world_size);
    ssize_t got_bytes = recv(pair[1], got, sizeof got - 1, MSG_DONTWAIT);
    assert_true(got_bytes >= 0);
    got[got_bytes] = '\0';
    assert_string_equal(got, want);
    assert_true(recv(pair[1], got, sizeof got, MSG_DONTWAIT) < 0); /* nothing more */
    fclose(out);
    close(pair[1]);
}

TEST(test_status_print)
{
    fsdp_error(FSDP_EINVAL, "pass --n-head 4", "n_head 3");
    assert_prints(1, 4, "[rank 1/4] n_head 3\nHINT: pass --n-head 4\n");
    assert_prints(0, 0, "n_head 3\nHINT: pass --n-head 4\n");
    fsdp_error(FSDP_EINVAL, "", "no help");
    assert_prints(0, 1, "[rank 0/1] no help\n");

    char file_text[64];
    FILE *file = tmpfile(); /* prints after buffered text */
    fputs("before; ", file);
    fsdp_error_print(file, 0, 0);
    rewind(file);
    assert_non_null(fgets(file_text, sizeof file_text, file));
    assert_string_equal(file_text, "before; no help\n");
    fclose(file);

    char *text = NULL;
    size_t text_bytes = 0;
    FILE *memory = open_memstream(&text, &text_bytes);
    fputs("before; ", memory);
    fsdp_error_print(memory, 0, 0);
    fclose(memory);
    assert_string_equal(text, "before; no help\n");
    free(text);
}

/* ---- dtype.c ------------------------------------------------------------------------------- */

static void abort_on_assert(void)
{
    FSDP_ASSERT(1 + 1 == 3);
}

static void abort_on_assert_eq(void)
{
    FSDP_ASSERT_EQ(2, 3);
}

static void abort_on_big_int(void)
{
    elems_to_int((size_t)INT_MAX + 1);
}

TEST(test_align_up)
{
    const size_t cases[][3] = {{0, 4, 0},   {1, 4, 4}, {10, 4, 12}, {12, 4, 12},
                               {10, 1, 10}, {7, 3, 9}, {1, 32, 32}, {SIZE_MAX, 1, SIZE_MAX}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t got = 77;
        OK(size_align_up(cases[i][0], cases[i][1], "elems", &got));
        assert_int_equal(got, cases[i][2]);
    }
    size_t got = 0;
    OK(size_align_up(SIZE_MAX - 3, 4, "elems", &got));
    assert_int_equal(got, SIZE_MAX - 3);
    assert_int_equal(size_align_up(SIZE_MAX - 2, 4, "flat array", &got), FSDP_EINVAL);
    assert_non_null(strstr(fsdp_error_get()->what, "flat array"));
    assert_int_equal(size_align_up(5, 0, "elems", &got), FSDP_EINVAL);
}

TEST(test_dtype)
{
    size_t product = 0;
    assert_int_equal(dtype_bytes(DTYPE_F32), 4);
    assert_int_equal(dtype_bytes(DTYPE_BF16), 2);
    assert_int_equal(dtype_bytes(DTYPE_I64), 8);
    assert_int_equal(dtype_bytes(DTYPE_U8), 1);
    assert_string_equal(dtype_name(DTYPE_BF16), "bf16");
    OK(size_mul(6, 7, "elems", &product));
    assert_int_equal(product, 42);
    OK(size_mul(SIZE_MAX, 1, "elems", &product));
    assert_int_equal(size_mul(SIZE_MAX / 2 + 1, 2, "d_ff", &product), FSDP_EINVAL);
    assert_non_null(strstr(fsdp_error_get()->what, "d_ff"));
    assert_int_equal(elems_to_int(INT_MAX), INT_MAX);
    assert_aborts(abort_on_big_int);
    assert_aborts(abort_on_assert);
    assert_aborts(abort_on_assert_eq);
    FSDP_ASSERT(1 + 1 == 2);
    FSDP_ASSERT_EQ(3, 3);
}

/* ---- tree_sum.c: vectors of VEC floats in a space that counts -------------------------------- */

enum { VEC = 2, MAX_LEAVES = 300 };

typedef struct counting {
    int live, peak, calls, fail_at; /* the fail_at-th call fails; 0: none */
} counting;

static fsdp_status count_call(counting *c)
{
    if (++c->calls == c->fail_at)
        return fsdp_error(FSDP_ENOMEM, "", "call %d was made to fail", c->calls);
    return FSDP_OK;
}

static fsdp_status vec_get(void *ctx, float **vec)
{
    counting *c = ctx;
    TRY(count_call(c));
    *vec = malloc(VEC * sizeof **vec);
    assert_non_null(*vec);
    if (++c->live > c->peak)
        c->peak = c->live;
    return FSDP_OK;
}

static void vec_put(void *ctx, float *vec)
{
    assert_non_null(vec);
    ((counting *)ctx)->live--;
    free(vec);
}

/* Keeps a copy. The slot has the vector before the vector is filled, which may fail. */
static fsdp_status vec_keep(void *ctx, const float *vec, float **slot)
{
    TRY(vec_get(ctx, slot));
    TRY(count_call(ctx));
    memcpy(*slot, vec, VEC * sizeof *vec);
    return FSDP_OK;
}

/* At odd levels the sum goes to a new vector. */
static fsdp_status vec_add(void *ctx, int level, float **left, const float *right)
{
    TRY(count_call(ctx));
    float *sum = *left;
    if (level % 2 != 0) {
        sum = malloc(VEC * sizeof *sum);
        assert_non_null(sum);
    }
    for (int i = 0; i < VEC; i++)
        sum[i] = (*left)[i] + right[i];
    if (sum != *left)
        free(*left);
    *left = sum;
    return FSDP_OK;
}

static tree_sum_space counting_space(counting *c)
{
    return (tree_sum_space){.ctx = c, .keep = vec_keep, .add = vec_add, .put = vec_put};
}

/* random_leaf -- both signs, 24 binary orders of magnitude: nearly every order of additions
 * shows. */
static float random_leaf(uint32_t i, uint32_t stream)
{
    uint32_t w = philox_u32(11, stream, i);
    return bits_to_float((w & 0x807fffff) | ((115 + (w >> 24) % 24) << 23));
}

/* node -- T(i,k) of n leaves, word for word the definition in tree_sum.h. */
static float node(const float *leaves, size_t n, size_t i, int k)
{
    if (k == 0)
        return leaves[i];
    float left = node(leaves, n, 2 * i, k - 1);
    if ((2 * i + 1) << (k - 1) >= n)
        return left;
    return left + node(leaves, n, 2 * i + 1, k - 1);
}

static int root_level(size_t n)
{
    int k = 0;
    while (((size_t)1 << k) < n)
        k++;
    return k;
}

/* The number of vectors in the slots. */
static int live_of(const tree_sum *t)
{
    return __builtin_popcountll(tree_sum_waiting(t, 0));
}

static void assert_finishes_to(tree_sum *t, const counting *c, const float want[VEC])
{
    float *sum = NULL;
    OK(tree_sum_finish(t, &sum));
    assert_non_null(sum);
    assert_memory_equal(sum, want, VEC * sizeof *sum);
    assert_int_equal(live_of(t), 0);
    assert_int_equal(c->live, 1); /* the sum itself */
    t->space.put(t->space.ctx, sum);
}

/* push_nodes -- pushes n leaves as nodes of random, aligned levels <= max_level. The last node may
 * lack leaves, like the block of a last rank. */
static void push_nodes(tree_sum *t, float leaves[VEC][MAX_LEAVES], size_t n, int max_level)
{
    for (size_t begin = 0, draw = 0; begin < n;) {
        int level = max_level > 0 ? (int)(philox_u32(5, n, draw++) % (unsigned)(max_level + 1)) : 0;
        while (begin % ((size_t)1 << level) != 0)
            level--;
        float vec[VEC];
        for (int v = 0; v < VEC; v++)
            vec[v] = node(leaves[v], n, begin >> level, level);
        OK(tree_sum_push(t, level, vec));
        begin += (size_t)1 << level;
        size_t pushed = begin < n ? begin : n;
        int log2_pushed = 0;
        while ((size_t)2 << log2_pushed <= pushed)
            log2_pushed++;
        assert_true(live_of(t) <= log2_pushed + 1);
        assert_int_equal(live_of(t), ((counting *)t->space.ctx)->live);
    }
}

TEST(test_tree_sum_is_its_definition)
{
    static float leaves[VEC][MAX_LEAVES];
    counting c = {0};
    tree_sum t;
    int order_matters = 0;
    for (uint32_t i = 0; i < MAX_LEAVES; i++)
        for (uint32_t v = 0; v < VEC; v++)
            leaves[v][i] = random_leaf(i, v);
    tree_sum_init(&t, counting_space(&c));
    for (size_t n = 1; n <= MAX_LEAVES; n++) {
        float want[VEC], running = 0.0f;
        for (int v = 0; v < VEC; v++) {
            want[v] = node(leaves[v], n, 0, root_level(n));
            assert_same_bits(tree_sum_f32(leaves[v], n), want[v]);
        }
        for (size_t i = 0; i < n; i++)
            running += leaves[0][i];
        order_matters += running != want[0];
        for (int max_level = 0; max_level <= 5; max_level++) {
            c.peak = 0;
            push_nodes(&t, leaves, n, max_level);
            assert_finishes_to(&t, &c, want);
            assert_true((1 << (c.peak - 1)) <= (int)n); /* peak <= floor(log2 n) + 1 */
        }
    }
    assert_true(order_matters >
                MAX_LEAVES / 2); /* else the leaves could not tell the trees apart */
    assert_int_equal(c.live, 0);
    assert_same_bits(tree_sum_f32(NULL, 0), 0.0f);
}

TEST(test_tree_sum_edges)
{
    counting c = {0};
    tree_sum t = {0};
    float *sum = (float *)&c, vec[VEC] = {1, 2};
    tree_sum_clear(&t); /* a zeroed struct */
    tree_sum_init(&t, counting_space(&c));
    OK(tree_sum_finish(&t, &sum));
    assert_null(sum);
    for (int i = 0; i < 7; i++)
        OK(tree_sum_push(&t, 0, vec));
    assert_int_equal(live_of(&t), 3); /* 7 = 4 + 2 + 1 */
    assert_int_equal(tree_sum_waiting(&t, 0), 7);
    assert_true(vec[0] == 1 && vec[1] == 2); /* borrowed, not changed */
    tree_sum_clear(&t);
    assert_int_equal(c.live, 0);
    assert_int_equal(live_of(&t), 0);
    for (int i = 0; i < 5; i++)
        OK(tree_sum_push(&t, 3, vec));
    assert_int_equal(tree_sum_waiting(&t, 3), 5);
    assert_int_equal(tree_sum_waiting(&t, 1), 5 << 2);
    tree_sum_clear(&t);
}

TEST(test_push_in_turn)
{
    counting c = {0};
    tree_sum t;
    float *sum, want[VEC] = {0};
    tree_sum_init(&t, counting_space(&c));
    t.in_turn = true;
    for (uint32_t i = 0; i < 9; i++) {
        float vec[VEC];
        for (uint32_t v = 0; v < VEC; v++) {
            vec[v] = random_leaf(i, v);
            want[v] = i == 0 ? vec[v] : want[v] + vec[v];
        }
        OK(tree_sum_push(&t, 0, vec));
        assert_int_equal(live_of(&t), 1);
    }
    OK(tree_sum_finish(&t, &sum));
    assert_memory_equal(sum, want, sizeof want);
    vec_put(&c, sum);
    assert_int_equal(c.live, 0);
}

/* Every call of the space fails once. The status is returned, and clear finds every vector. */
TEST(test_tree_sum_failures)
{
    float vec[VEC] = {1, 2}, *sum;
    for (int fail_at = 1;; fail_at++) {
        counting c = {.fail_at = fail_at};
        tree_sum t;
        fsdp_status status = FSDP_OK;
        tree_sum_init(&t, counting_space(&c));
        for (int i = 0; i < 15 && status == FSDP_OK; i++)
            status = tree_sum_push(&t, 0, vec);
        if (status == FSDP_OK && (status = tree_sum_finish(&t, &sum)) == FSDP_OK) {
            vec_put(&c, sum);
            assert_int_equal(c.live, 0);
            assert_int_equal(c.calls, 2 * 8 + 14); /* get and copy of 8 even leaves, 14 additions */
            break;
        }
        assert_int_equal(status, FSDP_ENOMEM);
        tree_sum_clear(&t);
        assert_int_equal(c.live, 0);
    }
}

static void push_over_a_gap(void)
{
    counting c = {0};
    tree_sum t;
    float vec[VEC] = {1, 2};
    tree_sum_init(&t, counting_space(&c));
    tree_sum_push(&t, 0, vec); /* leaf 0; leaf 1 is missing */
    tree_sum_push(&t, 2, vec);
}

TEST(test_tree_sum_asserts_gaps)
{
    assert_aborts(push_over_a_gap);
}

/* ---- bytes_copy ----------------------------------------------------------------------------- */

/* Short and streamed lengths, every alignment of source and destination. No byte outside the copy
 * changes. */
TEST(test_bytes_copy)
{
    enum { ROOM = 64, EDGE = 0x55 };
    const size_t lengths[] = {0, 1, 63, 1000, BYTES_STREAM_MIN, BYTES_STREAM_MIN + 77};
    const size_t most = BYTES_STREAM_MIN + 77;
    char *src = malloc(most + ROOM), *dst = malloc(most + 2 * ROOM);
    assert_non_null(src);
    assert_non_null(dst);
    for (size_t i = 0; i < most + ROOM; i++)
        src[i] = (char)(i * 7 + i / 251);
    for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++) {
        for (size_t at = 0; at < ROOM; at += 7) {
            memset(dst, EDGE, most + 2 * ROOM);
            bytes_copy(dst + ROOM - at, src + at / 3, lengths[l]);
            assert_memory_equal(dst + ROOM - at, src + at / 3, lengths[l]);
            assert_int_equal(dst[ROOM - at - 1], EDGE);
            assert_int_equal(dst[ROOM - at + lengths[l]], EDGE);
        }
    }
    free(src);
    free(dst);
}

TEST(test_f32_add_stream)
{
    enum { MOST = 200 };
    float left[MOST + 16], right[MOST + 16], sum[MOST + 32];
    for (int i = 0; i < MOST + 16; i++) {
        left[i] = 1.0f / (float)(i + 1);
        right[i] = -3.0f / (float)(i + 7);
    }
    for (size_t n = 0; n <= MOST; n++) {
        size_t at = 1 + n % 16;
        memset(sum, 0, sizeof sum);
        f32_add_stream(sum + at, left + n % 3, right + n % 5, n);
        for (size_t i = 0; i < n; i++)
            assert_true(sum[at + i] == left[n % 3 + i] + right[n % 5 + i]);
        assert_true(sum[at - 1] == 0.0f && sum[at + n] == 0.0f);
    }
}

int main(void)
{
    return tests_run(NULL, NULL);
}
