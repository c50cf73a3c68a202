# generate.awk -- small mistakes in the SOLUTION blocks of a source, one at a time.
#
#   awk -f tests/mutants/generate.awk FILE                 lists them, one line each, columns separated by tabs:
#       number  task  file:line  class  before  after  nth
#                       before and after: the lines, blanks squeezed; nth: counts mutants with equal columns before it
#   awk -v plant=NUMBER -f tests/mutants/generate.awk FILE prints the source with this mistake
# Classes:
#   operator    + - * / % ++ -- += -= && || ! | becomes another operator or is dropped
#   comparison  < <= > >= == != becomes a neighbour
#   condition   of if and ?: always or never holds
#   constant    a number is one larger or smaller, true becomes false, an enum's value becomes another
#   off-by-one  a quantity or an index is one larger or smaller
#   statement   is left out; a returned call is not made; a field is not set
#   try         TRY(call) is left out
#   wait        a wait, a record or a sync is left out
#   argument    two adjacent arguments of a call are swapped
#   stream      a stream, an event or a group becomes another
#   name        a field or function becomes a similar one
#
# Messages (what follows the status in fsdp_error) do not change. Lines keep their numbers. Many mutants do not compile, and
# some do not change the object code; generated.sh leaves these out.

BEGIN {
    FS = "\n"
    # Names that may be mistaken for each other. A name that does not fit does not compile.
    like("constant", "UNIT_SHARDED UNIT_GATHERING UNIT_GATHERED")
    like("constant", "FSDP_EINVAL FSDP_ESTATE FSDP_OK")
    like("constant", "DTYPE_F32 DTYPE_BF16 DTYPE_I64")
    like("constant", "MEM_PARAMS_FULL MEM_GRADS_SHARD MEM_OTHER")
    like("constant", "SHARDING_FULL SHARDING_GRAD_OP SHARDING_NONE")
    like("constant", "MODULE_MODEL MODULE_BLOCK MODULE_LAYER")
    like("constant", "PREFETCH_NONE PREFETCH_BACKWARD PREFETCH_BACKWARD_POST PREFETCH_FORWARD PREFETCH_BOTH")
    like("constant", "ACL_FLOAT ACL_BF16 ACL_FLOAT16 ACL_INT64 ACL_UINT8")
    like("constant", "HCCL_FP32 HCCL_INT64 HCCL_UINT8 HCCL_BFP16")
    like("constant", "ACL_MEMCPY_DEVICE_TO_DEVICE ACL_MEMCPY_HOST_TO_DEVICE ACL_MEMCPY_DEVICE_TO_HOST")
    like("constant", "ACL_SUCCESS ACCEL_NOT_READY ACL_ERROR_REPEAT_INITIALIZE ACL_ERROR_BAD_ALLOC ACL_ERROR_RT_MEMORY_ALLOCATION")
    like("constant", "ACL_EVENT_SYNC ACL_EVENT_TIME_LINE")
    like("constant", "ACL_STREAM_STATUS_COMPLETE ACL_STREAM_STATUS_NOT_READY")
    like("constant", "ACL_EVENT_RECORDED_STATUS_COMPLETE ACL_EVENT_RECORDED_STATUS_NOT_READY")
    like("constant", "HCCL_CALL_INT8 HCCL_CALL_SUM")
    like("constant", "true false")
    like("stream", "compute gather_stream reduce_stream norm_stream comm_stream copy_stream")
    like("stream", "gathered consumed computed reduced squared added updated gather_after")
    like("stream", "gather_group reduce_group norm_group replicate shard_group")
    like("name", "param_begin shard_begin begin offset")
    like("name", "used_elems shard_elems padded_elems elems")
    like("name", "slot_elems shard_elems")
    like("name", "beta1 beta2 one_minus_beta1 one_minus_beta2")
    like("name", "param grad m v")
    like("name", "norm coef norm_sum")
    like("name", "step_size decay eps sqrt_bias2")
    like("name", "grad_scale clip_norm")
    like("name", "stays_after_forward stays_after_backward")
    like("name", "full_grad shard_grad")
    like("name", "n_held n_freed limit capacity")
    like("name", "n next")
    like("name", "n_slots n_params n_units n_pieces n_layers n_blocks n_nodes n_ranges")
    like("name", "unshard_begin unshard_wait")
    like("name", "reduce_begin reduce_wait")
    like("name", "order_before order_after")
    like("name", "forward post_forward")
    like("name", "out_type in_type")
    like("name", "out in")
    like("name", "from to")
    quantity = "^(.*_)?(elems|bytes|begin|end|rank|ranks|offset|size|slots|units|params|nodes|pieces|next|left|real|before|n|w|limit|capacity|held|freed)$"
    word = "^[A-Za-z_]"
    not_call = "^(if|for|while|switch|return|sizeof|TRY|IF_OK)$"
}

function like(class, names,    n, name, i) {
    n = split(names, name, " ")
    for (i = 1; i <= n; i++) {
        likes[name[i]] = likes[name[i]] " " names
        like_class[name[i]] = class
    }
}

