#!/bin/sh
# Installs what building and testing Tallow needs, and nothing that is already there.
#
#   scripts/setup.sh          what `make demo` needs
#   scripts/setup.sh test     and what `make test` needs besides (rustfmt, clippy)
#
# Debian and Ubuntu are served; elsewhere it only says what is missing. TALLOW_NO_SETUP=1 skips all of it.
set -eu

# package [command]: the package counts as there when dpkg knows it as installed, or the command is on the PATH.
# shaderc's build script asks for cmake, a C++ compiler, python3 and (without using it here) git.
packages='
ca-certificates
cmake cmake
g++ g++
git git
libvulkan1
make make
mesa-vulkan-drivers
python3 python3
spirv-tools spirv-val
vulkan-validationlayers
'
# Keep equal to rust-version in Cargo.toml (tests/tests/tidy.rs checks it).
min_rust=1.88

say() { printf 'setup: %s\n' "$*" >&2; }
fail() { say "$*"; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }

has_package() {
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null || true)" = installed ]
}

# Prints the packages that are not there, on one line.
missing_packages() {
    printf '%s\n' "$packages" | while read -r package command; do
        [ -n "$package" ] || continue
        if [ -n "$command" ] && have "$command"; then continue; fi
        if has_package "$package"; then continue; fi
        printf '%s ' "$package"
    done
}

# Runs a command as root; the caller has checked that one of the two ways exists.
as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

apt() {
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 -q "$@" </dev/null
}

install_packages() {
    if ! have apt-get || ! have dpkg-query; then
        # No package manager that this script knows: trust what the commands show, and name the rest.
        absent=
        for command in cmake c++ make python3 git; do have "$command" || absent="$absent $command"; done
        [ -z "$absent" ] || fail "this is not Debian or Ubuntu; please install:$absent
setup: and, to run on Vulkan: the Vulkan loader (libvulkan), a driver (Mesa's lavapipe runs anywhere),
setup: and for the tests the Khronos validation layers and SPIRV-Tools."
        say "this is not Debian or Ubuntu; the Vulkan loader, a driver, the Khronos validation layers and SPIRV-Tools are taken for granted"
        return 0
    fi
    missing=$(missing_packages) && missing=${missing% }
    [ -n "$missing" ] || return 0
    if [ "$(id -u)" != 0 ] && ! have sudo; then
        fail "missing packages, and neither root nor sudo to install them; please run as root: apt-get install $missing"
    fi
    say "installing: $missing"
    # A stale or partly unreachable list may still hold all that is needed, so only the install decides.
    apt update || say "apt-get update failed; trying with the package lists that are here"
    # $missing is a list of words.
    # shellcheck disable=SC2086
    apt install -y --no-install-recommends $missing ||
        fail "apt-get could not install: $missing (its messages are above)"
    missing=$(missing_packages) && missing=${missing% }
    [ -z "$missing" ] || fail "apt-get ended without an error, but these are still missing: $missing"
}

# True if version $1 (major.minor.patch) is at least $2 (major.minor).
at_least() {
    major=${1%%.*} rest=${1#*.}
    minor=${rest%%.*}
    [ "$major" -gt "${2%%.*}" ] || { [ "$major" -eq "${2%%.*}" ] && [ "$minor" -ge "${2#*.}" ]; }
}

check_rust() {
    get_rust="get Rust $min_rust or newer from https://rustup.rs (curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh)"
    have cargo || fail "cargo is missing; $get_rust"
    # "cargo 1.95.0 (...)"; a rustup proxy without a toolchain fails here.
    version=$(cargo --version 2>/dev/null | cut -d ' ' -f 2) || version=
    [ -n "$version" ] || fail "cargo does not run (try \`cargo --version\`); $get_rust"
    at_least "$version" "$min_rust" || fail "cargo $version is too old; $get_rust"
}

check_rust_components() {
    for component in fmt clippy; do
        cargo $component --version >/dev/null 2>&1 && continue
        case $component in fmt) name=rustfmt ;; *) name=$component ;; esac
        have rustup || fail "cargo $component is missing; install $name"
        say "adding $name to the Rust toolchain"
        rustup component add "$name" </dev/null || fail "rustup could not add $name (its messages are above)"
    done
}

[ "${TALLOW_NO_SETUP:-}" != 1 ] || { say "skipped (TALLOW_NO_SETUP=1)"; exit 0; }
# Rust first: its absence is the one thing this script cannot mend, so say it before minutes of apt.
check_rust
install_packages
[ "${1:-}" != test ] || check_rust_components
