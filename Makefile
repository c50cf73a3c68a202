# FSDP Labs -- `make help` lists the targets.
#
# Variables: CC=gcc|clang   MARCH=-march=native   DEBUG=1   SAN=address|thread   BUILD=build
#            CPPFLAGS, CFLAGS, CXXFLAGS, LDFLAGS, LDLIBS, AR, CXX, PKG_CONFIG: as usual, from the environment too
#            MPI=0   builds without MPI even if it is installed: $(BUILD)/fsdp_run starts the ranks of one host
# Objects go to $(BUILD), and no file is written beside the sources. Changing a variable rebuilds what it
# affects. CI=true (any value) turns warnings into errors; V=1 shows the commands.

# What a user writes here is text: $(shell ...) in the name of a folder runs nothing. quote: one word of the shell.
TEXTS   := LAB TASK RANKS HINTS RANK BREAK BASE REF EXTRA_TESTS TREE DIR OUT SEED FROM WITH STARS LAB6 AT_ONCE MUTANTS TREES SECONDS DESTDIR PREFIX MNIST
$(foreach t,$(TEXTS),$(if $(filter command environment,$(firstword $(origin $(t)))),$(eval override $(t) := $$(value $(t)))))
quote    = '$(subst ','\'',$(1))'

BUILD  ?= build
ifeq ($(origin CC),default)
CC     := gcc
endif
# The C++ compiler of the same make: aarch64-linux-gnu-gcc-12 -> aarch64-linux-gnu-g++-12; cc -> g++.
ifeq ($(origin CXX),default)
CXX    := $(shell echo '$(CC)' | sed -E 's,gcc([^/]*)$$,g++\1,; t; s,clang([^/]*)$$,clang++\1,; t; s/.*/g++/')
endif
# What makes the compiler use all instructions of this processor; nothing for a cross compiler.
ifeq ($(origin MARCH),undefined)
MARCH  := $(shell for f in -march=native -mcpu=native; do $(CC) $$f -E -x c /dev/null >/dev/null 2>&1 && echo $$f && break; done)
endif

# ---- what this machine has ------------------------------------------------------------------------
# The compiler counts if it has OpenMP, a library if a program that uses it can be linked with the user's flags (probe.sh).
comma    := ,
PROBE    := $(foreach v,CC CPPFLAGS CFLAGS CXXFLAGS LDFLAGS LDLIBS PKG_CONFIG,$(if $($(v)),$(v)=$(call quote,$($(v))))) tests/tools/probe.sh
FOUND    := $(shell $(PROBE) cc cjson xxhash dnnl zlib cmocka $(if $(filter 0,$(MPI)),,mpich) $(firstword $(CXX)))
HAVE_MPI  := $(filter mpich,$(FOUND))
HAVE_DNNL := $(filter dnnl,$(FOUND))
HAVE_ZLIB := $(filter zlib,$(FOUND))
HAVE_CXX  := $(filter $(firstword $(CXX)),$(FOUND))
HAVE_CMOCKA := $(filter cmocka,$(FOUND))
HAVE_BASE := $(and $(filter cc,$(FOUND)),$(filter cjson,$(FOUND)),$(filter xxhash,$(FOUND)))
LIB_FLAGS := $(if $(HAVE_BASE),$(shell $(PROBE) --flags cjson xxhash $(HAVE_DNNL) $(HAVE_ZLIB) $(HAVE_MPI)))
CMOCKA    := $(if $(HAVE_CMOCKA),$(shell $(PROBE) --flags cmocka))
# Folders of headers, without warnings about them; libraries, which the program finds where the linker did.
headers    = $(patsubst -I%,-isystem %,$(filter -I% -D%,$(1)))
libraries  = $(foreach w,$(filter-out -I% -D%,$(1)),$(w) $(patsubst -L%,-Wl$(comma)-rpath$(comma)%,$(filter -L%,$(w))))

