/* comm_stress_lib.c -- see comm_stress_lib.h. */
#include "tests/unit/comm_stress_lib.h"
#include <string.h>

enum { MOST_SHOWN = 5 };

atomic_llong stress_differences, stress_checked_bytes;

uint64_t stress_mix(uint64_t h)
{
    h *= UINT64_C(0x9e3779b97f4a7c15);
    h ^= h >> 32;
    h *= UINT64_C(0xd6e8feb86659fd93);
    return h ^ h >> 32;
}

uint64_t stress_draw(uint64_t *seed, uint64_t n)
{
    *seed += UINT64_C(0x9e3779b97f4a7c15);
    return stress_mix(*seed) % n;
}

/* ---- data ----------------------------------------------------------------------------------- */

uint64_t stress_key(uint64_t call_key, int a, int b)
{
    return stress_mix(call_key + (uint64_t)a * 1000003 + (uint64_t)b * 101);
}

/* Magnitudes over 2^-8 ... 2^8: a sum in another order has other bits. */
static float value_of(uint64_t key, size_t i)
{
    uint64_t h = stress_mix(key + i);
    float unit = (float)(h & 0xffff) / 65536.0f - 0.45f;
    return unit * (float)(1u << (h >> 60)) / 256.0f;
}

static uint64_t word_of(uint64_t key, size_t i)
{
    return stress_mix(key ^ (i * 8 + 1));
}

fsdp_status stress_fill(void *args, int n_threads)
{
    const stress_data *a = args;
    (void)n_threads;
    for (size_t i = 0; a->floats && i < a->bytes / 4; i++) {
        float value = value_of(a->key, a->first + i);
        memcpy(a->at + 4 * i, &value, 4);
    }
    for (size_t i = 0; !a->floats && i < a->bytes; i += 8) {
        uint64_t word = word_of(a->key, i / 8);
        memcpy(a->at + i, &word, a->bytes - i < 8 ? a->bytes - i : 8);
    }
    return FSDP_OK;
}

static void differs(const char *label, int round, int from, size_t at)
{
    if (atomic_fetch_add(&stress_differences, 1) < MOST_SHOWN)
        printf("differs: round %d, %s: data of rank %d, at %zu\n", round, label, from, at);
}

fsdp_status stress_check(void *args, int n_threads)
{
    const stress_data *a = args;
    (void)n_threads;
    atomic_fetch_add(&stress_checked_bytes, (long long)a->bytes);
    for (size_t i = 0; a->floats && i < a->bytes / 4; i++) {
        float value = value_of(a->key, a->first + i);
        if (memcmp(a->at + 4 * i, &value, 4) != 0)
            differs(a->label, a->round, a->from, i);
    }
    for (size_t i = 0; !a->floats && i < a->bytes; i += 8) {
        uint64_t word = word_of(a->key, i / 8);
        if (memcmp(a->at + i, &word, a->bytes - i < 8 ? a->bytes - i : 8) != 0)
            differs(a->label, a->round, a->from, i);
    }
    return FSDP_OK;
}

/* ---- sums ----------------------------------------------------------------------------------- */

/* One element as the binary counter of tree_sum.h makes it, on numbers. */
typedef struct counter {
    float slot[64];
    uint64_t used;
    bool rounds;
} counter;

static float plus(bool rounds, float a, float b)
{
    return rounds ? bf16_round(a + b) : a + b;
}

static void counter_push(counter *c, int level, float x)
{
    for (; c->used >> level & 1; level++) {
        x = plus(c->rounds, c->slot[level], x);
        c->used &= ~(UINT64_C(1) << level);
    }
    c->slot[level] = x;
    c->used |= UINT64_C(1) << level;
}

static float counter_sum(const counter *c)
{
    float sum = 0;
    bool any = false;
    for (int k = 0; k < 64; k++) {
        if (!(c->used >> k & 1))
            continue;
        sum = any ? plus(c->rounds, c->slot[k], sum) : c->slot[k];
        any = true;
    }
    return sum;
}

static float sum_of(const stress_sum *a, size_t i)
{
    bool rounds = a->sum_dtype == DTYPE_BF16;
    counter c = {.rounds = rounds};
    float plain = 0, host = 0;
    for (int step = 0; step < a->steps; step++) {
        for (int r = 0; r < a->size; r++) {
            float x = value_of(stress_key(a->key, step, a->rank[r]), a->first + i);
            x = rounds ? bf16_round(x) : x;
            host = r % a->run == 0 ? x : plus(rounds, host, x);
            if (r % a->run == a->run - 1)
                plain = step == 0 && r < a->run ? host : plus(rounds, plain, host);
            counter_push(&c, a->level[step], x);
        }
    }
    return a->mode == GRAD_ACC_FAST ? plain : counter_sum(&c);
}

fsdp_status stress_check_sum(void *args, int n_threads)
{
    const stress_sum *a = args;
    (void)n_threads;
    atomic_fetch_add(&stress_checked_bytes, (long long)(a->elems * dtype_bytes(a->type)));
    for (size_t i = 0; i < a->elems; i++) {
        float want = a->type == DTYPE_F32 ? sum_of(a, i) : 0;
        uint64_t word = 0;
        for (int r = 0; a->type == DTYPE_I64 && r < a->size; r++)
            word += word_of(stress_key(a->key, 0, a->rank[r]), i);
        const void *expected = a->type == DTYPE_F32 ? (const void *)&want : (const void *)&word;
        size_t bytes = dtype_bytes(a->type);
        if (memcmp((const char *)a->sum + i * bytes, expected, bytes) != 0)
            differs(a->label, a->round, -1, i);
    }
    return FSDP_OK;
}
