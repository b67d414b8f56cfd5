# One verb a line; CI calls the same ones.
.PHONY: lint test

lint:
	cargo fmt --check
	cargo clippy --workspace --all-targets -- -D warnings

test:
	cargo test --workspace
