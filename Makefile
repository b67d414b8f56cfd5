# One verb a line; CI calls the same ones. `make run` and `make test` set up what they need.
CARGO ?= cargo
CARGO_FLAGS ?= --locked
TARGET_DIR = $(or $(CARGO_TARGET_DIR),target)
AGEWISE = $(TARGET_DIR)/release/agewise

# Crates that others can use, and the sets of features that have to build.
LIBRARIES = agewise-policy agewise-kernel agewise-damon agewise-trace
FEATURE_SETS = "" fuse web lab bench

.PHONY: setup build install dist run test test-vm reference test-harmless test-package test-service test-containers test-wheel test-template model fuzz lint check-features doc package wheel bench man bpf bpf-check clean

# Installs what building agewise needs (as root on Debian and its kin), or names what is missing.
setup:
	@scripts/setup

build: setup
	$(CARGO) build --release $(CARGO_FLAGS) -p agewise

# The program with its manual, completions, unit and configuration; DESTDIR= for a tree of its own.
PREFIX ?= /usr/local
install: build
	scripts/install $(AGEWISE) $(PREFIX) $(DESTDIR)

# What users install, in target/dist: tarball, .deb, .rpm, OCI image, bill of materials, checksums.
dist:
	@scripts/setup dist
	scripts/dist

# The tour: what this machine can do, the age of the memory of two programs, and the cold half of
# one of them moved out. ZRAM=1 lends it a compressed swap device while it runs: without swap hardly
# anything can leave, so as root on a machine without swap that is the default; ZRAM=0 forbids it.
run: ZRAM ?= $(shell [ "$$(id -u)" = 0 ] && [ "$$(wc -l < /proc/swaps)" = 1 ] && echo 1)
run: build
	$(AGEWISE) demo $(if $(filter 1 true yes,$(ZRAM)),--zram)

# Every test, even after a failure. What could not run says SKIPPED; the last line sums up.
test: setup
	@scripts/test $(CARGO) test --no-fail-fast $(CARGO_FLAGS) --workspace -- --show-output

# Access sources and movers that need another kernel than this one, in a virtual machine. Optional.
test-vm: setup
	scripts/test-vm $(KERNELS)

# Counts of real kernels: make reference KERNELS=... <CELLS (see the script).
reference: setup
	scripts/reference $(KERNELS)

# The .deb of `make dist` in bare Debians of their own (SUITES), run there and purged. Needs root,
# debootstrap and a mirror.
test-package:
	scripts/test-package $(SUITES)

# The same .deb where systemd runs, in virtual machines: its service started, tried and purged. Needs
# QEMU besides.
test-service:
	scripts/test-service $(SUITES)

# Containers of Podman and pods of containerd: their names, and the program in one. Needs root.
test-containers: build
	scripts/test-containers $(AGEWISE)

# Programs that verify their memory, with and without a daemon that moves it. Needs stress-ng.
test-harmless: build
	scripts/test-harmless $(AGEWISE)

# The model-based test of the daemon for longer than `make test` runs it: SEEDS sequences of STEPS.
model: setup
	SEEDS=$(or $(SEEDS),100) STEPS=$(or $(STEPS),10000) $(CARGO) test $(CARGO_FLAGS) -p agewise-daemon \
		--lib whatever_happens_for_long -- --ignored --nocapture

# The Python package, in $(TARGET_DIR)/wheels. Needs Python 3.9 or later, and maturin from PyPI.
wheel: setup
	scripts/wheel $(TARGET_DIR)

# The wheel in a fresh virtual environment: examples, types, and the rows of the command. Not part of
# `make test`: the checker of types comes from PyPI.
test-wheel: build wheel
	scripts/test-wheel $(AGEWISE) $(TARGET_DIR)/wheels

# The template of a policy of one's own (templates/policy), built outside the workspace.
test-template: setup
	scripts/test-template $(TARGET_DIR)

# Each fuzz target for TIME seconds, led by coverage. Needs a C++ compiler, and no other toolchain.
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

# The program without any optional part, and with each of them alone.
check-features:
	@for features in $(FEATURE_SETS); do \
		echo "check-features: $${features:-none}"; \
		$(CARGO) clippy --quiet $(CARGO_FLAGS) -p agewise -p agewise-daemon --all-targets \
			--no-default-features --features "$$features" -- -D warnings || exit 1; \
	done

# The pages of the libraries: every link in them leads somewhere.
doc:
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc $(CARGO_FLAGS) --no-deps $(addprefix -p ,$(LIBRARIES))

# What would be uploaded of the libraries, in $(TARGET_DIR)/package. Uploads nothing.
package:
	$(CARGO) package $(CARGO_FLAGS) --no-verify $(addprefix -p ,$(LIBRARIES))

# Figures, never part of the tests: they depend on the machine and on what else it does.
bench: build
	$(AGEWISE) bench live
	$(AGEWISE) bench harm
	$(AGEWISE) bench steady
	$(AGEWISE) bench sort
	$(AGEWISE) bench reclaim
	$(AGEWISE) bench daemon
	$(AGEWISE) bench lab
	$(CARGO) bench $(CARGO_FLAGS) --workspace

# The page-table walker's BPF object is committed: clang is needed only to change its C.
bpf:
	crates/host/bpf/build

bpf-check:
	crates/host/bpf/build check

# Manual pages and shell completions, in $(TARGET_DIR)/man and $(TARGET_DIR)/completions.
man: build
	$(AGEWISE) man $(TARGET_DIR)/man
	mkdir -p $(TARGET_DIR)/completions
	$(AGEWISE) completions bash > $(TARGET_DIR)/completions/agewise.bash
	$(AGEWISE) completions zsh > $(TARGET_DIR)/completions/_agewise
	$(AGEWISE) completions fish > $(TARGET_DIR)/completions/agewise.fish

clean:
	$(CARGO) clean
