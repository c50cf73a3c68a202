/* matrix_run_lib.c -- see matrix_run_lib.h. */
#include "tests/equivalence/matrix_run_lib.h"
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "common/model/tensor_parallel.h"
#include "common/ops/backends.h"
#include "common/steps/train_export.h"
#include "common/weights/export.h"
#include "trainer/trainer.h"

enum { MOST_WORDS = 128 };

#define INIT_FROM " --init-from"

/* ---- words ----------------------------------------------------------------------------------- */

typedef struct command {
    char text[MATRIX_MOST_CHARS];
    char *argv[MOST_WORDS + 1], *environment[MOST_WORDS];
    int argc, n_variables;
} command;

bool matrix_is_variable(const char *word)
{
    return isupper((unsigned char)*word) && strchr(word, '=') != NULL;
}

static void command_make(command *c, const char *words, const char *more)
{
    char *save = NULL;
    *c = (command){.argv = {(char *)"fsdp_train"}, .argc = 1};
    const int n = snprintf(c->text, sizeof c->text, "%s %s", words, more);
    FSDP_ASSERT(n > 0 && n < (int)sizeof c->text);
    for (char *w = strtok_r(c->text, " ", &save); w; w = strtok_r(NULL, " ", &save)) {
        FSDP_ASSERT(c->argc < MOST_WORDS && c->n_variables < MOST_WORDS);
        if (matrix_is_variable(w))
            c->environment[c->n_variables++] = w;
        else
            c->argv[c->argc++] = w;
    }
}

/* The same with --export-init in place of --init-from: a command that needs no weights. */
static void command_make_first(command *c, const char *words, const char *more)
{
    char text[MATRIX_MOST_CHARS];
    const char *option = strstr(words, INIT_FROM);
    snprintf(text, sizeof text, "%s", words);
    if (option)
        snprintf(text + (option - words), sizeof text - (size_t)(option - words),
                 " --export-init%s", option + strlen(INIT_FROM));
    command_make(c, text, more);
}

/* Set (true) or unset the command's environment variables. */
static void command_environment(command *c, bool set)
{
    for (int i = 0; i < c->n_variables; i++) {
        char *value = strchr(c->environment[i], '=');
        *value = '\0';
        if (set)
            setenv(c->environment[i], value + 1, 1);
        else
            unsetenv(c->environment[i]);
        *value = '=';
    }
}

fsdp_status matrix_global_batch(const char *words, int world_size, long long *sequences)
{
    command c;
    trainer_options options;
    trainer_config cfg;
    model_config shape;
    command_make_first(&c, words, "");
    TRY(trainer_options_parse(c.argc, c.argv, &options));
    TRY(trainer_config_resolve(&options, world_size, &cfg, &shape));
    *sequences = cfg.train.global_batch;
    return FSDP_OK;
}

/* ---- what a run has computed ----------------------------------------------------------------- */

void matrix_result_free(matrix_result *r)
{
    free(r->rows);
    free(r->evals);
    free(r->params);
    *r = (matrix_result){0};
}

/* The rows of a loss file without their last column, the times. */
static char *rows_of(const char *path)
{
    char *text = NULL, *line = NULL, *times;
    size_t chars = 0, room = 0;
    FILE *in = fopen(path, "r"), *out = open_memstream(&text, &chars);
    FSDP_ASSERT(out != NULL);
    while (in && getline(&line, &room, in) > 0 && (times = strrchr(line, ',')))
        fprintf(out, "%.*s\n", (int)(times - line), line);
    free(line);
    if (in)
        fclose(in);
    fclose(out);
    return text;
}

/* Describe the first line where two texts differ. */
static void compare_lines(const char *what, const char *got, const char *want, matrix_job *j)
{
    size_t line = 0; /* where it begins */
    for (size_t i = 0; *j->differs == '\0'; i++) {
        if (got[i] != want[i])
            snprintf(j->differs, sizeof j->differs, "%s: got %.*s, one device has %.*s", what,
                     (int)strcspn(got + line, "\n"), got + line, (int)strcspn(want + line, "\n"),
                     want + line);
        if (got[i] == '\0')
            return;
        line = got[i] == '\n' ? i + 1 : line;
    }
}

/* State of take_param, which receives the weights parameter by parameter. */
typedef struct weights {
    matrix_job *j;
    const model *m;
    int param;
    size_t at;
} weights;

