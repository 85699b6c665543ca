#!/bin/sh
# Walks down the ladder of optional device features, one more switched off at each rung, and runs the device tests and
# the benchmark's own checks of results at each. Prints a table; fails if anything does.
#
#   scripts/feature_ladder.sh [FILTER ..]     all tests of the device suite, or those whose names hold a FILTER
#
# LADDER_TESTS    test programs to run, for a machine without cargo; by default they are built (tests/tests/device*)
# LADDER_BENCH    the tallow program; by default it is built. Empty: no benchmark
# LADDER_WORKS    cases of the benchmark ("": all but the language models)
# LADDER_RUNGS    features in the order in which they go; each stays off on later rungs. "all" is the last rung
# LADDER_SECONDS  the limit for each program on each rung (1800)
set -u

root=$(cd "$(dirname "$0")/.." && pwd)
rungs=${LADDER_RUNGS:-coopmat2 coopmat int_dot bf16 f16 int8 int16 storage8 storage16 int64 float64 atomic_float atomic_int64 float_controls subgroup_size subgroup memory_model bda sync2 unified}
seconds=${LADDER_SECONDS:-1800}
cargo=${CARGO:-cargo}
log=$(mktemp)
trap 'rm -f "$log"' EXIT
trap 'exit 1' INT TERM
export REQUIRE_VULKAN=1

if [ -z "${LADDER_TESTS+set}" ]; then
    targets=$(cd "$root/tests/tests" && ls -d device*.rs device*/main.rs | sed 's,/main.rs,,; s,\.rs$,,; s,^,--test ,')
    # shellcheck disable=SC2086 # words, one an argument
    LADDER_TESTS=$(cd "$root" && $cargo test --workspace $targets --no-run 2>&1 |
        sed -n 's,.*Executable .*(\(.*\))$,\1,p' | sed "s,^\([^/]\),$root/\1,")
    [ -n "$LADDER_TESTS" ] || { echo "no device tests were built" >&2; exit 1; }
fi
if [ -z "${LADDER_BENCH+set}" ]; then
    (cd "$root" && $cargo build --quiet -p tallow-cli) || exit 1
    LADDER_BENCH=${CARGO_TARGET_DIR:-$root/target}/debug/tallow
fi

# The sum of numbers before a word in the summaries of test programs.
count() { sed -n "s/^test result:.* \([0-9]*\) $1;.*/\1/p" "$log" | awk '{ n += $1 } END { print n + 0 }'; }

failed=0
printf '%-16s %7s %7s %7s %7s %8s\n' 'without, too' passed failed cases wrong seconds
off=
for rung in nothing $rungs all; do
    case $rung in
    nothing) ;;
    all) off=all ;;
    *) off=$off${off:+,}$rung ;;
    esac
    begin=$(date +%s)
    : >"$log"
    broken=0
    for program in $LADDER_TESTS; do
        TALLOW_DISABLE=$off timeout "$seconds" "$program" "$@" >>"$log" 2>&1
        code=$?
        # A program that dies says no summary.
        [ $code -eq 0 ] || [ $code -eq 101 ] || { broken=$((broken + 1)); echo "$program ended with $code" >>"$log"; }
    done
    passed=$(count passed)
    wrong=$(($(count failed) + broken))
    cases=- bad=-
    # Times of the device are what a benchmark is about: none without timestamps.
    if [ -n "$LADDER_BENCH" ] && [ "$rung" != all ]; then
        # shellcheck disable=SC2086
        rows=$(TALLOW_DISABLE=$off timeout "$seconds" "$LADDER_BENCH" bench --quick --seconds 0 ${LADDER_WORKS:-} 2>>"$log")
        cases=$(printf '%s\n' "$rows" | grep -c '^[a-z0-9_-]*/')
        bad=$(printf '%s\n' "$rows" | grep -c 'FAILED')
        [ "$cases" -gt 0 ] || bad=1
        printf '%s\n' "$rows" | grep 'FAILED' >>"$log"
    fi
    printf '%-16s %7s %7s %7s %7s %8s\n' "$rung" "$passed" "$wrong" "$cases" "$bad" $(($(date +%s) - begin))
    [ "$bad" = - ] && bad=0
    if [ "$passed" -eq 0 ] || [ "$wrong" -gt 0 ] || [ "$bad" -gt 0 ]; then
        failed=1
        grep -E 'panicked|FAILED|ended with|^thread|has been running' "$log" | head -12
    fi
done
exit $failed