{ text = text $0 "\n" }

END {
    read_tokens()
    for (i = 1; i <= n_tokens; i++)
        if (task[i] != "" && !quiet[i])
            at_token(i)
}

# ---- the source as tokens ------------------------------------------------------------------------
function read_tokens(    p, rest, len, line, now, t) {
    p = line = 1
    now = ""
    while (p <= length(text)) {
        rest = substr(text, p, 2000)
        if (match(rest, /^[ \t\n]+/)) {
            len = RLENGTH
        } else if (substr(rest, 1, 2) == "/*") {
            len = index(substr(text, p), "*/") + 1
            t = substr(rest, 1, len)
            if (t ~ /SOLUTION BEGIN/) { now = t; sub(/.*BEGIN /, "", now); sub(/ .*/, "", now) }
            if (t ~ /SOLUTION END/) now = ""
        } else {
            if (match(rest, /^"([^"\\]|\\.)*"/) || match(rest, /^'([^'\\]|\\.)*'/) ||
                match(rest, /^[A-Za-z_][A-Za-z_0-9]*/) || match(rest, /^[0-9][A-Za-z_0-9.]*/) ||
                match(rest, /^(->|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||\+=|-=|\*=|\/=|\|=|&=)/))
                len = RLENGTH
            else
                len = 1
            n_tokens++
            tok[n_tokens] = substr(rest, 1, len)
            at[n_tokens] = p
            line_of[n_tokens] = line
            task[n_tokens] = now
            pair(n_tokens)
        }
        rest = substr(text, p, len)
        line += gsub(/\n/, "\n", rest)
        p += len
    }
    for (t = 1; t <= n_tokens; t++)
        if (tok[t] == "fsdp_error" && tok[t + 1] == "(") {
            for (p = t + 2; p < partner[t + 1] && tok[p] != ","; p++)
                ;
            for (; p < partner[t + 1]; p++)
                quiet[p] = 1
        }
}

# pair -- partner[]: the other bracket; round[]: the number of round brackets around a token
function pair(t) {
    round[t] = n_round
    if (tok[t] ~ /^[({[]$/) {
        stack[++depth] = t
        n_round += tok[t] == "("
    } else if (tok[t] ~ /^[])}]$/) {
        partner[t] = stack[depth]
        partner[stack[depth--]] = t
        n_round -= tok[t] == ")"
    }
}

function end_of(t) { return at[t] + length(tok[t]) }
function part(from, to) { return substr(text, at[from], end_of(to) - at[from]) }
function squeezed(s) { gsub(/[ \t\n]+/, " ", s); sub(/^ /, "", s); sub(/ $/, "", s); return s }

# emit -- prints or plants one mutant: tokens from..to become new
function emit(class, from, to, new,    old, a, z, want, have, before, after) {
    old = part(from, to)
    if (old == new)
        return
    number++
    want = gsub(/\n/, "\n", old)
    have = gsub(/\n/, "\n", new)
    while (have++ < want)
        new = new "\n"
    if (plant != "") {
        if (number == plant)
            printf "%s%s%s", substr(text, 1, at[from] - 1), new, substr(text, end_of(to))
        return
    }
    for (a = at[from]; a > 1 && substr(text, a - 1, 1) != "\n"; a--)
        ;
    for (z = end_of(to); substr(text, z, 1) != "\n"; z++)
        ;
    before = squeezed(substr(text, a, z - a))
    after = squeezed(substr(text, a, at[from] - a) new substr(text, end_of(to), z - end_of(to)))
    printf "%d\t%s\t%s:%d\t%s\t%s\t%s\t%d\n", number, task[from], FILENAME, line_of[from], class, before, after,
        ++nth[task[from], class, before, after]
}

# ---- mistakes ------------------------------------------------------------------------------------
function at_token(i,    t, prev) {
    t = tok[i]
    prev = tok[i - 1]
    if (t ~ word) {
        at_word(i, t, prev)
    } else if (t ~ /^[0-9]/) {
        at_number(i, t)
    } else {
        at_operator(i, t, prev ~ /^([A-Za-z_0-9)]|\])/ && prev !~ /^(return|case)$/)
    }
    if (prev ~ /^([;{}:)]|else)$/ && tok[i] ~ /^([A-Za-z_*(]|\+\+|--)/)
        at_statement(i, t, prev)
}

