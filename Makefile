# Two commands do everything, set-up included: `make demo` and `make test`. `make help` lists the rest.
#
# Every step that builds works on the same profile, the same target directory and, but for the demos, the
# whole workspace: cargo then resolves the same features each time, and shaderc's C++ is compiled once.
# `--test NAME` picks test targets without changing that; `-p` would.

# rustup's default place, for shells that never read its profile snippet.
export PATH := $(PATH):$(HOME)/.cargo/bin

MODEL      := models/storyteller-main-Q4_K_M.gguf
PROMPT     := Once upon a time there was a
MAX_TOKENS := 200
SEED       := 1

# Through the environment: a question may have quotes.
export QUESTION ?= What is the capital of France?

FUZZ_SECONDS ?= 600
FUZZ_SEED    ?= 1

# Mesa's software device, in tests only: their own threads fill the cores, and its threads would only compete with
# them (a third of the device suite's time without). Most of its time goes to LLVM, and less with `nopt`. A demo
# would run at a tenth of its speed with either. Candle's threads, which the tests' oracle has, wait in loops: where others
# have the cores, they cost more than they bring.
TESTING := test test-full test-all test-candle test-plain-device test-no-vulkan fuzz fuzz-lazy fuzz-gradients fuzz-shapes mutants
$(TESTING): export LP_NUM_THREADS := 0
$(TESTING): export GALLIVM_PERF := nopt
$(TESTING): export CANDLE_NUM_THREADS := 1

