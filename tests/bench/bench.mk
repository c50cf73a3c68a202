# bench.mk -- benchmarks. Included by the top Makefile. The scripts explain the variables.
#
# Variables: BENCH="train collectives kernels scaling overlap" (only these parts)  BENCH_FULL=1 (the long form)
#            FSDP_PYTHON (an interpreter that has torch; default: the venv of make bench-peers)
#            LLMC_DIR (a checkout of llm.c, the second peer for training)

.PHONY: bench bench-peers bench-programs
bench:  ## + time training, collectives and operations beside peers and the roof (15 minutes or more); BENCH=kernels
	tests/tools/deps.sh demo
	$(MAKE) $(JOBS) --no-print-directory bench-programs
	tests/bench/run.sh $(BUILD)

bench-programs: all $(filter $(BUILD)/tests/bench/%,$(TESTS))

bench-peers:  ## + install PyTorch from PyPI into build/peers, the peer of make bench
	tests/tools/deps.sh bench
	tests/bench/peers.sh $(BUILD)

# libxsmm is a peer of products if it is there: apt-get install libxsmm-dev.
$(BUILD)/tests/bench/products: LDLIBS += $(if $(wildcard /usr/include/libxsmm.h),-lxsmm -lxsmmnoblas -ldl)
