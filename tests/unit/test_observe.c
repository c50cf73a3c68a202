/* test_observe.c -- the memory ledger and the progress display. */
#include <pthread.h>
#include <pty.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>
#include "common/device/ledger.h"
#include "common/base/clock.h"
#include "common/base/units.h"
#include "common/observe/progress.h"
#include "tests/unit/unit_lib.h"

/* ---- ledger --------------------------------------------------------------------------------- */

/* The issued figures drop a block when its free is called, even if the stream reaches the free
 * later. */
TEST(test_issued_figures)
{
    ledger *l = ledger_create();
    ledger_add(l, MEM_PARAMS_FULL, 100);
    ledger_free_issued(l, MEM_PARAMS_FULL, 100);
    ledger_add(l, MEM_PARAMS_FULL, 70);
    ledger_add(l, MEM_COMM, 50);
    ledger_sub(l, MEM_PARAMS_FULL, 100);
    ledger_figures f = ledger_read(l);
    assert_int_equal(f.peak_bytes[MEM_PARAMS_FULL], 170);
    assert_int_equal(f.issued_peak_bytes[MEM_PARAMS_FULL], 100);
    assert_int_equal(f.issued_bytes[MEM_PARAMS_FULL], 70);
    assert_int_equal(f.issued_total_bytes, 120);
    assert_int_equal(f.issued_peak_total_bytes, 120);
    assert_int_equal(f.peak_total_bytes, 220);
    ledger_reset_peaks(l);
    assert_int_equal(ledger_read(l).issued_peak_bytes[MEM_PARAMS_FULL], 70);
    ledger_free(l);
}

TEST(test_ledger_figures)
{
    ledger *l = ledger_create();
    ledger_add(l, MEM_PARAMS_FULL, 100);
    ledger_add(l, MEM_ACTIVATIONS, 30);
    ledger_add(l, MEM_PARAMS_FULL, 50); /* total 180: the peak */
    ledger_sub(l, MEM_PARAMS_FULL, 100);
    ledger_add(l, MEM_ACTIVATIONS, 60); /* total 140; activations at their own peak, 90 */
    ledger_sub(l, MEM_ACTIVATIONS, 30);
    ledger_add(l, MEM_COMM, 0);
    ledger_figures f = ledger_read(l);
    assert_int_equal(f.live_bytes[MEM_PARAMS_FULL], 50);
    assert_int_equal(f.live_bytes[MEM_ACTIVATIONS], 60);
    assert_int_equal(f.live_total_bytes, 110);
    assert_int_equal(f.peak_bytes[MEM_PARAMS_FULL], 150);
    assert_int_equal(f.peak_bytes[MEM_ACTIVATIONS], 90);
    assert_int_equal(f.peak_bytes[MEM_OPTIMIZER], 0);
    assert_int_equal(f.peak_total_bytes, 180);
    assert_int_equal(f.live_blocks, 3);

    ledger_reset_peaks(l);
    f = ledger_read(l);
    assert_int_equal(f.peak_bytes[MEM_PARAMS_FULL], 50);
    assert_int_equal(f.peak_bytes[MEM_ACTIVATIONS], 60);
    assert_int_equal(f.peak_total_bytes, 110);
    assert_int_equal(f.live_total_bytes, 110);
    ledger_sub(l, MEM_ACTIVATIONS, 60);
    ledger_add(l, MEM_GRADS_SHARD, 61); /* 111: a new peak */
    f = ledger_read(l);
    assert_int_equal(f.peak_total_bytes, 111);
    ledger_free(l);
    ledger_free(NULL);
}

TEST(test_category_names)
{
    assert_string_equal(mem_category_name(MEM_PARAMS_SHARD), "params_shard");
    assert_string_equal(mem_category_name(MEM_OTHER), "other");
    for (int a = 0; a < MEM_CATEGORIES; a++)
        for (int b = 0; b < a; b++)
            assert_string_not_equal(mem_category_name((mem_category)a),
                                    mem_category_name((mem_category)b));
}

static char *read_back(FILE *f)
{
    static char text[65536];
    rewind(f);
    size_t n = fread(text, 1, sizeof text - 1, f);
    text[n] = '\0';
    fclose(f);
    return text;
}

static void *add_and_sub(void *arg)
{
    for (int i = 0; i < 20000; i++) {
        ledger_add(arg, MEM_COMM, 3);
        ledger_add(arg, MEM_OTHER, 5);
        ledger_sub(arg, MEM_COMM, 3);
    }
    return NULL;
}

