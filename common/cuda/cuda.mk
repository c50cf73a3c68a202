# cuda.mk -- the plug-in of --device cuda, and the stand-in that runs it on the CPU. Included by the top Makefile.
#
#   make cuda       $(BUILD)/fsdp_cuda.so: nvcc, cuBLASLt and NCCL. CUDA_HOME says where the toolkit is.
#   make cuda-sim   $(BUILD)/fsdp_cuda_sim.so: the same sources with gcc and g++ over tests/sim/cuda
#
# CUDA_ARCHS="80 90": the GPUs that code is made for; PTX of the last one is for all newer ones.
# -fmad=false: a*b+c is two roundings, as on the CPU. The other three are nvcc's defaults, said because bits hang on them.

CUDA_C    := $(sort $(wildcard common/cuda/*.c common/accel/*.c))
CUDA_CU   := $(sort $(wildcard common/cuda/*.cu))
CUDA_OBJ  := $(CUDA_C:.c=.o) $(CUDA_CU:.cu=.o)
NVCC      ?= $(or $(shell command -v $(if $(CUDA_HOME),$(CUDA_HOME)/bin/)nvcc),$(wildcard /usr/local/cuda/bin/nvcc))
CUDA_HOME ?= $(patsubst %/bin/nvcc,%,$(NVCC))
NCCL_HOME ?= $(CUDA_HOME)
CUDA_ARCHS ?= 75 80 90
CUDA_INC   = -isystem $(CUDA_HOME)/include -isystem $(NCCL_HOME)/include
NVCC_FLAGS = -std=c++17 -O3 -fmad=false -ftz=false -prec-div=true -prec-sqrt=true -Xcompiler -fPIC,-Wall,-Wextra \
	$(if $(CI),-Werror all-warnings) -ccbin g++ -I. \
	$(foreach a,$(CUDA_ARCHS),-gencode arch=compute_$(a),code=sm_$(a)) \
	-gencode arch=compute_$(lastword $(CUDA_ARCHS)),code=compute_$(lastword $(CUDA_ARCHS))

.PHONY: cuda cuda-sim cuda-ptx
cuda: $(BUILD)/fsdp_cuda.so  ## build the plug-in of --device cuda (needs nvcc, cuBLASLt, NCCL)
cuda-sim: $(BUILD)/fsdp_cuda_sim.so  ## build the same for the CPU, over a stand-in (tests)

$(BUILD)/cuda/flags: FORCE
	$(Q)[ -x "$(NVCC)" ] && [ -e "$(CUDA_HOME)/include/cublasLt.h" ] && [ -e "$(NCCL_HOME)/include/nccl.h" ] || { \
		echo "make cuda: nvcc is '$(NVCC)'; cublasLt.h is looked for in '$(CUDA_HOME)/include', nccl.h in '$(NCCL_HOME)/include'"; \
		echo 'HINT: set CUDA_HOME, and NCCL_HOME if NCCL is elsewhere; make doctor says what this machine has'; exit 1; } >&2
	@mkdir -p $(@D)
	@tests/tools/stamp.sh $@ "$(NVCC) $(NVCC_FLAGS) $(CUDA_INC) / $(CC) $(CFLAGS) $(BACKEND_ABI)"

$(CUDA_C:%.c=$(BUILD)/cuda/%.o): $(BUILD)/cuda/%.o: %.c $(BUILD)/cuda/flags
	@mkdir -p $(@D)
	$(SAY) CC $<
	$(Q)$(CC) $(CPPFLAGS) $(CUDA_INC) $(CFLAGS) $(BACKEND_ABI) -fPIC -c -o $@ $<

$(CUDA_CU:%.cu=$(BUILD)/cuda/%.o): $(BUILD)/cuda/%.o: %.cu $(BUILD)/cuda/flags
	@mkdir -p $(@D)
	$(SAY) NVCC $<
	$(Q)$(NVCC) $(NVCC_FLAGS) -MMD -MP -c -o $@ $<

# What the kernels become before the assembler, where a division is still one instruction: for tests/tools/cuda_sass.sh.
$(CUDA_CU:%.cu=$(BUILD)/cuda/%.ptx): $(BUILD)/cuda/%.ptx: %.cu $(BUILD)/cuda/flags
	@mkdir -p $(@D)
	$(SAY) PTX $<
	$(Q)$(NVCC) $(filter-out -gencode arch=%,$(NVCC_FLAGS)) -arch=compute_$(lastword $(CUDA_ARCHS)) -ptx -o $@ $<
cuda-ptx: $(patsubst %.cu,$(BUILD)/cuda/%.ptx,$(filter-out common/cuda/fast_%,$(CUDA_CU)))

$(BUILD)/fsdp_cuda.so: $(CUDA_OBJ:%=$(BUILD)/cuda/%)
	$(SAY) LINK $@
	$(Q)g++ -shared -o $@ $^ -L$(CUDA_HOME)/lib64 -L$(NCCL_HOME)/lib -lcudart_static -lcublasLt -lnccl -lrt -ldl -pthread

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

-include $(CUDA_OBJ:%.o=$(BUILD)/cuda/%.d) $(SIM_OBJ:%.o=$(BUILD)/sim/%.d)
