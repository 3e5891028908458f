#!/usr/bin/env bash
# Builds VersityGW, an S3 server, from its Go module, once, and prints the path of the program.
#
# It is in target/versitygw. That takes minutes the first time.
set -euo pipefail
cd "$(dirname "$0")/.."

version=1.8.0
folder=$PWD/target/versitygw
program=$folder/versitygw

fail() {
    printf 'versitygw: %s\n' "$*" >&2
    exit 3
}

if [ "$(cat "$folder/installed" 2>/dev/null)" != "$version" ]; then
    command -v go >/dev/null ||
        fail "expected Go 1.25 or newer in PATH, found none: https://go.dev/dl"
    rm -rf "$folder"
    mkdir -p "$folder"
    GOBIN=$folder go install "github.com/versity/versitygw/cmd/versitygw@v$version" \
        >"$folder/build.log" 2>&1 ||
        fail "it could not be built: $(tail -n 3 "$folder/build.log")"
    printf '%s\n' "$version" >"$folder/installed"
fi
printf '%s\n' "$program"