# ---- flags ----------------------------------------------------------------------------------------
# A command has defaults (warnings, OPT, MARCH), then the user's flags, which may change them, then NEED_*, which the program and
# its results depend on: they undo what they can (-ffast-math, -fvisibility=hidden). FORCE refuses what has no opposite.
# -ffp-contract=off: a*b+c is rounded twice everywhere, so the vector loop and its tail compute the same. It follows
# -fno-fast-math, which resets it with clang.
# -fno-math-errno -fno-trapping-math: lets sqrtf and selects vectorise; no value changes.
# LINKMATH: linked with -ffast-math, a program gets start-up code that flushes denormals to zero.
space    := $(subst x,,x x)
WARN_CXX := -Wall -Wextra $(if $(CI),-Werror)
WARN     := -Wall -Wextra -Wshadow -Wconversion $(if $(findstring clang,$(CC)),-Wno-enum-float-conversion) -Wno-sign-conversion -Wstrict-prototypes -Wpointer-arith $(if $(CI),-Werror)
OPT      := $(if $(DEBUG),-O1 -g3 -DFSDP_DEBUG=1,-O3 -g1)
# MOVES: tuned for some processors, gcc 12 moves 32 bytes at once and then writes a constant struct of the words
# {x, x, x, 0} as four times x. With moves of 16 bytes it is right. The test prints "12 __clang_major__ 1" for gcc 12 on x86-64.
moves     = $(if $(filter 12__clang_major__1,$(subst $(space),,$(shell echo __GNUC__ __clang_major__ __x86_64__ | $(1) -E -P -x c - 2>/dev/null))),-mmove-max=128 -mstore-max=128)
FPFLAGS  := -fno-fast-math -fno-associative-math -fno-reciprocal-math -fsigned-zeros -fno-finite-math-only -ffp-contract=off \
	-fno-math-errno -fno-trapping-math
LINKMATH := -fno-fast-math -fno-unsafe-math-optimizations
REFUSED  := $(filter -Ofast -mfpmath=% -mdaz-ftz -fsingle-precision-constant -ffp-model=% -ffp-eval-method=% -fdenormal-fp-math% -fapprox-func,\
	$(CC) $(CXX) $(OPT) $(MARCH) $(CPPFLAGS) $(CFLAGS) $(CXXFLAGS) $(LDFLAGS))
SANFLAGS := $(if $(SAN),-fsanitize=$(SAN)$(if $(filter address,$(SAN)),$(comma)undefined) -fno-omit-frame-pointer)
NEED_CFLAGS   := -std=c11 $(FPFLAGS) $(call moves,$(CC)) -fopenmp -pthread -fvisibility=default $(SANFLAGS)
NEED_CXXFLAGS := -std=c++17 $(FPFLAGS) $(if $(HAVE_CXX),$(call moves,$(CXX))) -pthread -fvisibility=default $(SANFLAGS)
NEED_ALL      := -D_GNU_SOURCE -I. -MMD -MP
NEED_CPPFLAGS := $(NEED_ALL) $(if $(HAVE_MPI),-DFSDP_HAVE_MPI=1) $(if $(HAVE_DNNL),-DFSDP_HAVE_DNNL=1) $(if $(HAVE_ZLIB),-DFSDP_HAVE_ZLIB=1) $(call headers,$(LIB_FLAGS))
# -rdynamic: a plug-in (ops/backend.h) calls functions of the program that opens it, so they are undefined in the plug-in.
NEED_LDFLAGS  := $(LINKMATH) -fopenmp -pthread $(SANFLAGS) -rdynamic
NEED_SHARED   := $(LINKMATH) -pthread $(SANFLAGS) -shared -Wl,-z,undefs
NEED_LDLIBS   := $(call libraries,$(LIB_FLAGS)) -lm
COMPILE     = $(CC) $(WARN) $(OPT) $(MARCH) $(CPPFLAGS) $(CFLAGS) $(NEED_CFLAGS) $(NEED_CPPFLAGS)
CXX_ARGS    = $(WARN_CXX) $(OPT) $(MARCH) $(CPPFLAGS) $(CXXFLAGS) $(NEED_CXXFLAGS) $(NEED_ALL)
COMPILE_CXX = $(CXX) $(CXX_ARGS)
LINK        = $(CC) $(LDFLAGS) $(NEED_LDFLAGS)
LINK_SHARED = $(CXX) $(LDFLAGS) $(NEED_SHARED)
LIBS        = $(LDLIBS) $(NEED_LDLIBS)