TEST(test_ledger_threads)
{
    ledger *l = ledger_create();
    pthread_t thread[3];
    for (int i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, add_and_sub, l), 0);
    for (int i = 0; i < 3; i++)
        pthread_join(thread[i], NULL);
    ledger_figures f = ledger_read(l);
    assert_int_equal(f.live_total_bytes, 3 * 20000 * 5);
    assert_int_equal(f.live_bytes[MEM_COMM], 0);
    assert_true(f.peak_bytes[MEM_COMM] <= 9); /* three threads hold at most 3 bytes each */
    ledger_free(l);
}

static void underflow(void)
{
    ledger *l = ledger_create();
    ledger_add(l, MEM_OTHER, 10);
    ledger_add(l, MEM_COMM, 10);
    ledger_sub(l, MEM_OTHER, 11);
}

TEST(test_ledger_underflow_aborts)
{
    assert_aborts(underflow);
}

/* ---- figures for people --------------------------------------------------------------------- */

/* Rounding up to ten drops the digit after the point; rounding up to a thousand moves to the next
 * unit. */
TEST(test_format_bytes)
{
    static const struct {
        size_t bytes;
        const char *text;
    } CASES[] = {{0, "0 B"},
                 {999, "999 B"},
                 {1000, "1.0 kB"},
                 {1049, "1.0 kB"},
                 {9949, "9.9 kB"},
                 {9950, "10 kB"},
                 {340000000, "340 MB"},
                 {999499, "999 kB"},
                 {999500, "1.0 MB"},
                 {1234567890, "1.2 GB"},
                 {UINT64_C(5000000000000), "5.0 TB"},
                 {SIZE_MAX, "18 EB"}};
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        char buf[8];
        assert_string_equal(format_bytes(CASES[i].bytes, buf, sizeof buf), CASES[i].text);
    }
}

/* ---- progress in a log ---------------------------------------------------------------------- */
static char *log_of(int64_t first_step, int64_t total_steps, double ms)
{
    FILE *f = tmpfile();
    progress *p = progress_open(f, total_steps, 1024, "tok", true);
    for (int64_t step = first_step; step < total_steps; step++)
        progress_step(p, step, 10.0 / (double)(step + 1), 0.5, ms, 1234567);
    progress_close(p);
    return read_back(f);
}

static int count(const char *text, const char *what)
{
    int n = 0;
    for (; (text = strstr(text, what)) != NULL; text += strlen(what))
        n++;
    return n;
}

TEST(test_log_lines)
{
    char *text = log_of(0, 3, 500.0);
    /* 1024 tokens in 0.5 s; two, one and no steps of 0.5 s left, rounded to seconds */
    assert_string_equal(
        text,
        "step 1/3  loss 10.0000  grad_norm 0.5000  500.0 ms  2048 tok/s  ETA 1s  mem 1.2 MB\n"
        "step 2/3  loss 5.0000  grad_norm 0.5000  500.0 ms  2048 tok/s  ETA 1s  mem 1.2 MB\n"
        "step 3/3  loss 3.3333  grad_norm 0.5000  500.0 ms  2048 tok/s  ETA 0s  mem 1.2 MB\n");
    assert_int_equal(count(text, "\r"), 0);
    assert_int_equal(count(log_of(0, 50, 1), "\n"), 50);
    text = log_of(0, 51, 1); /* every 2nd step, the first and the last */
    assert_int_equal(count(text, "\n"), 27);
    assert_int_equal(count(text, "step 1/51 "), 1);
    assert_int_equal(count(text, "step 51/51 "), 1);
    text = log_of(0, 100000, 1);
    assert_uint_in_range(count(text, "\n"), 50, 52);
    assert_int_equal(count(text, "step 2000/100000 "), 1);
    assert_int_equal(count(text, "step 100000/100000 "), 1);
    text = log_of(99990, 100000, 1); /* resumed close to the end: the last line must be there */
    assert_int_equal(count(text, "\n"), 1);
}

TEST(test_eta_and_rate)
{
    /* 39, 38, ... steps of 100 s left after the first */
    char *text = log_of(0, 40, 100e3);
    assert_non_null(strstr(text,
                           "step 1/40  loss 10.0000  grad_norm 0.5000  100000.0 ms  10 tok/s  "
                           "ETA 1h05m"));       /* 3900 s */
    assert_non_null(strstr(text, "ETA 3m20s")); /* 200 s */
    FILE *f = tmpfile(); /* the ETA follows a moving mean: 100 s + 0.1 * (200 s - 100 s) */
    progress *p = progress_open(f, 3, 1024, "tok", true);
    progress_step(p, 0, 1, 1, 100e3, 0);
    progress_step(p, 1, 1, 1, 200e3, 0);
    progress_close(p);
    assert_non_null(strstr(read_back(f), "200000.0 ms  5 tok/s  ETA 1m50s\n"));
    text = log_of(0, 40, 0.05);
    assert_non_null(strstr(text, "20.5M tok/s")); /* 1024 / 0.05 ms */
    text = log_of(0, 2, 1e9);
    assert_non_null(strstr(text, "ETA 11d13h")); /* 1e6 s */
    text = log_of(0, 1, 0); /* a clock too coarse: print no figure instead of inf */
    assert_non_null(strstr(text, "? tok/s"));
}

