# project.mk -- targets that a handed-out tree lacks: the whole suite, lint, mutants, GPUs, handouts. Included by the top Makefile.
#
# Variables: OUT=dir  WITH=1,2  STARS=open  LAB6=1 (handout)  MUTANTS="pattern ..."  TREES=4 SECONDS=600 AGAIN=1 (mutants-generated)

# A second make builds after deps.sh, so that it finds newly installed packages.
.PHONY: demo demo-mnist test-full report writeup-check lint format handout test-handout test-alone gpu-report gpu-pack mutants mutants-generated
demo:        ## + train a small GPT-2 on one device and by FSDP on 4 ranks, compare the bits (minutes)
demo-mnist:  ## + the same, and by DDP, with the tutorial's net on drawn digits, or on MNIST's files with MNIST=DIR
demo demo-mnist:
	tests/tools/deps.sh demo
	$(MAKE) $(JOBS) --no-print-directory all
	tests/tools/demo.sh $(BUILD) $(subst demo,,$(@:demo-%=%))
test:  ## + run the quick tests (minutes); LAB=2 TASK=2.1 RANKS="2 3": only these; DEVICE=cuda-sim: tests of that device; FEW=1: fewer

test-full:  ## + run all tests: more ranks, sanitizers, valgrind, other compilers and machines, mutants (hours; resumes)
	tests/tools/deps.sh test-full
	$(MAKE) $(JOBS) --no-print-directory tests
	tests/tools/test.sh full $(BUILD)

writeup-check: $(BUILD)/fsdp_train  ## run the commands beside the figures of WRITEUP.md and compare; SLOW=1: also those that need minutes or an idle machine
	tests/tools/writeup_check.sh $(if $(SLOW),all) $(BUILD)

lint:  ## check layout, structure rules and source tags
	tests/tools/lint.sh

format:  ## lay out the sources with clang-format 14
	tests/tools/format.sh

report:  ## + measure memory and traffic of every strategy and print them beside the plan
	tests/tools/deps.sh build
	$(MAKE) $(JOBS) --no-print-directory all
	tests/tools/report.sh $(BUILD)

handout:  ## write the tree that learners get: OUT=dir; WITH=1,2: labs 1 and 2 are solved in it, STARS=open: but not their stars; LAB6=1: with lab 6
	tests/tools/handout.sh $(if $(filter-out 0,$(LAB6)),--lab6) $(if $(STARS),--stars $(call quote,$(STARS))) $(call quote,$(OUT)) $(call quote,$(WITH))

test-handout:  ## build the handed-out tree: no warning, every task says TODO, no answer in it
	tests/tools/deps.sh --all test
	tests/grade/handout_test.sh

test-alone:  ## solve the handed-out tree task by task: each passes with only what it needs (LAB=3; 15 minutes without)
	$(MAKE) $(JOBS) --no-print-directory tests
	tests/grade/alone_test.sh $(LAB)

# Libraries that scripts of tests/cli preload into the trainer.
PRELOADS := $(patsubst tests/cli/preload/%.c,$(BUILD)/tests/cli/%.so,$(wildcard tests/cli/preload/*.c))
tests: $(PRELOADS)
$(PRELOADS): $(BUILD)/tests/cli/%.so: tests/cli/preload/%.c tests/cli/preload/alloc_calls.h $(BUILD)/flags
	@mkdir -p $(@D)
	$(SAY) LINK $@
	$(Q)$(CC) $(WARN) -O2 $(CPPFLAGS) $(CFLAGS) $(LDFLAGS) -std=c11 -D_GNU_SOURCE -fPIC -shared -o $@ $<

gpu-report:  ## test and time --device cuda on this machine's GPU and write a page (PART=1, 2, 3: ten minutes each); DEVICE=cuda-sim: dry run
	$(if $(DEVICE),$(MAKE) $(JOBS) --no-print-directory tests)
	tests/gpu/report.sh $(BUILD)

gpu-pack:  ## fill build/gpu-pack with what gpu-report needs on a machine with a GPU but without Debian's packages
	tests/gpu/pack.sh $(BUILD)

mutants:  ## plant known bugs one by one; each must turn a test red
	tests/tools/deps.sh --all test
	tests/mutants/run.sh $(MUTANTS)

mutants-generated: $(addprefix $(BUILD)/tests/grade/,$(GRADERS)) $(BUILD)/fsdp_run  ## plant small mistakes in every SOLUTION block (hours): LAB=1 TASK=1.2 TREES=4 SECONDS=600 AGAIN=1
	tests/mutants/generated.sh $(if $(LAB),--lab $(LAB)) $(if $(TASK),--task $(TASK)) --trees $(or $(TREES),2) \
		$(if $(SECONDS),--for $(SECONDS)) $(if $(AGAIN),--again) $(BUILD)
