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
	@tests/tools/stamp.sh $@ $(call quote,$(CUDA_CXX) $(CUDA_CODE) $(CUDA_INC) / $(COMPILE) $(BACKEND_ABI) / $(LINK_SHARED) $(CUDA_LIBS))

$(CUDA_C:%.c=$(BUILD)/cuda/%.o): $(BUILD)/cuda/%.o: %.c $(BUILD)/cuda/flags
	@mkdir -p $(@D)
	$(SAY) CC $<
	$(Q)$(COMPILE) $(CUDA_INC) $(BACKEND_ABI) -fPIC -c -o $@ $<

$(CUDA_CU:%.cu=$(BUILD)/cuda/%.o): $(BUILD)/cuda/%.o: %.cu $(BUILD)/cuda/flags
	@mkdir -p $(@D)
	$(SAY) NVCC $<
	$(Q)$(CUDA_CXX) $(CUDA_CODE) -MMD -MP -c -o $@ $<

# For tests/tools/cuda_sass.sh: the kernels before the assembler, where a division is still one instruction, and what they need.
$(CUDA_CU:%.cu=$(BUILD)/cuda/%.ptx): $(BUILD)/cuda/%.ptx: %.cu $(BUILD)/cuda/flags $(wildcard common/*/*.h)
	@mkdir -p $(@D)
	$(SAY) PTX $<
	$(Q)$(CUDA_CXX) -arch=compute_90 -ptx -o $@ $<
$(CUDA_CU:%.cu=$(BUILD)/cuda/%.usage): %.usage: %.ptx
	$(Q)$(CUDA_CXX) -arch=sm_90 -cubin -Xptxas -v -o $*.cubin $< 2>$@ || { cat $@ && rm $@ && false; }
cuda-ptx: $(CUDA_CU:%.cu=$(BUILD)/cuda/%.usage)

$(BUILD)/fsdp_cuda.so: $(CUDA_OBJ:%=$(BUILD)/cuda/%)
	$(SAY) LINK $@
	$(Q)$(LINK_SHARED) -o $@ $^ $(LDLIBS) $(CUDA_LIBS) -lrt -ldl

# tests/gpu/report.sh runs these on one GPU, besides the test programs.
GPU_ONE := tests/gpu/nccl_one tests/gpu/lt_one
$(GPU_ONE:%=$(BUILD)/%): $(BUILD)/%: %.c $(BUILD)/cuda/flags
	@mkdir -p $(@D)
	$(SAY) CC $<
	$(Q)$(COMPILE) $(CUDA_INC) $(LDFLAGS) $(NEED_LDFLAGS) -o $@ $< $(LDLIBS) $(CUDA_LIBS) -lrt -ldl

# ---- the stand-in ---------------------------------------------------------------------------------
SIM_SRC   := $(sort $(wildcard tests/sim/core/*.c tests/sim/cuda/*.c tests/sim/cuda/*.cc))
SIM_OBJ   := $(CUDA_OBJ) $(patsubst %.c,%.o,$(SIM_SRC:.cc=.o))
SIM_INC   := -Itests/sim/cuda/include
# Not clang++: it has no attribute noipa, without which kernel.cc crashes when it changes stacks.
SIM_CXX   := $(if $(findstring clang,$(CXX)),g++,$(CXX))
HAVE_SIM_CXX := $(if $(findstring clang,$(CXX)),$(if $(HAVE_CXX),$(shell $(PROBE) g++)),$(HAVE_CXX))
SIM_CXX   += $(if $(HAVE_SIM_CXX),$(call moves,$(SIM_CXX))) $(SIM_INC)

$(BUILD)/sim/flags: FORCE
	@mkdir -p $(@D)
	@tests/tools/stamp.sh $@ $(call quote,$(SIM_CXX) $(CXX_ARGS) / $(COMPILE) $(BACKEND_ABI) / $(LINK_SHARED) $(LDLIBS))

$(patsubst %.c,$(BUILD)/sim/%.o,$(CUDA_C) $(filter %.c,$(SIM_SRC))): $(BUILD)/sim/%.o: %.c $(BUILD)/sim/flags
	@mkdir -p $(@D)
	$(SAY) CC $<
	$(Q)$(COMPILE) $(SIM_INC) $(BACKEND_ABI) -fPIC -c -o $@ $<

$(CUDA_CU:%.cu=$(BUILD)/sim/%.o): $(BUILD)/sim/%.o: %.cu $(BUILD)/sim/flags
	@mkdir -p $(@D)
	$(SAY) CXX $<
	$(Q)$(SIM_CXX) $(CXX_ARGS) -Wno-unknown-pragmas -fPIC -x c++ -c -o $@ $<

$(patsubst %.cc,$(BUILD)/sim/%.o,$(filter %.cc,$(SIM_SRC))): $(BUILD)/sim/%.o: %.cc $(BUILD)/sim/flags
	@mkdir -p $(@D)
	$(SAY) CXX $<
	$(Q)$(SIM_CXX) $(CXX_ARGS) -Wno-unknown-pragmas -fPIC -c -o $@ $<

$(BUILD)/fsdp_cuda_sim.so: $(SIM_OBJ:%=$(BUILD)/sim/%)
	$(SAY) LINK $@
	$(Q)$(LINK_SHARED) -o $@ $^ $(LDLIBS)

# The stand-in calls functions of the program that opens it.
tests: $(if $(HAVE_SIM_CXX),$(GPU_ONE:%=$(BUILD)/sim/%))
$(GPU_ONE:%=$(BUILD)/sim/%): $(BUILD)/sim/%: %.c $(BUILD)/fsdp_cuda_sim.so $(BUILD)/libfsdp.a
	@mkdir -p $(@D)
	$(SAY) CC $<
	$(Q)$(COMPILE) $(SIM_INC) $(LDFLAGS) $(NEED_LDFLAGS) -o $@ $< -Xlinker --whole-archive $(BUILD)/libfsdp.a \
		-Xlinker --no-whole-archive $(BUILD)/fsdp_cuda_sim.so -Wl,-rpath,'$$ORIGIN/../../..' $(LIBS)

-include $(CUDA_OBJ:%.o=$(BUILD)/cuda/%.d) $(SIM_OBJ:%.o=$(BUILD)/sim/%.d)