TEST(test_other_ranks_are_silent)
{
    FILE *f = tmpfile();
    progress *p = progress_open(f, 10, 1, "tok", false);
    assert_null(p);
    progress_step(p, 0, 1, 1, 1, 1);
    progress_close(p);
    assert_string_equal(read_back(f), "");
}

/* ---- progress on a terminal ----------------------------------------------------------------- */
typedef struct terminal {
    int master, chars;
    FILE *slave;
    char text[1 << 18];
} terminal;

static terminal *terminal_open(unsigned short columns)
{
    terminal *t = calloc(1, sizeof *t);
    int slave_fd;
    struct winsize window = {.ws_row = 24, .ws_col = columns};
    assert_int_equal(openpty(&t->master, &slave_fd, NULL, NULL, &window), 0);
    t->slave = fdopen(slave_fd, "w");
    return t;
}

static void terminal_close(terminal *t)
{
    fclose(t->slave);
    close(t->master);
    free(t);
}

/* Read the text that has arrived. It must be read as it comes, because a full pty blocks the
 * writer. */
static void terminal_read(terminal *t)
{
    int pending = 0;
    while (ioctl(t->master, FIONREAD, &pending) == 0 && pending > 0) {
        ssize_t n = read(t->master, t->text + t->chars, sizeof t->text - 1 - (size_t)t->chars);
        if (n <= 0)
            break;
        t->chars += (int)n;
    }
}

/* The terminal may deliver text late: read until `last` has arrived. */
static void terminal_await(terminal *t, const char *last)
{
    for (terminal_read(t); strstr(t->text, last) == NULL; terminal_read(t))
        usleep(1000);
}

TEST(test_terminal)
{
    terminal *t = terminal_open(200);
    double start_s = clock_now_s();
    progress *p = progress_open(t->slave, 400, 1000, "tok", true);
    for (int step = 0; step < 400; step++) {
        progress_step(p, step, 3.25, 1.5, 1.0, 5000000);
        usleep(1000);
        terminal_read(t);
    }
    double ran_s = clock_now_s() - start_s;
    assert_int_equal(count(t->text, "\n"), 0); /* one line, redrawn */
    progress_close(p);
    terminal_await(t, "\n");
    /* The first draw, one for each tenth of a second, and the last step's draw. */
    int drawn = count(t->text, "\r") - 1; /* the terminal turns the closing \n into \r\n */
    assert_true(drawn <= (int)(ran_s * 10) + 2);
    assert_true(drawn >= 4); /* 400 ms at least, so the line was redrawn */
    assert_int_equal(count(t->text, "\n"), 1);
    assert_int_equal(count(t->text, "step 400/400  loss 3.2500  grad_norm 1.5000  1.0 ms  1000k"),
                     0);
    assert_int_equal(count(t->text, "step 400/400  loss 3.2500  grad_norm 1.5000  1.0 ms  1.0M"),
                     1);
    assert_int_equal(count(t->text, "mem 5.0 MB"), drawn);
    terminal_close(t);
}

TEST(test_terminal_shows_the_mean_rate)
{
    terminal *t = terminal_open(200);
    progress *p = progress_open(t->slave, 2, 1000, "tok", true);
    progress_step(p, 0, 1, 1, 1.0, 0);
    progress_step(p, 1, 1, 1, 2.0, 0); /* mean 1.1 ms */
    terminal_await(t, "2.0 ms");
    assert_int_equal(count(t->text, "2.0 ms  909k tok/s"), 1);
    progress_close(p);
    terminal_close(t);
}

TEST(test_narrow_terminal_does_not_wrap)
{
    terminal *t = terminal_open(30);
    progress *p = progress_open(t->slave, 1, 1000, "tok", true);
    progress_step(p, 0, 3.25, 1.5, 1.0, 5000000);
    terminal_await(t, "\033[K");
    assert_string_equal(t->text, "\rstep 1/1  loss 3.2500  grad_n\033[K"); /* 29 characters */
    progress_close(p);
    terminal_close(t);
}

int main(void)
{
    alarm(600);
    return tests_run(NULL, NULL);
}
