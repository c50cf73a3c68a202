# bench.mk -- benchmarks. Included by the top Makefile. The scripts say what the variables mean.
#
# Variables: BENCH="train collectives kernels scaling" (those parts only)  BENCH_FULL=1 (the long form)
#            FSDP_PYTHON (an interpreter that has torch; else the venv of make bench-peers)
#            LLMC_DIR (a checkout of llm.c: the second peer of training)

BENCH_SRC    := $(sort $(wildcard tests/bench/*.c))
BENCH_LIBOBJ := $(patsubst %.c,$(BUILD)/%.o,$(filter %_lib.c,$(BENCH_SRC)))
BENCHES      := $(patsubst %.c,$(BUILD)/%,$(filter-out %_lib.c,$(BENCH_SRC)))

$(BENCH_SRC:%.c=$(BUILD)/%.o): $(BUILD)/%.o: %.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(SAY) CC $<
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) -c -o $@ $<

$(BENCHES): $(BUILD)/%: $(BUILD)/%.o $(BENCH_LIBOBJ) $(BUILD)/libfsdp.a
	$(SAY) LINK $@
	$(Q)$(CC) $(LDFLAGS) -o $@ $^ $(LDLIBS)

.PHONY: bench bench-peers bench-programs
bench:  ## time training, collectives, operations beside peers and the roof (15 minutes with PyTorch); BENCH=kernels
	tests/tools/deps.sh demo
	$(MAKE) $(JOBS) --no-print-directory bench-programs
	tests/bench/run.sh $(BUILD)

bench-programs: all $(BENCHES)

tests: $(BENCHES) # so that they keep building; a few seconds

bench-peers:  ## PyTorch in build/peers (PyPI): what make bench trains beside
	tests/tools/deps.sh bench
	tests/bench/peers.sh $(BUILD)

-include $(BENCH_SRC:%.c=$(BUILD)/%.d)