function at_operator(i, t, binary) {
    if (t == "<") both("comparison", i, "<=", ">=")
    else if (t == "<=") both("comparison", i, "<", ">")
    else if (t == ">") both("comparison", i, ">=", "<=")
    else if (t == ">=") both("comparison", i, ">", "<")
    else if (t == "==") emit("comparison", i, i, "!=")
    else if (t == "!=") emit("comparison", i, i, "==")
    else if (t == "&&") emit("operator", i, i, "||")
    else if (t == "||") emit("operator", i, i, "&&")
    else if (t == "!") emit("operator", i, i, "")
    else if (t == "++") emit("operator", i, i, "--")
    else if (t == "--") emit("operator", i, i, "++")
    else if (t == "+=") both("operator", i, "-=", "=")
    else if (t == "-=") both("operator", i, "+=", "=")
    else if (t == "+" && binary) emit("operator", i, i, "-")
    else if (t == "-") emit("operator", i, i, binary ? "+" : "")
    else if (t == "*" && binary) emit("operator", i, i, "+")
    else if (t == "/") emit("operator", i, i, "*")
    else if (t == "%") emit("operator", i, i, "/")
    else if (t == "|") emit("operator", i, i, "&")
    else if (t == "?") both("condition", i, "|| true ?", "&& false ?")
    else if (t == "." && tok[i - 1] ~ /^[{,]$/) no_field(i)
    else if (t == "[") emit("off-by-one", i, partner[i], "[(" part(i + 1, partner[i] - 1) ") + 1]")
}

function both(class, i, one, other) {
    emit(class, i, i, one)
    emit(class, i, i, other)
}

function at_number(i, t,    suffix) {
    suffix = t ~ /f$/ ? ".0f" : ""
    emit("constant", i, i, (t + 1) suffix)
    if (t + 0 > 0)
        emit("constant", i, i, (t - 1) suffix)
}

function at_word(i, t, prev,    n, name, k, from) {
    n = split(likes[t], name, " ")
    for (k = 1; k <= n; k++)
        if (name[k] != t)
            emit(like_class[t], i, i, name[k])
    if (t == "if" && tok[i + 1] == "(") {
        emit("condition", i + 1, partner[i + 1], "(true)")
        emit("condition", i + 1, partner[i + 1], "(false)")
    }
    if (tok[i + 1] == "(" && t !~ not_call)
        swap_arguments(i + 1)
    from = chain_begin(i)
    if (t ~ quantity && is_value(from, i)) {
        emit("off-by-one", from, i, "(" part(from, i) " + 1)")
        emit("off-by-one", from, i, "(" part(from, i) " - 1)")
    }
}

# chain_begin -- the first token of a chain a->b[c].d that ends at i
function chain_begin(i) {
    while (tok[i - 1] ~ /^(->|\.)$/ && tok[i - 2] ~ /^([A-Za-z_0-9)]|\])/) {
        i -= 2
        while (tok[i] ~ /^[])]$/)
            i = partner[i] - (tok[partner[i] - 1] ~ word)
    }
    return i
}

# is_value -- whether from..to is a value, not a place, a type or a field
function is_value(from, to,    prev) {
    prev = tok[from - 1]
    if (prev == "*" || prev == "&")
        return tok[from - 2] ~ /^([A-Za-z_0-9)]|\])/ && tok[to + 1] !~ /^(=|->|\.|\[|\()$/
    if (prev ~ word && prev != "return" || prev ~ /^(\.|\+\+|--)$/)
        return 0
    return tok[to + 1] !~ /^(=|\+=|-=|\|=|\+\+|--|\(|->|\.|\[)$/ && tok[to + 1] !~ word
}

function swap_arguments(open,    p, from, n, begin, end) {
    n = 0
    from = open + 1
    for (p = open + 1; p <= partner[open]; p++) {
        if (p == partner[open] || tok[p] == ",") {
            begin[++n] = from
            end[n] = p - 1
            from = p + 1
        }
        if (tok[p] ~ /^[({[]$/)
            p = partner[p]
    }
    for (p = 1; p < n; p++)
        if (!quiet[begin[p + 1]] && part(begin[p], end[p]) != part(begin[p + 1], end[p + 1]))
            emit("argument", begin[p], end[p + 1], part(begin[p + 1], end[p + 1]) ", " part(begin[p], end[p]))
}

# no_field -- leaves out .field = value, so the field is zero
function no_field(i,    p) {
    for (p = i; tok[p] != "," && tok[p] != "}"; p++)
        if (tok[p] ~ /^[({[]$/)
            p = partner[p]
    if (tok[p] == ",")
        emit("statement", i, p, "")
    else
        emit("statement", i, p - 1, "")
}

# at_statement -- leaves out the simple statement that begins here. Not in the head of a for.
function at_statement(i, t, prev,    p, class) {
    if (round[i] > 0 || t ~ /^(if|for|while|switch|case|default|else)$/ || prev == ")" && !is_head(i - 1))
        return
    for (p = i; tok[p] != ";"; p++) {
        if (tok[p] ~ /^[({[]$/)
            p = partner[p]
        if (tok[p] ~ /^[])}]$/ && partner[p] < i || p > n_tokens)
            return
    }
    class = t == "TRY" ? "try" : "statement"
    if (part(i, p) ~ /(wait|sync|record)[a-z_]*\(/)
        class = "wait"
    if (t == "return" && p > i + 1) {
        if (part(i + 1, p - 1) != "FSDP_OK")
            emit(class, i, p, "return FSDP_OK;")
    } else
        emit(class, i, p, ";")
    if (t == "return")
        emit(class, i, p, ";")
}

# is_head -- whether the bracket that closes at t belongs to if, for, while or switch
function is_head(t) { return tok[partner[t] - 1] ~ /^(if|for|while|switch)$/ }
