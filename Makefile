# One verb a line; CI calls the same ones. `make run` and `make test` set up what they need.
CARGO ?= cargo
CARGO_FLAGS ?= --locked
TARGET_DIR = $(or $(CARGO_TARGET_DIR),target)
AGEWISE = $(TARGET_DIR)/release/agewise

.PHONY: setup build run test test-vm lint bench man bpf bpf-check clean

# Says what is missing to build agewise; as root on Debian and its kin, installs it.
setup:
	@scripts/setup

build: setup
	$(CARGO) build --release $(CARGO_FLAGS) -p agewise

# The tour: what this machine can do, the age of the memory of two programs, and the cold half of
# one of them moved out. ZRAM=1 lends it a compressed swap device for as long as it runs: without swap
# nearly nothing can leave, so as root on a machine that has none it does so unless ZRAM=0 forbids it.
run: ZRAM ?= $(shell [ "$$(id -u)" = 0 ] && [ "$$(wc -l < /proc/swaps)" = 1 ] && echo 1)
run: build
	$(AGEWISE) demo $(if $(filter 1 true yes,$(ZRAM)),--zram)

# All tests run, whichever fail, so that one run lists every failure.
test: setup
	$(CARGO) test $(CARGO_FLAGS) --workspace --no-fail-fast

# Eyes and hands that need another kernel than this one, in a virtual machine. Optional.
test-vm: setup
	scripts/test-vm $(KERNELS)

lint: setup
	$(CARGO) fmt --check
	$(CARGO) clippy $(CARGO_FLAGS) --workspace --all-targets -- -D warnings
	@crates/host/bpf/build check

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

# The page-table walker's BPF object is committed: only who changes its C needs clang.
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
