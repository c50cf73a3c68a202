/* environment.c -- see environment.h. */
#include "common/base/environment.h"
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "common/base/options.h"

/* `arg` is an example of a value, for hints. `bare`: the value is a list, of which the first
 * counts. docs/options.md describes the variables; tests/tools/lint.sh compares the names. */
#define FLAG(text, otherwise)                                                                      \
    .name = text, .kind = OPT_INT, .def = otherwise, .min = 0, .max = 1, .arg = "0 or 1"
/* clang-format off */
static const option_spec VARIABLES[] = {
    {.name = "FSDP_TIMEOUT_S", .kind = OPT_DOUBLE, .def = "300", .min = 1e-3, .max = 1e7, .arg = "seconds, such as 60"},
    {.name = "FSDP_HANG_DIR", .kind = OPT_STRING},
    {.name = "FSDP_COMM", .kind = OPT_ENUM, .choices = "auto|self|mpi|shm|nccl|hccl", .arg = "auto, mpi or shm"},
    {FLAG("FSDP_CHECK", "0")},
    {FLAG("FSDP_MIXED_GPUS", "0")},
    {FLAG("FSDP_MIXED_NPUS", "0")},
    {.name = "FSDP_LINK", .kind = OPT_STRING},
    {.name = "FSDP_MPI_CHUNK_BYTES", .kind = OPT_INT, .def = "1073741824", .min = 1, .max = 1 << 30, .arg = "1048576"},
    {.name = "FSDP_PROFILE_AXIS_MS", .kind = OPT_DOUBLE, .def = "0", .max = 1e9, .arg = "100"},
    {FLAG("FSDP_PIN", "1")},
    {FLAG("FSDP_DEBUG_FILL", "0")},
    {FLAG("FSDP_ASYNC_COMPUTE", "0")},
    {FLAG("FSDP_HOST_SYNC", "0")},
    {.name = "FSDP_SCHEDULE", .kind = OPT_INT, .def = "0", .max = UINT32_MAX, .arg = "a number such as 1"},
    {.name = "FSDP_RUN", .kind = OPT_STRING},
    {.name = "OMP_NUM_THREADS", .kind = OPT_INT, .min = 1, .max = 65536, .bare = ",", .arg = "4"},
    {0}};
/* clang-format on */

/* Names that only tests, build scripts and stand-ins read. */
static const char OTHERS[] =
    "FSDP_@(SIM_|DEVICE|PYTHON|TOOLS|TINY_STEPS|ROOT|RANKS|BENCH_|SLURM_|REF)*";

const char *environment_text(const char *name)
{
    const char *text = getenv(name);
    return text != NULL && *text != '\0' ? text : NULL;
}

static const option_spec *row_of(const char *name)
{
    const option_spec *row = VARIABLES;
    while (row->kind != OPT_END && strcmp(row->name, name) != 0)
        row++;
    return row;
}

/* The value or the default; of a list the first one. NULL: there is neither. */
static const char *value_of(const option_spec *row, char first[64])
{
    FSDP_ASSERT(row->kind != OPT_END);
    const char *text = environment_text(row->name);
    if (text == NULL || row->bare == NULL)
        return text != NULL ? text : row->def;
    snprintf(first, 64, "%.*s", (int)strcspn(text, ","), text);
    return first;
}

fsdp_status environment_read(const char *name, void *value)
{
    char hint[128], first[64];
    const option_spec *row = row_of(name);
    const char *text = value_of(row, first);
    snprintf(hint, sizeof hint, "unset %s, or set it to %s", name, row->arg);
    return text == NULL ? FSDP_OK : options_value(row, hint, text, value);
}

double environment_number(const char *name)
{
    char first[64];
    double value;
    const option_spec *row = row_of(name);
    const char *text = value_of(row, first);
    if (text == NULL || !options_number(text, row->min, row->max, &value))
        text = row->def;
    return text != NULL ? atof(text) : 0;
}

/* Print a note if nobody reads the variable. entry: "NAME=value". */
static void note_unknown(const char *entry)
{
    char name[64];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(entry, "="), entry);
    if (strncmp(name, "FSDP_", 5) != 0 || row_of(name)->kind != OPT_END ||
        fnmatch(OTHERS, name, FNM_EXTMATCH) == 0)
        return;
    const option_spec *nearest = options_nearest(VARIABLES, name, strlen(name));
    fprintf(stderr, "note: the environment has %s, which nothing reads", fsdp_printable(name).text);
    fprintf(stderr, nearest ? "; did you mean %s?\n" : "\n", nearest ? nearest->name : "");
}

fsdp_status environment_check(bool notes)
{
    option_value value;
    for (const option_spec *row = VARIABLES; row->kind != OPT_END; row++)
        TRY(environment_read(row->name, &value));
    for (char **entry = environ; notes && *entry != NULL; entry++)
        note_unknown(*entry);
    return FSDP_OK;
}