# ---- what is built --------------------------------------------------------------------------------
PROJECT     := $(wildcard tests/project.mk)
# A handed-out tree may lack lab 6, and a machine may lack a C++ compiler.
NPU_SIM     := $(if $(HAVE_CXX),$(if $(wildcard lab6_npu/npu.mk),$(BUILD)/fsdp_npu_sim.so))
LABS        := lab1_flatparam lab2_forward lab3_backward lab4_optimizer lab5_prefetch
# Sources that only plug-ins use are left out: common/accel, common/cuda and lab 6.
COMMON_SRC  := $(sort $(filter-out common/accel/% common/cuda/%,$(wildcard common/*/*.c common/*/*/*.c)))
COMMON_SRC  := $(filter-out $(if $(HAVE_MPI),%/no_mpi.c,$(addprefix common/comm/transport/,mpi% hier%)),$(COMMON_SRC))
LAB_SRC     := $(sort $(foreach l,$(LABS),$(wildcard $(l)/*.c)))
TRAINER_SRC := $(sort $(filter-out %_main.c,$(wildcard trainer/*.c trainer/tools/*.c)))
MAIN_SRC    := $(sort $(wildcard trainer/*_main.c trainer/tools/*_main.c))
TEST_SRC    := $(sort $(wildcard tests/unit/*.c $(filter-out %/confine.c %/gadget.c,$(wildcard tests/grade/*.c)) tests/equivalence/*.c tests/cli/*.c tests/bench/*.c))
TEST_MAIN   := $(filter-out %_lib.c,$(TEST_SRC))

COMMON_OBJ  := $(COMMON_SRC:%.c=$(BUILD)/%.o)
LAB_OBJ     := $(LAB_SRC:%.c=$(BUILD)/%.o)
TRAINER_OBJ := $(TRAINER_SRC:%.c=$(BUILD)/%.o)
TEST_OBJ    := $(TEST_SRC:%.c=$(BUILD)/%.o)
PROGRAMS    := $(patsubst %_main.c,$(BUILD)/%,$(notdir $(MAIN_SRC)))
# Without cmocka, make tests leaves these out.
UNIT_TESTS  := $(patsubst %.c,$(BUILD)/%,$(shell grep -l 'include "tests/unit/unit_lib.h"' $(wildcard tests/unit/test_*.c) /dev/null))
TESTS       := $(filter-out $(if $(HAVE_CMOCKA),,$(UNIT_TESTS)),$(TEST_MAIN:%.c=$(BUILD)/%))
OBJECTS     := $(COMMON_OBJ) $(LAB_OBJ) $(TRAINER_OBJ) $(MAIN_SRC:%.c=$(BUILD)/%.o) $(TEST_OBJ)

Q := $(if $(V),,@)
SAY = $(if $(V),@:,@printf '  %-4s %s\n')

# A make called with -j passes its job slots on; a make called without -j uses all cores.
JOBS = $(if $(findstring -j,$(MAKEFLAGS)),,-j$(shell nproc))

.PHONY: all tests no-cmocka deps test doctor install uninstall clean help FORCE
.DEFAULT_GOAL := all
.SECONDARY:
all: $(PROGRAMS)  ## build the trainer and the tools into build/
tests: all $(TESTS) $(NPU_SIM) $(if $(HAVE_MPI),$(BUILD)/fsdp_min)  ## build the test programs too

# All files of flags depend on this, so nothing is built with flags that would change the results.
FORCE:
	@$(if $(REFUSED),printf '%s\n' $(call quote,make: $(REFUSED) would change the results of training) \
		'HINT: leave it out of the flags$(comma) or write -O3 for -Ofast' >&2; exit 1)

# This file holds the compiler's command line; it becomes newer than the objects when the command line changes.
$(BUILD)/flags: FORCE
	@$(if $(HAVE_BASE),tests/tools/stamp.sh $@ $(call quote,$(COMPILE) / $(LDFLAGS) $(NEED_LDFLAGS) $(LIBS)),tests/tools/deps.sh --check build)

# Functions of tests are often callbacks, which may have unused parameters. Unit tests also need cmocka.
$(TEST_OBJ): private NEED_CFLAGS += -Wno-unused-parameter
$(filter $(BUILD)/tests/unit/%,$(TEST_OBJ)): private NEED_CPPFLAGS += $(call headers,$(CMOCKA))
$(if $(HAVE_CMOCKA),,$(UNIT_TESTS:%=%.o): | no-cmocka)
no-cmocka:
	@tests/tools/deps.sh --all test

# A checksum of the headers that a plug-in shares with the program tells whether the plug-in fits.
BACKEND_ABI := -DBACKEND_ABI=$(shell cat common/base/*.h common/comm/*.h common/device/*.h common/observe/*.h common/ops/*.h common/sum/*.h | cksum | cut -d' ' -f1)
$(BUILD)/abi: FORCE
	@tests/tools/stamp.sh $@ "$(BACKEND_ABI)"
$(BUILD)/common/ops/backends.o: private NEED_CPPFLAGS += $(BACKEND_ABI)
$(BUILD)/common/ops/backends.o: $(BUILD)/abi

# Ranks compare two checksums: of all sources, and of what the compiler is and was told, except paths.
SOURCES := $(sort $(foreach e,c h cpp cu html,$(wildcard $(foreach f,common trainer lab*_*,$(f)/*.$(e) $(f)/*/*.$(e) $(f)/*/*/*.$(e)))))
ALIKE   := -DFSDP_SOURCES=$(shell cksum $(SOURCES) | cksum | cut -d' ' -f1) -DFSDP_TARGET=$(if $(HAVE_BASE),$(shell \
	{ $(CC) $(OPT) $(MARCH) $(CFLAGS) $(NEED_CFLAGS) -E -dM -x c /dev/null; echo $(OPT) $(MARCH) $(CFLAGS); } | cksum | cut -d' ' -f1))
