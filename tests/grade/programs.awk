# programs.awk -- which programs grade a lab or a task: its own, and those of all tasks that it needs, directly or indirectly.
#
#   awk -f tests/grade/programs.awk -v lab=LAB -v task=TASK tests/grade/tasks.txt     both may be empty: all

!/^#/ && NF {
    split($1, id, ".")
    program[$1] = $5
    needs[$1] = $6
    if ((lab == "" || id[1] == lab) && (task == "" || $1 == task "")) wanted[++n] = $1
}
END {
    for (i = 1; i <= n; i++) {
        if (!seen[program[wanted[i]]]++) print program[wanted[i]]
        n_needs = split(needs[wanted[i]], need, ",")
        for (k = 1; k <= n_needs; k++) if (need[k] in program && !listed[need[k]]++) wanted[++n] = need[k]
    }
}
