# One verb per target, the same for CI. `make run` and `make test` set up what they need.
CARGO ?= cargo
CARGO_FLAGS ?= --locked
TARGET_DIR = $(or $(CARGO_TARGET_DIR),target)
AGEWISE = $(TARGET_DIR)/release/agewise

# Library crates for others to use, and the sets of features that must build.
LIBRARIES = agewise-policy agewise-kernel agewise-damon agewise-trace
FEATURE_SETS = "" fuse web otlp lab bench

.PHONY: setup build install dist run test test-vm test-guest reference test-harmless test-cgroups test-package test-service test-containers test-wheel test-template test-otlp model fuzz lint check-features doc package wheel bench man bpf bpf-check clean

# Installs what building agewise needs (as root on Debian and derivatives), or lists what is
# missing.
setup:
	@scripts/setup

build: setup
	$(CARGO) build --release $(CARGO_FLAGS) -p agewise

# Installs the program with its manual, completions, unit and configuration; DESTDIR= for a staging
# tree.
PREFIX ?= /usr/local
install: build
	scripts/install $(AGEWISE) $(PREFIX) $(DESTDIR)

# The artifacts for users, in target/dist: tarball, .deb, .rpm, OCI image, bill of materials,
# checksums. ARCH="x86_64 aarch64" builds them for several architectures.
dist:
	@scripts/setup dist
	scripts/dist

# The tour: what this machine supports, the age of two programs' memory, and moving out the cold
# half of one of them. ZRAM=1 adds a temporary compressed swap device, since hardly anything can
# leave without swap. That is the default for root on a machine without swap; ZRAM=0 disables it.
run: ZRAM ?= $(shell [ "$$(id -u)" = 0 ] && [ "$$(wc -l < /proc/swaps)" = 1 ] && echo 1)
run: build
	$(AGEWISE) demo $(if $(filter 1 true yes,$(ZRAM)),--zram)

# Runs all tests, even after a failure. Tests that could not run say SKIPPED; the last line sums up.
test:
	@scripts/setup test
	@scripts/test $(CARGO) test --no-fail-fast $(CARGO_FLAGS) --workspace -- --show-output

# Tests access sources and movers that need other kernels, in virtual machines. Optional.
test-vm: setup
	scripts/test-vm $(KERNELS)

# Runs the tests that depend on the kernel in a virtual machine that has this system's files, cgroup
# v2 and the multi-gen LRU (LRU_GEN=n: the classic one). Takes 40 minutes. Optional.
test-guest: setup
	scripts/test scripts/test-guest $(KERNELS)

# Measures counts of real kernels: make reference KERNELS=... <CELLS (see the
# script).
reference: setup
	scripts/reference $(KERNELS)

# Installs the .deb of `make dist` in minimal Debian systems (SUITES), runs it there and purges
# it. Needs root, debootstrap and a mirror.
test-package:
	scripts/test-package $(SUITES)

# Tests the same .deb in virtual machines with systemd: starts the service, tries it and purges it.
# Also needs QEMU.
test-service:
	scripts/test-service $(SUITES)

# Tests containers of Podman and pods of containerd: their names, and the program in one. Needs
# root.
test-containers: build
	scripts/test-containers $(AGEWISE)

# Runs programs that verify their memory, with and without a daemon moving it. Needs
# stress-ng.
test-harmless: build
	scripts/test-harmless $(AGEWISE)

# Runs the kernel's tests of cgroups (SELFTESTS=DIR, built) in a virtual machine, with and without a
# daemon that acts on all of them.
test-cgroups: build
	scripts/test-cgroups $(AGEWISE) $(SELFTESTS)

# Runs the model-based test of the daemon for longer than `make test`: SEEDS sequences of STEPS.
model: setup
	SEEDS=$(or $(SEEDS),100) STEPS=$(or $(STEPS),10000) $(CARGO) test $(CARGO_FLAGS) -p agewise-daemon \
		--lib whatever_happens_for_long -- --ignored --nocapture

# Builds the Python package, in $(TARGET_DIR)/wheels. Needs Python 3.9 or later, and maturin
# from PyPI.
wheel: setup
	scripts/wheel $(TARGET_DIR)

# Tests the wheel in a new virtual environment: examples, types, and the same rows as the command.
# Not part of `make test`, since the type checker comes from PyPI.
test-wheel: build wheel
	scripts/test-wheel $(AGEWISE) $(TARGET_DIR)/wheels

# Sends metrics to a real OpenTelemetry Collector, which Go builds if there is none.
test-otlp: setup
	@CARGO="$(CARGO)" scripts/test-otlp $(TARGET_DIR)

# Builds the template for a policy of your own (templates/policy), outside the
# workspace.
test-template: setup
	scripts/test-template $(TARGET_DIR)

# Runs each fuzz target for TIME seconds, guided by coverage. Needs a C++ compiler, but no other
# toolchain.
fuzz: setup
	@CARGO="$(CARGO)" scripts/fuzz $(or $(TIME),60) $(TARGETS)

lint: setup
	$(CARGO) fmt --check
	@crates/host/bpf/build check
	@if command -v cargo-deny >/dev/null; then \
		$(CARGO) deny --offline check bans licenses sources; \
	else echo "SKIPPED cargo deny: not installed (cargo install cargo-deny)"; fi
	$(CARGO) clippy $(CARGO_FLAGS) --workspace --all-targets -- -D warnings
	@scripts/check-chart
	@$(MAKE) --no-print-directory check-features doc
	$(CARGO) test --quiet $(CARGO_FLAGS) -p agewise --test tidy

# Checks the program without any optional part, and with each of them alone.
check-features: setup
	@for features in $(FEATURE_SETS); do \
		echo "check-features: $${features:-none}"; \
		$(CARGO) clippy --quiet $(CARGO_FLAGS) -p agewise -p agewise-daemon --all-targets \
			--no-default-features --features "$$features" -- -D warnings || exit 1; \
	done

# Builds the documentation of the libraries; broken links are errors.
doc: setup
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc $(CARGO_FLAGS) --no-deps $(addprefix -p ,$(LIBRARIES))

# Packages the libraries as for an upload, in $(TARGET_DIR)/package. Uploads nothing.
package:
	$(CARGO) package $(CARGO_FLAGS) --no-verify $(addprefix -p ,$(LIBRARIES))

# Benchmarks. Never part of the tests, since results depend on the machine and its other
# load.
bench: build
	$(AGEWISE) bench live
	$(AGEWISE) bench harm
	$(AGEWISE) bench steady
	$(AGEWISE) bench sort
	$(AGEWISE) bench reclaim
	$(AGEWISE) bench daemon
	$(AGEWISE) bench lab
	$(CARGO) bench $(CARGO_FLAGS) --workspace

# The page-table walker's BPF object is committed, so clang is only needed to change its
# C source.
bpf:
	crates/host/bpf/build

bpf-check:
	crates/host/bpf/build check

# Generates manual pages and shell completions, in $(TARGET_DIR)/man and
# $(TARGET_DIR)/completions.
man: build
	$(AGEWISE) man $(TARGET_DIR)/man
	mkdir -p $(TARGET_DIR)/completions
	$(AGEWISE) completions bash > $(TARGET_DIR)/completions/agewise.bash
	$(AGEWISE) completions zsh > $(TARGET_DIR)/completions/_agewise
	$(AGEWISE) completions fish > $(TARGET_DIR)/completions/agewise.fish

clean:
	$(CARGO) clean
