# cuda.mk -- the plug-in of --device cuda, and the stand-in that runs it on the CPU. Included by the top Makefile.
#
#   make cuda       $(BUILD)/fsdp_cuda.so: nvcc, cuBLASLt and NCCL. CUDA_HOME and NCCL_HOME are their folders, NVCC_CCBIN
#                   is nvcc's host compiler; if unset, tests/tools/cuda_toolkit.sh looks for them.
#   make cuda-sim   $(BUILD)/fsdp_cuda_sim.so: the same sources with gcc and g++ over tests/sim/cuda
#
# CUDA_ARCHS="80 90": the GPUs to compile for (75 80 90 100, if nvcc knows them); newer GPUs use the PTX of the last one.
# -fmad=false: a*b+c is rounded twice, as on the CPU. The next three options are nvcc's defaults; the bits depend on them.

CUDA_C    := $(sort $(wildcard common/cuda/*.c common/accel/*.c))
CUDA_CU   := $(sort $(wildcard common/cuda/*.cu))
CUDA_OBJ  := $(CUDA_C:.c=.o) $(CUDA_CU:.cu=.o)
# The toolkit that was found, as words NAME=VALUE. The search runs once, when a target here is built.
CUDA_FOUND = $(eval CUDA_FOUND := $(shell CUDA_HOME="$(CUDA_HOME)" NVCC="$(NVCC)" NCCL_HOME="$(NCCL_HOME)" NVCC_CCBIN="$(NVCC_CCBIN)" \
	CUDA_ARCHS="$(CUDA_ARCHS)" tests/tools/cuda_toolkit.sh))$(CUDA_FOUND)
cuda       = $(patsubst $(1)=%,%,$(filter $(1)=%,$(CUDA_FOUND)))
CUDA_INC   = $(addprefix -isystem ,$(call cuda,inc))
CUDA_CXX   = $(call cuda,nvcc) $(addprefix -ccbin ,$(call cuda,ccbin)) -std=c++17 -O3 -fmad=false -ftz=false -prec-div=true \
	-prec-sqrt=true -Xcompiler -fPIC,-Wall,-Wextra $(if $(CI),-Werror all-warnings) -I.
newest     = $(lastword $(call cuda,arch))
CUDA_CODE  = $(foreach a,$(call cuda,arch),-gencode arch=compute_$(a),code=sm_$(a)) -gencode arch=compute_$(newest),code=compute_$(newest)
CUDA_LIBS  = $(call cuda,lib) $(addprefix -Wl$(comma)-rpath$(comma),$(call cuda,run))

.PHONY: cuda cuda-sim cuda-ptx
cuda: $(BUILD)/fsdp_cuda.so  ## build the plug-in of --device cuda (needs nvcc, cuBLASLt, NCCL)
cuda-sim: $(BUILD)/fsdp_cuda_sim.so  ## build the same plug-in for the CPU, over a stand-in (for tests)

$(BUILD)/cuda/flags: FORCE
	$(if $(CUDA_FOUND),,@exit 1)
	@tests/tools/stamp.sh $@ "$(CUDA_CXX) $(CUDA_CODE) $(CUDA_INC) / $(CC) $(CFLAGS) $(BACKEND_ABI) / $(CUDA_LIBS)"

$(CUDA_C:%.c=$(BUILD)/cuda/%.o): $(BUILD)/cuda/%.o: %.c $(BUILD)/cuda/flags
	@mkdir -p $(@D)
	$(SAY) CC $<
	$(Q)$(CC) $(CPPFLAGS) $(CUDA_INC) $(CFLAGS) $(BACKEND_ABI) -fPIC -c -o $@ $<

$(CUDA_CU:%.cu=$(BUILD)/cuda/%.o): $(BUILD)/cuda/%.o: %.cu $(BUILD)/cuda/flags
	@mkdir -p $(@D)
	$(SAY) NVCC $<
	$(Q)$(CUDA_CXX) $(CUDA_CODE) -MMD -MP -c -o $@ $<

# The kernels before the assembler, where a division is still one instruction: for tests/tools/cuda_sass.sh.
$(CUDA_CU:%.cu=$(BUILD)/cuda/%.ptx): $(BUILD)/cuda/%.ptx: %.cu $(BUILD)/cuda/flags
	@mkdir -p $(@D)
	$(SAY) PTX $<
	$(Q)$(CUDA_CXX) -arch=compute_$(newest) -ptx -o $@ $<
cuda-ptx: $(patsubst %.cu,$(BUILD)/cuda/%.ptx,$(filter-out common/cuda/fast_%,$(CUDA_CU)))

$(BUILD)/fsdp_cuda.so: $(CUDA_OBJ:%=$(BUILD)/cuda/%)
	$(SAY) LINK $@
	$(Q)g++ -shared -o $@ $^ $(CUDA_LIBS) -lrt -ldl -pthread

# tests/gpu/report.sh runs this on one GPU, besides the test programs.
$(BUILD)/tests/gpu/nccl_one: tests/gpu/nccl_one.c $(BUILD)/cuda/flags
	@mkdir -p $(@D)
	$(SAY) CC $<
	$(Q)$(CC) -D_GNU_SOURCE $(CUDA_INC) $(CFLAGS) -o $@ $< $(CUDA_LIBS) -lrt -ldl

# ---- the stand-in ---------------------------------------------------------------------------------
SIM_SRC   := $(sort $(wildcard tests/sim/core/*.c tests/sim/cuda/*.c tests/sim/cuda/*.cc))
SIM_OBJ   := $(CUDA_OBJ) $(patsubst %.c,%.o,$(SIM_SRC:.cc=.o))
SIM_INC   := -Itests/sim/cuda/include
SIM_CXX   := g++ -std=c++17 $(OPT) $(MARCH) $(FPFLAGS) -pthread -Wall -Wextra -Wno-unknown-pragmas $(SANFLAGS) $(if $(CI),-Werror)

$(BUILD)/sim/flags: FORCE
	@mkdir -p $(@D)
	@tests/tools/stamp.sh $@ "$(SIM_CXX) / $(CC) $(CFLAGS) $(BACKEND_ABI)"

$(patsubst %.c,$(BUILD)/sim/%.o,$(CUDA_C) $(filter %.c,$(SIM_SRC))): $(BUILD)/sim/%.o: %.c $(BUILD)/sim/flags
	@mkdir -p $(@D)
	$(SAY) CC $<
	$(Q)$(CC) $(CPPFLAGS) $(SIM_INC) $(CFLAGS) $(BACKEND_ABI) -fPIC -c -o $@ $<

$(CUDA_CU:%.cu=$(BUILD)/sim/%.o): $(BUILD)/sim/%.o: %.cu $(BUILD)/sim/flags
	@mkdir -p $(@D)
	$(SAY) CXX $<
	$(Q)$(SIM_CXX) -D_GNU_SOURCE -I. -MMD -MP $(SIM_INC) -fPIC -x c++ -c -o $@ $<

$(patsubst %.cc,$(BUILD)/sim/%.o,$(filter %.cc,$(SIM_SRC))): $(BUILD)/sim/%.o: %.cc $(BUILD)/sim/flags
	@mkdir -p $(@D)
	$(SAY) CXX $<
	$(Q)$(SIM_CXX) -D_GNU_SOURCE -I. -MMD -MP $(SIM_INC) -fPIC -c -o $@ $<

$(BUILD)/fsdp_cuda_sim.so: $(SIM_OBJ:%=$(BUILD)/sim/%)
	$(SAY) LINK $@
	$(Q)g++ -shared $(SANFLAGS) -o $@ $^ -pthread

# The stand-in calls functions of the program that opens it.
tests: $(if $(HAVE_CXX),$(BUILD)/sim/tests/gpu/nccl_one)
$(BUILD)/sim/tests/gpu/nccl_one: tests/gpu/nccl_one.c $(BUILD)/fsdp_cuda_sim.so $(BUILD)/libfsdp.a
	@mkdir -p $(@D)
	$(SAY) CC $<
	$(Q)$(CC) -D_GNU_SOURCE $(SIM_INC) $(CFLAGS) $(LDFLAGS) -o $@ $< -Xlinker --whole-archive $(BUILD)/libfsdp.a \
		-Xlinker --no-whole-archive $(BUILD)/fsdp_cuda_sim.so -Wl,-rpath,'$$ORIGIN/../../..' $(LDLIBS)

-include $(CUDA_OBJ:%.o=$(BUILD)/cuda/%.d) $(SIM_OBJ:%.o=$(BUILD)/sim/%.d)
