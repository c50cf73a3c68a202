# ncu.awk -- kernels of one step, from ncu's CSV files of a run of one step and of a run of three: the top ten by time.
#
#   awk -f ncu.awk ONE.csv THREE.csv     prints rows "| kernel | launches | ms |", and their sum
function fields(line, out,    n) {
    n = 0
    while (match(line, /^"[^"]*",?/)) {
        out[++n] = substr(line, RSTART + 1, RLENGTH - 2 - (substr(line, RLENGTH, 1) == ","))
        line = substr(line, RLENGTH + 1)
    }
    return n
}
!/^"/ { next }
{ n = fields($0, f) }
f[1] == "ID" {
    for (i = 1; i <= n; i++) at[f[i]] = i
    next
}
f[at["Metric Name"]] == "gpu__time_duration.sum" {
    name = f[at["Kernel Name"]]
    gsub(/\(anonymous namespace\)::/, "", name)
    sub(/\(.*/, "", name)
    value = f[at["Metric Value"]]
    gsub(/,/, "", value)
    unit = f[at["Metric Unit"]]
    ms = value * (unit ~ /^n/ ? 1e-6 : unit ~ /^u/ ? 1e-3 : unit ~ /^m/ ? 1 : 1e3)
    of = FILENAME == ARGV[1] ? -0.5 : 0.5
    count[name] += of
    time[name] += of * ms
}
END {
    for (name in count) {
        all_count += count[name]
        all_ms += time[name]
    }
    for (k = 0; k < 10; k++) {
        best = ""
        for (name in time) if (best == "" || time[name] > time[best]) best = name
        if (best == "") break
        printf "| %s | %.1f | %.3f |\n", best, count[best], time[best]
        delete time[best]
    }
    printf "| **all** | %.1f | %.3f |\n", all_count, all_ms
}
