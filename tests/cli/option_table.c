/* option_table.c -- prints the table of options in docs/options.md, from the rows of fsdp_train. */
#include <stdio.h>
#include "trainer/trainer_options.h"

/* In a table of Markdown a | is written \|. */
static void put(const char *text)
{
    for (; *text; text++)
        printf(*text == '|' ? "\\%c" : "%c", *text);
}

static void put_needs(const option_spec *row)
{
    for (int i = 0; i < OPTION_MOST_NEEDS && row->needs[i].rule; i++) {
        char needs[160];
        const char *at = row->needs[i].at;
        options_says(TRAINER_OPTIONS, &row->needs[i], needs, sizeof needs);
        printf("%s%s%s", i > 0 ? "; " : "", at ? at : "", at ? ": " : "");
        put(needs);
    }
}

int main(void)
{
    printf("| option | default | what it does | needs | fact |\n|---|---|---|---|---|\n");
    for (const option_spec *row = TRAINER_OPTIONS; row->kind != OPT_END; row++) {
        printf("| `--%s%s", row->name, row->bare ? "[=" : row->kind != OPT_BOOL ? "=" : "");
        put(options_arg(row));
        printf("%s` | %s | ", row->bare ? "]" : "", row->def ? row->def : "");
        put(row->help);
        printf(" | ");
        put_needs(row);
        printf(" | %s |\n", row->fact ? row->fact : "");
    }
    return fsdp_flush_stdout("") != FSDP_OK;
}