$(BUILD)/alike: FORCE
	@tests/tools/stamp.sh $@ "$(ALIKE)"
$(BUILD)/trainer/alike.o: private NEED_CPPFLAGS += $(ALIKE)
$(BUILD)/trainer/alike.o: $(BUILD)/alike

$(OBJECTS): $(BUILD)/%.o: %.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(SAY) CC $<
	$(Q)$(COMPILE) -c -o $@ $<

# Converts a page to a list of its lines, as C strings.
$(BUILD)/%.inc: %.html
	@mkdir -p $(@D)
	$(Q)sed 's/[\\"]/\\&/g; s/.*/"&",/' $< >$@
$(BUILD)/common/observe/snapshot.o: $(BUILD)/common/observe/snapshot_page.inc
$(BUILD)/common/observe/snapshot.o: private NEED_CPPFLAGS += -I$(BUILD)

$(BUILD)/libfsdp.a: $(COMMON_OBJ) $(LAB_OBJ) $(TRAINER_OBJ)
	@rm -f $@
	$(SAY) AR $@
	$(Q)$(AR) rcs $@ $^

# The main programs are in trainer/. A program that may open a plug-in links all functions, because the plug-in may call any.
OPENS_PLUGINS := trainer/fsdp_train_main.c trainer/tools/fsdp_generate_main.c
define main_rule
$(BUILD)/$(patsubst %_main.c,%,$(notdir $(1))): $(BUILD)/$(1:.c=.o) $(BUILD)/libfsdp.a
	$$(SAY) LINK $$@
	$$(Q)$$(LINK) -o $$@ $(if $(filter $(OPENS_PLUGINS),$(1)),-Xlinker --whole-archive) $$^ -Xlinker --no-whole-archive $$(LIBS)
endef
$(foreach m,$(MAIN_SRC),$(eval $(call main_rule,$(m))))