static fsdp_status take_param(void *self, const float *got, size_t elems)
{
    weights *w = self;
    matrix_job *j = w->j;
    while (w->m->params[w->param].tied_to != NOT_TIED)
        w->param++;
    const param_spec *spec = &w->m->params[w->param++];
    for (size_t i = 0, run; i < elems && *j->differs == '\0'; i++) {
        const size_t at = param_in_file(spec, i, &run); /* kept in the order of an export */
        if (j->keep)
            j->keep->params[w->at + at] = got[i];
        const float want = j->want ? j->want->params[w->at + at] : got[i];
        if (memcmp(&got[i], &want, sizeof want) != 0)
            snprintf(j->differs, sizeof j->differs, "weight %s[%zu]: got %.9g, one device has %.9g",
                     spec->name, at, (double)got[i], (double)want);
    }
    w->at += elems;
    return FSDP_OK;
}

/* The weights are at the end of an exported file. */
static void compare_export(const trainer *t, matrix_job *j)
{
    const size_t bytes = j->want->elems * sizeof(float);
    char path[MATRIX_MOST_CHARS];
    float *got = malloc(bytes + 1);
    snprintf(path, sizeof path, "%s/" EXPORT_WEIGHTS, t->opt->export_dir);
    FILE *in = fopen(path, "r");
    const bool is_read =
        in && got && fseek(in, -(long)bytes, SEEK_END) == 0 && fread(got, 1, bytes, in) == bytes;
    if (!is_read || memcmp(got, j->want->params, bytes) != 0)
        snprintf(j->differs, sizeof j->differs,
                 "--export: " EXPORT_WEIGHTS " is not what one device computed");
    if (in)
        fclose(in);
    free(got);
}

static fsdp_status take_results(trainer *t, matrix_job *j, const char *evals)
{
    weights w = {.j = j, .m = &t->m};
    const bool is_first = comm_rank(t->run.world) == 0;
    char *rows = is_first ? rows_of(j->loss_csv) : NULL;
    if (is_first && j->want) {
        compare_lines("step,loss,grad_norm,lr", rows, j->want->rows, j);
        compare_lines("evaluation", evals, j->want->evals, j);
    }
    if (is_first && j->want && t->opt->export_dir && *j->differs == '\0')
        compare_export(t, j);
    if (j->keep && is_first)
        *j->keep = (matrix_result){.rows = strdup(rows),
                                   .evals = strdup(evals),
                                   .elems = t->m.n_param_elems,
                                   .params = malloc(t->m.n_param_elems * sizeof(float))};
    free(rows);
    return t->engine.read_array(t->engine.self, 0, take_param, &w);
}

void matrix_diverged(const matrix_result *want)
{
    const fsdp_error_info why = *fsdp_error_get();
    const char *row = want->rows; /* begins with the names of the columns */
    long long step = 0;
    double loss, norm, want_loss, want_norm;
    if (sscanf(why.what, "training diverged at step %lld: loss %lf, gradient norm %lf", &step,
               &loss, &norm) != 3)
        return;
    for (; step > 0 && row; step--)
        row = strchr(row, '\n') ? strchr(row, '\n') + 1 : NULL;
    if (!row || sscanf(row, "%*[^,],%lf,%lf", &want_loss, &want_norm) != 2)
        return;
    const bool right = fabs(loss - want_loss) <= 1e-5 * fabs(want_loss); /* of six digits */
    fsdp_error(why.status, why.hint, "%s; one device has loss %.6g, gradient norm %.6g%s", why.what,
               want_loss, want_norm,
               right ? ": training is right, the norm is not, or was not formed" : "");
}

/* ---- a run ----------------------------------------------------------------------------------- */

/* trainer_connect for one rank alone. */
static fsdp_status connect_alone(trainer *t)
{
    const backend *b = backend_of(t->opt->device);
    t->told = &t->is_told;
    TRY(device_open(&(device_config){.backend = b->device, .n_threads = 1}, &t->run.dev));
    t->runs_ahead = !device_memory_is_host(t->run.dev);
    return comm_open(
        t->run.dev,
        &(comm_config){.backend = COMM_SELF, .native = b->native, .sums = b->fast()->sums},
        &t->run.world);
}

