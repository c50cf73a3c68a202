# kernels.awk -- kernels of one step, from what ncu or nsys says of two runs: the top 20 by time.
#
#   awk -v steps=N -f kernels.awk SHORT.csv LONG.csv     prints rows "| kernel | launches | ms |", and their sum
#
# The runs differ by N steps. The files are output of `ncu --csv --metrics gpu__time_duration.sum`, with a line for each launch,
# or of `nsys stats --report cuda_gpu_kern_sum --format csv`, with a line for each kernel.
function add(name, launches, ms,    of) {
    gsub(/^"|"$|(\(anonymous namespace\)|<unnamed>)::/, "", name)
    sub(/\(.*/, "", name)
    of = (FILENAME == ARGV[1] ? -1 : 1) / steps
    count[name] += of * launches
    time[name] += of * ms
}
function fields(line, out,    n) {
    n = 0
    while (match(line, /^"[^"]*",?/)) {
        out[++n] = substr(line, RSTART + 1, RLENGTH - 2 - (substr(line, RLENGTH, 1) == ","))
        line = substr(line, RLENGTH + 1)
    }
    return n
}
# nsys: Time (%),Total Time (ns),Instances,... five more numbers ...,Name
/^[0-9.]+,[0-9]+,[0-9]+,/ {
    name = $0
    for (i = 0; i < 8; i++) sub(/^[^,]*,/, "", name)
    split($0, f, ",")
    add(name, f[3], f[2] * 1e-6)
}
!/^"/ { next }
{ n = fields($0, f) }
f[1] == "ID" {
    for (i = 1; i <= n; i++) at[f[i]] = i
    next
}
f[at["Metric Name"]] == "gpu__time_duration.sum" {
    value = f[at["Metric Value"]]
    gsub(/,/, "", value)
    unit = f[at["Metric Unit"]]
    add(f[at["Kernel Name"]], 1, value * (unit ~ /^n/ ? 1e-6 : unit ~ /^u/ ? 1e-3 : unit ~ /^m/ ? 1 : 1e3))
}
END {
    for (name in count) {
        all_count += count[name]
        all_ms += time[name]
    }
    for (k = 0; k < 20; k++) {
        best = ""
        for (name in time) if (best == "" || time[name] > time[best]) best = name
        if (best == "") break
        printf "| %s | %.1f | %.3f |\n", best, count[best], time[best]
        delete time[best]
    }
    printf "| **all** | %.1f | %.3f |\n", all_count, all_ms
}
