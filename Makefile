# FSDP Labs -- `make help` lists the targets.
#
# Variables: CC=gcc|clang   MARCH=-march=native   DEBUG=1   SAN=address|thread   BUILD=build   V=1
# Objects go to $(BUILD); nothing is written beside the sources.

BUILD  ?= build
MARCH  ?= -march=native
ifeq ($(origin CC),default)
CC     := gcc
endif

# ---- what this machine has ------------------------------------------------------------------------
PKG      := pkg-config
HAVE_MPI  := $(shell $(PKG) --exists mpich 2>/dev/null && echo 1)
HAVE_DNNL := $(shell test -e /usr/include/dnnl.h && echo 1)

# ---- flags ----------------------------------------------------------------------------------------
# -ffp-contract=off: a*b+c is two roundings everywhere, so a vector's tail equals its body.
# -fno-math-errno -fno-trapping-math: let sqrtf and selects vectorise; no value changes.
WARN     := -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion -Wstrict-prototypes
OPT      := $(if $(DEBUG),-O1 -g3 -DFSDP_DEBUG=1,-O3 -g1)
FPFLAGS  := -ffp-contract=off -fno-math-errno -fno-trapping-math
SANFLAGS := $(if $(SAN),-fsanitize=$(SAN)$(if $(filter address,$(SAN)),$(comma)undefined) -fno-omit-frame-pointer)
comma    := ,
CPPFLAGS += -D_GNU_SOURCE -I. -MMD -MP $(if $(HAVE_MPI),-DFSDP_HAVE_MPI=1) $(if $(HAVE_DNNL),-DFSDP_HAVE_DNNL=1)
CFLAGS   += -std=c11 $(OPT) $(MARCH) $(FPFLAGS) -fopenmp -pthread $(WARN) $(SANFLAGS) $(if $(CI),-Werror)
CPPFLAGS += $(if $(HAVE_MPI),$(patsubst -I%,-isystem %,$(shell $(PKG) --cflags-only-I mpich)))
CPPFLAGS += $(shell $(PKG) --cflags libcjson 2>/dev/null)
LDFLAGS  += -fopenmp -pthread $(SANFLAGS)
LDLIBS   += $(if $(HAVE_DNNL),-ldnnl) $(if $(HAVE_MPI),$(shell $(PKG) --libs mpich)) -lcjson -lm

# ---- what is built --------------------------------------------------------------------------------
LABS        := lab1_flatparam lab2_forward lab3_backward lab4_optimizer lab5_prefetch
COMMON_SRC  := $(sort $(wildcard common/*/*.c))
LAB_SRC     := $(sort $(filter-out %_main.c,$(foreach l,$(LABS),$(wildcard $(l)/*.c))))
MAIN_SRC    := $(sort $(wildcard lab*/*_main.c))
TEST_SRC    := $(sort $(wildcard tests/unit/*.c tests/grade/*.c tests/equivalence/*.c tests/cli/*.c))
TEST_LIBSRC := $(filter %_lib.c,$(TEST_SRC))
TEST_MAIN   := $(filter-out %_lib.c,$(TEST_SRC))

COMMON_OBJ  := $(COMMON_SRC:%.c=$(BUILD)/%.o)
LAB_OBJ     := $(LAB_SRC:%.c=$(BUILD)/%.o)
TEST_LIBOBJ := $(TEST_LIBSRC:%.c=$(BUILD)/%.o)
PROGRAMS    := $(patsubst %_main.c,$(BUILD)/%,$(notdir $(MAIN_SRC)))
TESTS       := $(TEST_MAIN:%.c=$(BUILD)/%)

.PHONY: all tests clean help format lint
.DEFAULT_GOAL := all
all: $(PROGRAMS)  ## build the trainer and the tools into build/
tests: all $(TESTS)  ## build the test programs

$(BUILD)/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CFLAGS) -c -o $@ $<

$(BUILD)/libfsdp.a: $(COMMON_OBJ) $(LAB_OBJ)
	@rm -f $@
	ar rcs $@ $^

# main programs live where they belong (lab5: the trainer) and link everything
vpath %_main.c $(dir $(MAIN_SRC))
define main_rule
$(BUILD)/$(patsubst %_main.c,%,$(notdir $(1))): $(BUILD)/$(1:.c=.o) $(BUILD)/libfsdp.a
	$$(CC) $$(LDFLAGS) -o $$@ $$^ $$(LDLIBS)
endef
$(foreach m,$(MAIN_SRC),$(eval $(call main_rule,$(m))))

$(TESTS): $(BUILD)/%: $(BUILD)/%.o $(TEST_LIBOBJ) $(BUILD)/libfsdp.a
	$(CC) $(LDFLAGS) -o $@ $^ -lcmocka $(LDLIBS)

clean:  ## remove build/
	rm -rf $(BUILD)

format:  ## lay out the sources with clang-format
	clang-format -i $$(git ls-files '*.c' '*.h')

help:  ## this list
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

include tests/tests.mk
-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)
