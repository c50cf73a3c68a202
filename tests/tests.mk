# tests.mk -- grading, the handed-out tree, mutants. Included by the top Makefile.
#
# Variables: LAB=1..6  TASK=2.1  RANKS="2 3"  HINTS=1..3 (hints.sh)  RANK=1 BREAK=function (debug.sh)  OUT=dir (handout)
#            MUTANTS="pattern ..."  TREES=4 SECONDS=600 AGAIN=1 (mutants-generated)
#            BASE=ref REF=tree   grade LAB on the labs below it of another tree (instructors, CI)

GRADE_LABS := $(or $(LAB),1 2 3 4 5 6)
GRADE_ARGS := $(if $(LAB),--lab $(LAB)) $(if $(TASK),--task $(TASK)) $(if $(RANKS),--ranks "$(RANKS)")

# Lab 6 is a plug-in that its grader opens.
GRADERS := $(patsubst %,$(BUILD)/tests/grade/lab%,$(filter 1 2 3 4 5 6,$(GRADE_LABS)))
GRADERS += $(if $(HAVE_CXX),$(patsubst 6,$(BUILD)/fsdp_npu_sim.so,$(filter 6,$(GRADE_LABS))))

.PHONY: test-labs test-alone handout test-handout mutants mutants-generated
ifeq ($(BASE),ref)
test-labs:  ## grade the labs' tasks: LAB=2 TASK=2.1 RANKS=3 (all of them without)
	tests/tools/overlay.sh "$(LAB)" "$(REF)" $(BUILD)
	$(MAKE) $(JOBS) -C $(BUILD)/base-ref BUILD=build BASE= test-labs
else
test-labs: $(GRADERS)
	$(if $(HINTS),env BUILD=$(BUILD) tests/grade/hints.sh $(HINTS)) tests/grade/grade.sh $(GRADE_ARGS) $(BUILD)
endif

test-alone:  ## solve the handed-out tree task by task: each passes with only what it needs (LAB=3; 15 minutes without)
	$(MAKE) $(JOBS) --no-print-directory tests
	tests/grade/alone_test.sh $(LAB)

# A build of its own, in which gdb can show variables.
DEBUG_ARGS := --task "$(TASK)" --rank "$(RANK)" $(if $(RANKS),--ranks "$(RANKS)") $(if $(BREAK),--break "$(BREAK)")
DEBUG_LAB  := $(firstword $(subst ., ,$(TASK)))
.PHONY: debug
debug:  ## a task with one rank under gdb, the others wait: TASK=2.1 RANK=1 [RANKS=3] [BREAK=unshard_begin]
	tests/grade/debug.sh --check $(DEBUG_ARGS)
	$(MAKE) $(JOBS) --no-print-directory BUILD=$(BUILD)/debug DEBUG=1 \
		$(patsubst %,$(BUILD)/debug/%,fsdp_run tests/grade/lab$(DEBUG_LAB) $(if $(filter 6,$(DEBUG_LAB)),fsdp_npu_sim.so))
	tests/grade/debug.sh $(DEBUG_ARGS) $(BUILD)/debug

handout:  ## write the tree that learners get: OUT=dir
	tests/tools/handout.sh "$(OUT)"

test-handout:  ## build the handed-out tree: no warning, every task says TODO
	tests/tools/deps.sh --check test
	tests/grade/handout_test.sh

# What scripts of tests/cli load in front of the trainer: libraries, so they stand apart from the test programs.
PRELOADS := $(patsubst tests/cli/preload/%.c,$(BUILD)/tests/cli/%.so,$(wildcard tests/cli/preload/*.c))
tests: $(PRELOADS)
$(PRELOADS): $(BUILD)/tests/cli/%.so: tests/cli/preload/%.c tests/cli/preload/alloc_calls.h $(BUILD)/flags
	@mkdir -p $(@D)
	$(SAY) LINK $@
	$(Q)$(CC) -D_GNU_SOURCE -std=c11 -O2 $(WARN) $(if $(CI),-Werror) -fPIC -shared -o $@ $<

.PHONY: gpu-report gpu-pack
gpu-report:  ## what --device cuda does on this machine's GPU, as a page (PART=1, 2, 3: ten minutes each); DEVICE=cuda-sim: dry run
	$(if $(DEVICE),$(MAKE) $(JOBS) --no-print-directory tests)
	tests/gpu/report.sh $(BUILD)

gpu-pack:  ## into build/gpu-pack: what a machine with a GPU but without Debian's packages needs for gpu-report
	tests/gpu/pack.sh $(BUILD)

mutants:  ## plant known bugs one by one; each must turn a test red
	tests/tools/deps.sh --check test
	tests/mutants/run.sh $(MUTANTS)

mutants-generated: $(GRADERS) $(BUILD)/fsdp_run  ## plant small mistakes in every SOLUTION block (hours): LAB=1 TASK=1.2 TREES=4 SECONDS=600 AGAIN=1
	tests/mutants/generated.sh $(if $(LAB),--lab $(LAB)) $(if $(TASK),--task $(TASK)) --trees $(or $(TREES),2) \
		$(if $(SECONDS),--for $(SECONDS)) $(if $(AGAIN),--again) $(BUILD)