# A test program links x_lib.c iff it includes x_lib.h, directly or through another x_lib.
# INCLUDED has a word "tests/unit/test_mesh:tests/unit/comm_cases_lib" for each such line.
# A test that may open a plug-in (target_lib) links all functions, because the plug-in may call any of them. A program opens
# only plug-ins in its own folder, so a test's folder gets links to the plug-ins, built or not.
PLUGINS  := fsdp_cuda.so fsdp_cuda_sim.so fsdp_npu.so fsdp_npu_sim.so
INCLUDED := $(shell grep -o 'include "tests/.*_lib' $(wildcard tests/*/*.[ch]) | sed 's/\.[ch]:include "/:/')
direct    = $(foreach f,$(1),$(patsubst $(f):%,%,$(filter $(f):%,$(INCLUDED))))
with_libs = $(if $(filter-out $(1),$(direct)),$(call with_libs,$(sort $(1) $(direct))),$(1))

define test_rule
$(BUILD)/$(1): $(patsubst %,$(BUILD)/%.o,$(call with_libs,$(1))) $(BUILD)/libfsdp.a
	$$(SAY) LINK $$@
	$$(Q)$$(LINK) -o $$@ $(if $(filter %/target_lib,$(call with_libs,$(1))),-Xlinker --whole-archive) \
		$$^ -Xlinker --no-whole-archive $(if $(filter tests/unit/%,$(1)),$(call libraries,$(CMOCKA))) $$(LIBS)
	$(if $(filter %/target_lib,$(call with_libs,$(1))),$$(Q)ln -sf $(PLUGINS:%=../../%) $$(@D))
endef
$(foreach t,$(TEST_MAIN:.c=),$(eval $(call test_rule,$(t))))

# One file that shows the idea. It needs MPI and nothing of this tree.
MPI_FLAGS = $(shell $(PROBE) --flags mpich)
$(BUILD)/fsdp_min: docs/fsdp_min.c $(BUILD)/flags
	@$(if $(HAVE_MPI),mkdir -p $(@D),printf '%s\n' 'make: fsdp_min needs MPICH$(comma) which is not here or was left out by MPI=0' \
		'HINT: make deps installs it' >&2; exit 1)
	$(SAY) LINK $@
	$(Q)$(CC) $(WARN) -O2 $(CPPFLAGS) $(CFLAGS) $(LDFLAGS) -std=c11 $(FPFLAGS) $(LINKMATH) $(call headers,$(MPI_FLAGS)) -o $@ $< \
		$(LDLIBS) $(call libraries,$(MPI_FLAGS)) -lm

# ---- targets for users ----------------------------------------------------------------------------
# A second make builds after deps.sh, so that it finds newly installed packages. A handed-out tree has only labs to test.
ifneq ($(LAB)$(TASK)$(RANKS)$(BASE)$(if $(PROJECT),,labs),)
test:
	tests/tools/deps.sh labs
	$(MAKE) $(JOBS) --no-print-directory test-labs
else
test:
	tests/tools/deps.sh test
	$(MAKE) $(JOBS) --no-print-directory tests
	$(if $(DEVICE),tests/tools/on_device.sh $(DEVICE),tests/tools/test.sh quick) $(BUILD)
endif

deps:  ## + install what building and testing need, and build nothing
	tests/tools/deps.sh $(if $(PROJECT),test,labs)

doctor:  ## report what this machine has, which features are off, and how to get them
	@tests/tools/doctor.sh $(BUILD)

# The script compiles nothing, so make install needs neither a compiler nor the flags of the build.
PREFIX ?= /usr/local
install:  ## copy what make has built to PREFIX=/usr/local, below DESTDIR: programs, plug-ins, man pages
uninstall:  ## remove what make install has copied, with the same PREFIX and DESTDIR
install uninstall:
	@trainer/tools/install.sh $@ $(BUILD) $(call quote,$(DESTDIR)) $(call quote,$(PREFIX)) $(notdir $(PROGRAMS))

clean:  ## remove build/
	rm -rf $(BUILD)

help:  ## print this list
	@awk -F':.*## ' '/^[a-z -]+:.*## /{printf "  make %-13s %s\n", $$1, ($$2 ~ /^[+]/ ? "" : "  ") $$2}' $(MAKEFILE_LIST)
	@echo '  +  first names the Debian packages that are missing, and installs them with apt-get'

-include common/cuda/cuda.mk lab6_npu/npu.mk tests/tests.mk $(PROJECT) tests/handout.mk tests/bench/bench.mk
-include $(OBJECTS:.o=.d)
