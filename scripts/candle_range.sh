#!/bin/sh
# Tests the bridge to Candle at both ends of the versions that it takes: 0.11.0 and the newest 0.11.
#
#   scripts/candle_range.sh [VERSION ..]     those ends, or the versions named
#
# Cargo.lock is put back at the end. A new version that passes is then named in
# crates/candle/tests/bridge/relied.rs and docs/candle.md.
set -eu
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || set -- 0.11.0 newest

saved=$(mktemp)
cp Cargo.lock "$saved"
trap 'cp "$saved" Cargo.lock; rm -f "$saved"' EXIT
trap 'exit 1' HUP INT TERM

for version; do
    cp "$saved" Cargo.lock
    if [ "$version" = newest ]; then
        cargo update -p candle-core -p candle-nn -p candle-transformers
    else
        # All of Candle's crates are of one version; those that depend on others move first.
        for crate in candle-transformers candle-nn candle-core; do
            cargo update -p "$crate" --precise "$version"
        done
    fi
    grep -A 1 '^name = "candle-' Cargo.lock
    cargo test -p tallow-candle
done
