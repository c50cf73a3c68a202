# npu.mk -- the plug-in of --device npu, and the stand-in that runs it on the CPU. Included by the top Makefile.
#
#   make npu        $(BUILD)/fsdp_npu.so: gcc, g++ and CANN. CANN's set_env.sh sets ASCEND_TOOLKIT_HOME to its folder.
#   make npu-sim    $(BUILD)/fsdp_npu_sim.so: the same sources over tests/sim/ascend
#
# The headers of HCCL and aclnn are C++, so .cpp files call these two libraries.

NPU_SRC := $(sort $(wildcard lab6_npu/*.c lab6_npu/*.cpp common/accel/*.c))
NPU_SIM_SRC := $(NPU_SRC) $(sort $(wildcard tests/sim/core/*.c tests/sim/ascend/*.c tests/sim/ascend/*.cc))
CANN := $(ASCEND_TOOLKIT_HOME)
# Release 8 has the first four libraries; newer releases split some of them.
CANN_LIBS = $(foreach l,ascendcl nnopbase opapi hccl acl_rt opapi_nn opapi_math opapi_transformer,$(if $(wildcard $(CANN)/lib64/lib$(l).so),-l$(l)))
NPU_CXX = $(COMPILE_CXX) -Wshadow

.PHONY: npu npu-sim
npu: $(BUILD)/fsdp_npu.so  ## build the plug-in of --device npu (needs Ascend's CANN)
npu-sim: $(BUILD)/fsdp_npu_sim.so  ## build the same plug-in for the CPU, over a stand-in (for lab 6 and tests)

# npu_objects FOLDER SOURCES INCLUDES -- rules that compile these sources to objects in $(BUILD)/FOLDER
define npu_objects
$(patsubst %.c,$(BUILD)/$(1)/%.o,$(filter %.c,$(2))): $(BUILD)/$(1)/%.o: %.c $(BUILD)/$(1)/flags
	@mkdir -p $$(@D)
	$$(SAY) CC $$<
	$$(Q)$$(COMPILE) $(3) $$(BACKEND_ABI) -fPIC -c -o $$@ $$<
$(patsubst %.cpp,$(BUILD)/$(1)/%.o,$(filter %.cpp,$(2))): $(BUILD)/$(1)/%.o: %.cpp $(BUILD)/$(1)/flags
	@mkdir -p $$(@D)
	$$(SAY) CXX $$<
	$$(Q)$$(NPU_CXX) $(3) -fPIC -c -o $$@ $$<
$(patsubst %.cc,$(BUILD)/$(1)/%.o,$(filter %.cc,$(2))): $(BUILD)/$(1)/%.o: %.cc $(BUILD)/$(1)/flags
	@mkdir -p $$(@D)
	$$(SAY) CXX $$<
	$$(Q)$$(NPU_CXX) $(3) -fPIC -c -o $$@ $$<
endef
npu_objects_of = $(patsubst %,$(BUILD)/$(1)/%.o,$(basename $(2)))

$(eval $(call npu_objects,npu,$(NPU_SRC),-isystem $(CANN)/include -isystem $(CANN)/include/aclnn))
$(eval $(call npu_objects,npu-sim,$(NPU_SIM_SRC),-Itests/sim/ascend/include))

$(BUILD)/npu/flags: FORCE
	$(Q)[ -e "$(CANN)/include/acl/acl.h" ] || { \
		echo "make npu: ASCEND_TOOLKIT_HOME is '$(CANN)'; there is no include/acl/acl.h in it"; \
		echo 'HINT: source set_env.sh of CANN, which sets ASCEND_TOOLKIT_HOME; make npu-sim needs no CANN'; exit 1; } >&2
	@mkdir -p $(@D)
	@tests/tools/stamp.sh $@ $(call quote,$(NPU_CXX) $(CANN) / $(COMPILE) $(BACKEND_ABI) / $(LINK_SHARED) $(LDLIBS))

$(BUILD)/npu-sim/flags: FORCE
	@mkdir -p $(@D)
	@tests/tools/stamp.sh $@ $(call quote,$(NPU_CXX) / $(COMPILE) $(BACKEND_ABI) / $(LINK_SHARED) $(LDLIBS))

$(BUILD)/fsdp_npu.so: $(call npu_objects_of,npu,$(NPU_SRC))
	$(SAY) LINK $@
	$(Q)$(LINK_SHARED) -o $@ $^ $(LDLIBS) -L$(CANN)/lib64 -Wl,-rpath,$(CANN)/lib64 $(CANN_LIBS)

$(BUILD)/fsdp_npu_sim.so: $(call npu_objects_of,npu-sim,$(NPU_SIM_SRC))
	$(SAY) LINK $@
	$(Q)$(LINK_SHARED) -o $@ $^ $(LDLIBS)

-include $(patsubst %.o,%.d,$(call npu_objects_of,npu,$(NPU_SRC)) $(call npu_objects_of,npu-sim,$(NPU_SIM_SRC)))
