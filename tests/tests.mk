# tests.mk -- grading, and runs of a lab's code. Included by the top Makefile.
#
# Variables: LAB="3 4" (1..6)  TASK="2.1 2.3"  RANKS="2 3"  HINTS=1..3 (hints.sh)  RANK=1 BREAK=function (debug.sh)
#            BASE=ref REF=tree   grade LAB on the labs below it from another tree (instructors, CI)
#            EXTRA_TESTS=dir     also grade an instructor's own tests (extra.sh)

GRADE_ARGS := $(if $(LAB),--lab $(call quote,$(LAB))) $(if $(TASK),--task $(call quote,$(TASK))) $(if $(RANKS),--ranks $(call quote,$(RANKS)))
# The graders that a lab or task needs, including those of the labs below it; without LAB and TASK all graders.
GRADERS     = $(shell awk -v lab=$(call quote,$(LAB)) -v task=$(call quote,$(TASK)) -f tests/grade/programs.awk $(or $(GRADE_TASKS),tests/grade/tasks.txt))
# FROM: the path from the learner's folder to this one, with a slash at its end, for paths that are printed.
export GRADE_FROM := $(FROM)

ifneq ($(EXTRA_TESTS),)
override EXTRA_TESTS := $(abspath $(EXTRA_TESTS))
EXTRA := $(shell tests/grade/extra.sh $(call quote,$(EXTRA_TESTS)) $(BUILD))
$(if $(EXTRA),,$(error no grade))
export GRADE_TASKS := $(BUILD)/extra/tasks.txt
override GRADE_WITH := $(strip $(filter-out EXTRA_TESTS=%,$(GRADE_WITH)) EXTRA_TESTS=$(EXTRA_TESTS))
# The extra tests link what the labs' graders link. Their objects do not contain the path of their sources.
EXTRA_LIBS := $(filter %_lib,$(call with_libs,$(patsubst %.c,%,$(wildcard tests/grade/lab[1-6].c))))
define extra_rule
$(BUILD)/extra/$(1).o: $(EXTRA_TESTS)/$(1).c $(BUILD)/flags $(BUILD)/extra/folder
	$$(SAY) CC $$<
	$$(Q)$$(COMPILE) -g0 -fmacro-prefix-map=$(EXTRA_TESTS)/= -c -o $$@ $$< || tests/grade/extra.sh --failed $$<
$(BUILD)/tests/grade/$(1): $(BUILD)/extra/$(1).o $(EXTRA_LIBS:%=$(BUILD)/%.o) $(BUILD)/libfsdp.a
	$$(SAY) LINK $$@
	$$(Q)$$(LINK) -o $$@ -Xlinker --whole-archive $$^ -Xlinker --no-whole-archive $$(LIBS) || tests/grade/extra.sh --failed $(EXTRA_TESTS)/$(1).c
	$$(Q)ln -sf $(PLUGINS:%=../../%) $$(@D)
endef
$(foreach e,$(EXTRA),$(eval $(call extra_rule,$(e))))
-include $(EXTRA:%=$(BUILD)/extra/%.d)
endif

.PHONY: test-labs run debug graders grade-submission grade-all judge hand-in
ifeq ($(BASE),ref)
test-labs:  ## grade the labs' tasks; LAB=2 TASK=2.1 RANKS=3: only these
	tests/tools/overlay.sh $(call quote,$(LAB)) $(call quote,$(REF)) $(BUILD)
	$(MAKE) $(JOBS) -C $(BUILD)/base-ref BUILD=build BASE= FROM="$(FROM)$(BUILD)/base-ref/" GRADE_WITH=$(call quote,BASE=ref REF=$(REF)) $(if $(EXTRA_TESTS),EXTRA_TESTS=$(EXTRA_TESTS)) test-labs
else
export GRADE_WITH
# fsdp_run starts the graders' ranks. Lab 6 is a plug-in that its grader opens.
test-labs: $(BUILD)/fsdp_run $(addprefix $(BUILD)/tests/grade/,$(GRADERS)) $(if $(filter lab6,$(GRADERS)),$(NPU_SIM))
	$(if $(HINTS),env BUILD=$(BUILD) tests/grade/hints.sh $(call quote,$(HINTS))) tests/grade/grade.sh $(GRADE_ARGS) $(BUILD)
