# The two commands of the README are `make demo` and `make test`.
CARGO ?= cargo

.PHONY: demo demo-handoff demo-mesh test build setup bench bench-quick bench-pairs clean

# What is missing on a fresh Debian 12: compilers for the protocol programs, libraries of the kernel check, and nodejs, whose
# HTTP parser (llhttp) the protocol programs are compared with.
PACKAGES := clang-19 libclang1-19 libelf-dev zlib1g-dev pkg-config gcc make procps iproute2 ethtool strace valgrind curl openssl python3-requests nodejs

setup:
	@missing=; for package in $(PACKAGES); do \
		dpkg-query -W -f '$${Status}' $$package 2>/dev/null | grep -q 'ok installed' || missing="$$missing $$package"; \
	done; \
	if [ -n "$$missing" ]; then \
		if [ "$$(id -u)" != 0 ]; then echo "missing packages:$$missing. Install them as root and run this again." >&2; exit 4; fi; \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing; \
	fi
	@sh lab/setup.sh

# The library in a call of its own: features that the tools need do not belong into a proxy.
build: setup
	$(CARGO) build --release -p underdeck-anchor
	$(CARGO) build --release -p underdeck -p underdeck-bench

demo: build
	target/release/demo --json target/demo.json

# Needs root: network namespaces and shaped links. About two minutes.
demo-handoff: build
	target/release/demo-handoff --json target/demo-handoff.json

# Needs root: control groups and eBPF. About three minutes.
demo-mesh: build
	target/release/demo-mesh --json target/demo-mesh.json

# Everything, some hours; bench-quick: a look at each axis within 4 minutes. Results in target/bench/.
bench: build
	target/release/underdeck bench anchor

bench-quick: build
	target/release/underdeck bench anchor --quick

bench-pairs: build
	target/release/pairs --pairs 7 --seconds 2 1k 16k

test: build
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --all-features -- -D warnings
	CUSTOM_LIBFUZZER_PATH=/none/libFuzzer.a $(CARGO) check --locked --manifest-path protocols/fuzz/Cargo.toml --target-dir target
	$(CARGO) test --workspace --exclude underdeck-tests --exclude underdeck-protocols --exclude underdeck-anchor
	$(CARGO) test -p underdeck-anchor
	$(CARGO) test -p underdeck-protocols --features kernel
	$(CARGO) test -p underdeck-tests -- --nocapture

clean:
	$(CARGO) clean
