#!/bin/sh
# Mutation test of the fuzzer: each patch in tests/mutants/ puts one mistake into the compiler, and the fuzzer must
# find it within five minutes.
#
#   scripts/mutants.sh [NAME ..]     all mutants, or those named
#
# Works in a git worktree of HEAD inside the target directory, which the builds share: third-party crates, shaderc
# among them, are not built again. MUTANTS_SECONDS (300) is the limit for each, MUTANTS_SEED (1) the first graph.
# First the tree without a mutant must pass for MUTANTS_BASELINE (30) seconds, or nothing found means anything.
set -eu

root=$(git rev-parse --show-toplevel)
CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$root/target}
export CARGO_TARGET_DIR
cargo=${CARGO:-cargo}
# Mesa's software device spends most of the time in LLVM, and less with this.
GALLIVM_PERF=nopt LP_NUM_THREADS=0
export GALLIVM_PERF LP_NUM_THREADS
# Our own crates are built once a mutant and run for seconds: building is what takes the time.
CARGO_PROFILE_DEV_OPT_LEVEL=1 CARGO_PROFILE_DEV_DEBUG=false
export CARGO_PROFILE_DEV_OPT_LEVEL CARGO_PROFILE_DEV_DEBUG
seconds=${MUTANTS_SECONDS:-300}
seed=${MUTANTS_SEED:-1}
tree=$CARGO_TARGET_DIR/mutants/tree
binary=$CARGO_TARGET_DIR/mutants/fuzz
output=$CARGO_TARGET_DIR/mutants/output

clean() { git -C "$root" worktree remove --force "$tree" 2>/dev/null || rm -rf "$tree"; }
trap clean EXIT
trap 'exit 1' INT TERM
mkdir -p "$CARGO_TARGET_DIR/mutants"
clean
git -C "$root" worktree prune
git -C "$root" worktree add --quiet --detach "$tree" HEAD

# The worktree with the given patch, as a fuzzer.
build() {
    git -C "$tree" checkout --quiet --force HEAD
    if [ "$1" != none ]; then git -C "$tree" apply "$root/tests/mutants/$1.patch"; fi
    (cd "$tree" && $cargo build --quiet -p tallow-tests --bin fuzz) && cp "$CARGO_TARGET_DIR/debug/fuzz" "$binary"
}

build none
for mode in graphs lazy shapes 'gradients --no-device'; do
    # shellcheck disable=SC2086 # A mode may have an option.
    if ! "$binary" --mode $mode --seconds "${MUTANTS_BASELINE:-30}" --seed "$seed" --no-reduce >"$output" 2>&1; then
        cat "$output"
        echo "error: the fuzzer fails without a mutant" >&2
        exit 1
    fi
done

missed=0
printf '%-34s %-9s %s\n' mutant 'found in' by
if [ $# -eq 0 ]; then
    for patch in "$root"/tests/mutants/*.patch; do set -- "$@" "$(basename "$patch" .patch)"; done
fi
for name in "$@"; do
    # What is computed when, and whose memory is used again, only programs of lazy tensors test; which plan serves which
    # extents, only many shapes; rules of gradients, only differences.
    case $name in lazy_*) mode=lazy ;; shapes_*) mode=shapes ;; gradient_*) mode='gradients --no-device' ;; *) mode=graphs ;; esac
    if ! build "$name" >"$output" 2>&1; then
        cat "$output"
        printf '%-34s %-9s %s\n' "$name" - 'does not build'
        missed=$((missed + 1))
    # shellcheck disable=SC2086
    elif "$binary" --mode $mode --seconds "$seconds" --seed "$seed" --no-reduce >"$output" 2>&1; then
        printf '%-34s %-9s %s\n' "$name" - "not found in $seconds s"
        missed=$((missed + 1))
    else
        after=$(sed -n 's/^after \([0-9]*\) s, seed.*/\1/p' "$output" | head -n 1)
        by=$(sed -n 's/^after [0-9]* s, seed [0-9]*: //p' "$output" | head -n 1 | cut -c 1-90)
        printf '%-34s %-9s %s\n' "$name" "${after:-?} s" "${by:-$(head -n 1 "$output")}"
    fi
done
[ "$missed" -eq 0 ] || { echo "error: $missed mutants were not found" >&2; exit 1; }