endif

run:  ## + show what a lab's code does: LAB=3 trains on 1, 2, 3 and 4 ranks and explains what is compared
	@tests/grade/run_lab.sh --check $(call quote,$(LAB))
	@tests/tools/deps.sh labs
	@$(MAKE) $(JOBS) --no-print-directory $(patsubst %,$(BUILD)/%,fsdp_train fsdp_run $(if $(filter 6,$(LAB)),fsdp_npu_sim.so))
	@tests/grade/run_lab.sh $(call quote,$(LAB)) $(BUILD)

# A separate build in which gdb can show variables.
DEBUG_ARGS := --task $(call quote,$(TASK)) --rank $(call quote,$(RANK)) $(if $(RANKS),--ranks $(call quote,$(RANKS))) $(if $(BREAK),--break $(call quote,$(BREAK)))
DEBUG_LAB  := $(firstword $(subst ., ,$(TASK)))
debug:  ## run a task with one rank under gdb while the others wait: TASK=2.1 RANK=1 [RANKS=3] [BREAK=unshard_begin]
	tests/grade/debug.sh --check $(DEBUG_ARGS)
	$(MAKE) $(JOBS) --no-print-directory BUILD=$(BUILD)/debug DEBUG=1 \
		$(patsubst %,$(BUILD)/debug/%,fsdp_run tests/grade/lab$(DEBUG_LAB) $(if $(filter 6,$(DEBUG_LAB)),fsdp_npu_sim.so))
	tests/grade/debug.sh $(DEBUG_ARGS) $(BUILD)/debug

# The programs that grade handed-in trees.
graders: $(patsubst %.c,$(BUILD)/%,$(wildcard tests/grade/lab[1-6].c tests/grade/worker.c)) $(EXTRA:%=$(BUILD)/tests/grade/%) $(BUILD)/fsdp_run $(NPU_SIM)

# Takes rights from a learner's code. It needs libseccomp.
$(BUILD)/tests/grade/confine: tests/grade/confine.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(SAY) CC $@
	$(Q)$(CC) $(WARN) -O2 $(CPPFLAGS) $(CFLAGS) $(LDFLAGS) -std=c11 -D_GNU_SOURCE -o $@ $< $(shell $(PROBE) --flags seccomp)

# UNCONFINED=1: on a machine that cannot confine programs. AT_ONCE: how many trees are graded side by side.
GRADER_OF_grade-submission = submission.sh $(call quote,$(TREE))
GRADER_OF_grade-all        = grade_all.sh $(call quote,$(DIR))
grade-submission:  ## + grade a handed-in tree on this one: TREE=dir OUT=dir LAB=n; see tests/grade/SUBMISSIONS.md
grade-all:         ## + grade all handed-in trees and archives in a folder, and write one table: DIR=dir OUT=dir AT_ONCE=2
grade-submission grade-all:
	tests/tools/deps.sh $(if $(UNCONFINED),labs,grade)
	$(MAKE) $(JOBS) --no-print-directory graders $(BUILD)/tests/grade/judge $(if $(UNCONFINED),,$(BUILD)/tests/grade/confine)
	$(if $(OUT),,rm -rf $(BUILD)/submission)
	tests/grade/$(GRADER_OF_$@) $(call quote,$(or $(OUT),$(BUILD)/submission)) $(BUILD) \
		$(if $(EXTRA_TESTS),--extra $(EXTRA_TESTS)) $(GRADE_ARGS)

judge:  ## call this tree's functions as the judge of submissions does: TASK=1.1 RANKS=2 SEED=number in its verdict
	$(MAKE) $(JOBS) --no-print-directory $(BUILD)/fsdp_run $(BUILD)/tests/grade/judge $(BUILD)/tests/grade/worker
	tests/grade/judge.sh $(GRADE_ARGS) $(if $(SEED),--seed $(call quote,$(SEED))) $(BUILD)

hand-in:  ## check the files that you hand in, and pack them: OUT=hand-in.tar.gz
	$(MAKE) $(JOBS) --no-print-directory graders
	rm -rf $(BUILD)/hand-in
	UNCONFINED=1 tests/grade/submission.sh . $(BUILD)/hand-in $(BUILD) --pack $(call quote,$(or $(OUT),hand-in.tar.gz))