/* Describe the first row in which this rank's memory or traffic differs from its plan. */
static void compare_with_plan(const trainer *t, const comm_stats *sent, char *differs, size_t chars)
{
    size_t in_time[MEM_ROWS], issued[MEM_ROWS];
    const size_t *bytes = t->plan.memory_bytes;
    const comm_stats *planned = &t->plan.traffic;
    plan_read_memory(t->run.dev, in_time, issued);
    for (int k = 0; k < MEM_ROWS && *differs == '\0'; k++)
        if (report_is_exact(t, k) && issued[k] != bytes[k])
            snprintf(differs, chars, "%s: %zu bytes as issued, planned %zu",
                     k < MEM_CATEGORIES ? mem_category_name((mem_category)k) : "a sum of memory",
                     issued[k], bytes[k]);
    for (comm_op op = 0; op < COMM_OPS && *differs == '\0'; op++)
        if (sent->calls[op] != planned->calls[op] ||
            sent->bytes_sent[op] != planned->bytes_sent[op])
            snprintf(
                differs, chars, "%s: %llu calls send %llu bytes in a step, planned %llu and %llu",
                comm_op_name(op), (unsigned long long)sent->calls[op],
                (unsigned long long)sent->bytes_sent[op], (unsigned long long)planned->calls[op],
                (unsigned long long)planned->bytes_sent[op]);
}

static fsdp_status make_steps(trainer *t, matrix_job *j, FILE *evals)
{
    train_result result;
    TRY(trainer_prepare(t));
    TRY(trainer_allocate(t));
    if (t->opt->export_init_dir && t->setup.first_step == 0)
        TRY(train_export(&t->setup, TRAIN_WEIGHTS, t->opt->export_init_dir, 0));
    t->setup.log = evals;
    fsdp_status status = train_run(t->loop, &result);
    if (status == FSDP_OK || status == FSDP_EORDER)
        status = comm_agree(t->run.world, order_check_status(t->order));
    else
        j->failed_alike = result.failed_alike;
    TRY(status);
    if (t->opt->export_dir)
        TRY(train_export(&t->setup, TRAIN_WEIGHTS, t->opt->export_dir, train_end(&t->cfg.train)));
    compare_with_plan(t, &result.step_stats, j->differs, sizeof j->differs);
    return FSDP_OK;
}

/* Run one command. evals: the evaluations that earlier commands of the job printed; this command
 * adds its own. */
static fsdp_status run_command(command *c, matrix_job *j, FILE *evals, char **text, bool *stops)
{
    trainer_options options;
    trainer t = {.opt = &options};
    const fsdp_status parsed = trainer_options_parse(c->argc, c->argv, &options);
    /* Only the operations decide the bits, so alone a CPU replaces a device that computes with the
     * CPU's operations. */
    if (j->alone && backend_of(options.device)->fast == backend_of(0)->fast)
        options.device = 0;
    t.refused = *fsdp_error_get();
    if (parsed == FSDP_OK)
        t.refused = (fsdp_error_info){0};
    fsdp_status status = j->alone ? connect_alone(&t) : trainer_connect(&t);
    if (status == FSDP_OK)
        status = make_steps(&t, j, evals);
    *stops = options.train.stop_after > 0;
    fflush(evals);
    if (status == FSDP_OK && !*stops)
        status = take_results(&t, j, *text);
    const fsdp_error_info why = *fsdp_error_get();
    if (j->failed_alike)
        trainer_free(&t);
    fsdp_error_set(&why);
    return status;
}

/* Write the weights of --seed 1, from which a command with --init-from begins. */
static fsdp_status write_weights(matrix_job *j)
{
    command c;
    bool stops;
    FILE *unread = fopen("/dev/null", "w");
    FSDP_ASSERT(unread != NULL);
    command_make_first(&c, j->words, "--seed 1 --stop-after 2");
    const fsdp_status status = run_command(&c, j, unread, NULL, &stops);
    fclose(unread);
    return status;
}

fsdp_status matrix_run(matrix_job *j)
{
    command c;
    char more[MATRIX_MOST_CHARS], *text = NULL;
    size_t chars;
    bool stops;
    FILE *evals = open_memstream(&text, &chars);
    FSDP_ASSERT(evals != NULL);
    j->failed_alike = true;
    j->differs[0] = '\0';
    snprintf(more, sizeof more, "--loss-csv %s", j->loss_csv);
    command_make(&c, j->words, more);
    command_environment(&c, true);
    fsdp_status status = strstr(j->words, INIT_FROM) ? write_weights(j) : FSDP_OK;
    if (status == FSDP_OK)
        status = run_command(&c, j, evals, &text, &stops);
    if (status == FSDP_OK && stops) {
        command_make(&c, j->words, strcat(more, " --stop-after 0 --resume auto"));
        status = run_command(&c, j, evals, &text, &stops);
    }
    command_environment(&c, false);
    fclose(evals);
    free(text);
    return status;
}
