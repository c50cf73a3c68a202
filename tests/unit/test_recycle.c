/* test_recycle.c -- returned records are handed out again, to one owner at a time. */
#include <pthread.h>
#include <string.h>
#include "common/base/recycle.h"
#include "common/base/under_asan.h"
#include "tests/unit/unit_lib.h"

TEST(test_put_comes_back)
{
    for (size_t bytes = 1; bytes < 100000; bytes = bytes * 3 / 2 + 1) {
        char *record = recycle_get(bytes);
        assert_non_null(record);
        assert_int_equal((uintptr_t)record % _Alignof(max_align_t), 0);
        memset(record, 0x5a, bytes);
        recycle_put(record);
        if (UNDER_ASAN)
            continue;
        char *again = recycle_get(bytes);
        assert_ptr_equal(again, record);
        recycle_put(again);
    }
    recycle_put(NULL);
}

/* Records of all sizes that are in use together must not overlap: each keeps its own bytes. */
TEST(test_apart)
{
    enum { N = 700 };
    static unsigned char *record[N];
    for (int i = 0; i < N; i++) {
        record[i] = recycle_get((size_t)i * 7);
        assert_non_null(record[i]);
        memset(record[i], i & 255, (size_t)i * 7);
    }
    for (int i = 0; i < N; i++) {
        for (int k = 0; k < i * 7; k++)
            assert_int_equal(record[i][k], i & 255);
        recycle_put(record[i]);
    }
}

TEST(test_too_large)
{
    assert_null(recycle_get(SIZE_MAX));
    assert_null(recycle_get(SIZE_MAX / 2));
}

/* Each thread marks its record; no other thread may get the same record. */
static void *work(void *arg)
{
    uint64_t mark = (uintptr_t)arg;
    for (int i = 0; i < 20000; i++) {
        uint64_t *a = recycle_get(sizeof *a), *b = recycle_get(1000);
        *a = *b = mark;
        if (*a != mark || *b != mark)
            return arg;
        recycle_put(i % 2 ? a : b);
        recycle_put(i % 2 ? b : a);
    }
    return NULL;
}

TEST(test_threads)
{
    enum { N = 4 };
    pthread_t thread[N];
    for (uintptr_t i = 0; i < N; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, work, (void *)(i + 1)), 0);
    for (int i = 0; i < N; i++) {
        void *failed;
        pthread_join(thread[i], &failed);
        assert_null(failed);
    }
}

int main(void)
{
    return tests_run(NULL, NULL);
}