# A changed Cargo.lock is an error on a build machine, a convenience at home.
LOCKED := $(if $(CI),--locked)
# The names of the test targets of these files, and Cargo's arguments for such names. Packages may share a name.
names = $(sort $(notdir $(basename $(patsubst %/main.rs,%,$(1)))))
tests = $(patsubst %,--test %,$(1))
# The test targets that run kernels on a Vulkan device: tests/tests/device*.rs or device*/main.rs.
DEVICE_NAMES := $(call names,$(wildcard tests/tests/device*.rs tests/tests/device*/main.rs))
DEVICE_SUITE := $(call tests,$(DEVICE_NAMES))
# All others; `tidy` has it that test files lie nowhere else.
TEST_FILES := $(foreach folder,crates/*/tests tests/tests tests/*/tests,$(wildcard $(folder)/*.rs $(folder)/*/main.rs))
OTHER_TESTS := $(call tests,$(filter-out $(DEVICE_NAMES),$(call names,$(TEST_FILES))))
# The examples that tests run.
RUN_EXAMPLES := $(patsubst %,--example %,$(call names,$(wildcard crates/candle/examples/*.rs crates/frontend/examples/*.rs)))

# Mesa's software device has as many lanes as native vectors. LLVM compiles kernels of 4 lanes in two thirds of the time
# of 8. But integer products need subgroups of 8: the parts of the device suite that have some keep those.
FEW_LANES := LP_NATIVE_VECTOR_WIDTH=128
INTEGER_PRODUCTS := choices:: differential::filetests few_rows:: formats:: heads:: matvec:: models::quantized_activations quantize:: quantized_results::
# Parts of the device suite that are about the host, and buffers that span several bindings: what they test does not depend on
# optional features. (Nor does the suite of counts.)
SAME_ON_PLAIN := changing:: host_layers:: in_windows lazy_programs:: prompts_of_all_lengths remat:: threads::

step = @printf '\n== %s  [%s]\n' "$(1)" "$$(date +%H:%M:%S)"

# Cargo uses all cores by itself, and two cargos only wait for each other.
.NOTPARALLEL:
.PHONY: help demo demo-chat docs setup-docs test bench fuzz fuzz-lazy fuzz-gradients fuzz-shapes fuzz-files mutants fmt lint setup setup-test fmt-check doc test-all test-candle test-plain-device test-no-vulkan test-full

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-19s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: setup ## set up, build, and let the small language model tell a story
	$(call step,demo: the first build compiles shaderc and takes minutes)
	cargo run $(LOCKED) -p tallow-cli -- generate --model "$(MODEL)" --prompt "$(PROMPT)" \
		--max-tokens "$(MAX_TOKENS)" --temperature 0.7 --top-p 0.9 --seed "$(SEED)"

demo-chat: setup ## fetch SmolLM2 (93 MB, kept outside of the repository) and ask it a QUESTION
	$(call step,demo-chat: the first build compiles shaderc and takes minutes)
	model=$$(scripts/fetch_smollm2.sh) && \
		cargo run $(LOCKED) -p tallow-cli -- generate --chat --model "$$model" --prompt "$$QUESTION" --temperature 0

test: setup-test fmt-check lint doc test-all test-plain-device test-no-vulkan ## set up and run every check there is
	$(call step,all passed)

test-full: setup-test ## every op in every type and layout on the device, and tensors of 2 GiB (half an hour, 6 GB of memory)
	$(call step,the whole product of ops\, types and layouts)
	REQUIRE_VULKAN=1 TALLOW_FULL=1 cargo test $(LOCKED) --workspace --test ops -- --nocapture
	$(call step,tensors of more than 2^31 bytes)
	REQUIRE_VULKAN=1 cargo test $(LOCKED) --workspace --test ops -- --ignored --test-threads=1

# The tests of candle-core that tests/candle-core takes from the published package. `make test` runs them as part of the
# workspace.
CANDLE_SUITE := $(call tests,$(call names,$(wildcard tests/candle-core/tests/*.rs)))

test-candle: setup-test ## run candle-core's own tests on tensors of this crate, on the CPU and on Vulkan
	$(call step,the tests of candle-core)
	cargo test $(LOCKED) --workspace $(CANDLE_SUITE)

bench: setup ## run the benchmarks
	$(call step,benchmarks)
	@# The dev profile without its checks: unlike the bench profile it shares the built shaderc.
	CARGO_PROFILE_DEV_OPT_LEVEL=3 CARGO_PROFILE_DEV_DEBUG_ASSERTIONS=false CARGO_PROFILE_DEV_OVERFLOW_CHECKS=false \
		cargo bench $(LOCKED) --workspace --profile dev --bench '*'

fuzz: setup ## compare random graphs for FUZZ_SECONDS (600) from graph FUZZ_SEED (1) on
	$(call step,random graphs)
	cargo run $(LOCKED) -p tallow-tests --bin fuzz -- --seconds $(FUZZ_SECONDS) --seed $(FUZZ_SEED)

fuzz-lazy: setup ## run random programs of lazy tensors in random pieces for FUZZ_SECONDS (600) from program FUZZ_SEED (1) on
	$(call step,random programs of lazy tensors)
	cargo run $(LOCKED) -p tallow-tests --bin fuzz -- --mode lazy --seconds $(FUZZ_SECONDS) --seed $(FUZZ_SEED)

fuzz-shapes: setup ## run random programs of lazy tensors under many shapes for FUZZ_SECONDS (600) from program FUZZ_SEED (1) on
	$(call step,random programs under many shapes)
	cargo run $(LOCKED) -p tallow-tests --bin fuzz -- --mode shapes --seconds $(FUZZ_SECONDS) --seed $(FUZZ_SEED)

fuzz-gradients: setup ## compare gradients with differences, and run them, for FUZZ_SECONDS (600) from graph FUZZ_SEED (1) on
	$(call step,gradients of random graphs)
	cargo run $(LOCKED) -p tallow-tests --bin fuzz -- --mode gradients --seconds $(FUZZ_SECONDS) --seed $(FUZZ_SEED)

# libFuzzer: the seeds are only read, what is found on the way is kept in fuzz/corpus. More than 1 GiB for a
# file of some KiB is a finding, too.
fuzz_file = mkdir -p fuzz/corpus/$(1) && nice cargo +nightly fuzz run $(1) fuzz/corpus/$(1) $(wildcard fuzz/seeds/$(1)) -- \
	-max_total_time=$(FUZZ_SECONDS) -max_len=$(2) -malloc_limit_mb=1024

fuzz-files: ## read arbitrary bytes as model files and as blocks, for FUZZ_SECONDS (600) each
	$(call step,arbitrary model files)
	$(call fuzz_file,gguf,4096)
	$(call step,arbitrary blocks)
	$(call fuzz_file,blocks,4096)

mutants: setup ## put known mistakes into the compiler; the fuzzer must find each within 5 minutes
	$(call step,mutants)
	scripts/mutants.sh

fmt: ## format all sources
	cargo fmt --all

# The newest Rust, 1.x, whose lints all sources pass. A newer one may have lints that nobody here has seen: they warn.
LINTED_RUST = 99
deny_warnings = $(shell rustc --version | awk '{ split($$2, part, "."); if (part[2] <= $(LINTED_RUST)) print "-D warnings" }')

lint: ## clippy on all targets, warnings denied (but for Rust newer than sources were linted with)
	$(call step,clippy)
	cargo clippy $(LOCKED) --workspace --all-targets -- $(deny_warnings)

setup: ## install what a build needs (TALLOW_NO_SETUP=1: nothing)
	$(call step,set-up)
	@scripts/setup.sh

setup-test:
	$(call step,set-up)
	@scripts/setup.sh test

fmt-check:
	$(call step,format)
	cargo fmt --all --check

doc: ## build the API documentation, warnings denied likewise
	$(call step,documentation)
	@# --lib: the library and the command are both called tallow, and their pages would collide.
	RUSTDOCFLAGS="$(deny_warnings)" cargo doc $(LOCKED) --workspace --no-deps --lib

docs: ## build the book into docs/book, without network (needs mdBook: make setup-docs)
	$(call step,the book)
	@command -v mdbook >/dev/null || { \
		echo "error: mdbook is not installed; \`make setup-docs\` or \`cargo install mdbook --locked\` installs it" >&2; exit 1; \
	}
	mdbook build docs

setup-docs: ## install mdBook, which builds the book
	$(call step,mdBook)
	cargo install mdbook --locked

test-all: ## every test; the device suite under the Khronos validation layer, AMD's compiler without its hardware
	$(call step,device suite)
	@test -n "$(DEVICE_SUITE)" || { echo "no device suite: tests/tests/device*" >&2; exit 1; }
	$(FEW_LANES) REQUIRE_VULKAN=1 TALLOW_VALIDATE=1 cargo test $(LOCKED) --workspace $(DEVICE_SUITE) -- \
		$(INTEGER_PRODUCTS:%=--skip %)
	REQUIRE_VULKAN=1 TALLOW_VALIDATE=1 cargo test $(LOCKED) --workspace $(DEVICE_SUITE) -- $(INTEGER_PRODUCTS)
	$(call step,all other tests)
	@# Tests run these; Cargo builds examples by itself only where no targets are chosen.
	cargo build $(LOCKED) --workspace $(RUN_EXAMPLES)
	$(FEW_LANES) REQUIRE_VULKAN=1 REQUIRE_RADV=1 TALLOW_VALIDATE=1 \
		cargo test $(LOCKED) --workspace --lib --bins $(OTHER_TESTS)
	$(call step,tests in documentation)
	$(FEW_LANES) REQUIRE_VULKAN=1 TALLOW_VALIDATE=1 cargo test $(LOCKED) --workspace --doc

test-plain-device: ## the device suite with every optional device feature switched off
	$(call step,device suite on plain Vulkan 1.2)
	$(FEW_LANES) REQUIRE_VULKAN=1 TALLOW_VALIDATE=1 TALLOW_DISABLE=all cargo test $(LOCKED) --workspace --test device -- \
		$(SAME_ON_PLAIN:%=--skip %)

# What the build without Vulkan may not depend on, and what not even its tests may. (Criterion, for the
# benchmarks, compiles a little C, and so does Candle, to which crates/candle is a bridge; a C compiler is also what
# rustc links with.)
NOT_IN_BUILD := ash|cc|cmake|gpu-allocator|link-cplusplus|shaderc|shaderc-sys
NOT_IN_TESTS := ash|cmake|gpu-allocator|link-cplusplus|shaderc|shaderc-sys
no_crate = @tree=$$(cargo tree $(LOCKED) --workspace --no-default-features --prefix none -e $(1)) && \
	if printf '%s\n' "$$tree" | sort -u | grep -E '^($(2)) '; then \
		echo "error: the above must not be needed without Vulkan (dependencies: $(1))" >&2; exit 1; \
	fi
comma := ,

# Test targets that run without Vulkan: those of the tensors and of the command, which alone differ there. Left out is `examples`,
# which runs executables that a choice of targets does not build, and `compile_check`, which needs Vulkan.
WITHOUT_VULKAN := $(foreach crate,cli frontend,$(wildcard crates/$(crate)/tests/*.rs crates/$(crate)/tests/*/main.rs))
WITHOUT_VULKAN := $(call tests,$(filter-out examples compile_check,$(call names,$(WITHOUT_VULKAN))))

test-no-vulkan: ## build and test without Vulkan, on the interpreter, with no C++ in it
	$(call step,tests without Vulkan)
	$(call no_crate,normal$(comma)build --exclude tallow-candle,$(NOT_IN_BUILD))
	$(call no_crate,normal$(comma)build$(comma)dev,$(NOT_IN_TESTS))
	cargo check $(LOCKED) --workspace --no-default-features --all-targets
	cargo test $(LOCKED) --workspace --no-default-features $(WITHOUT_VULKAN)
