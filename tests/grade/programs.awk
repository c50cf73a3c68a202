# programs.awk -- which programs grade labs or tasks: their own, and those of all tasks that they need, directly or indirectly.
#
#   awk -f tests/grade/programs.awk -v lab="3 4" -v task="3.9 3.10" tests/grade/tasks.txt     without tasks the labs, without both all
#
# Blanks or commas separate the words of a list.

BEGIN { n_asked = split(task == "" ? lab : task, word, "[ ,]+"); for (i = 1; i <= n_asked; i++) asked[word[i]] = 1 }

!/^#/ && NF {
    split($1, id, ".")
    program[$1] = $5
    needs[$1] = $6
    if (lab task == "" || (task == "" ? id[1] : $1) in asked) wanted[++n] = $1
}
END {
    for (i = 1; i <= n; i++) {
        if (!seen[program[wanted[i]]]++) print program[wanted[i]]
        n_needs = split(needs[wanted[i]], need, ",")
        for (k = 1; k <= n_needs; k++) if (need[k] in program && !listed[need[k]]++) wanted[++n] = need[k]
    }
}
