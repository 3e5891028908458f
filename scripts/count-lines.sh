#!/usr/bin/env bash
# Counts lines of code, without blank lines and comments, by language, product and tests apart.
#
#   scripts/count-lines.sh [COMMIT]    (by default HEAD)
#
# Tests are what is in a folder tests or cuda_tests, files named tests.rs or *_tests.rs, and the
# module of tests at the end of a file.
set -euo pipefail
cd "$(dirname "$0")/.."

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
git archive "${1:-HEAD}" | tar --extract --directory "$folder"
cd "$folder"

mapfile -d '' files < <(find . -type f -print0)
awk '
function language(path) {
    if (path ~ /\.rs$/) return "Rust"
    if (path ~ /\.(c|cpp|h)$/) return "C++"
    if (path ~ /\.(cu|cuh)$/) return "CUDA"
    if (path ~ /\.sh$|\.ci\/run$/) return "shell"
    if (path ~ /\.py$/) return "Python"
    if (path ~ /\.ya?ml$/) return "YAML"
}
FNR == 1 {
    kind = language(FILENAME)
    has_slashes = kind ~ /Rust|C\+\+|CUDA/
    is_test = FILENAME ~ /\/(tests|cuda_tests)\/|\/tests\.rs$|_tests\.rs$/
    in_comment = 0
    attribute = ""
}
kind == "" { nextfile }
/^[ \t]*$/ { next }
has_slashes && in_comment { in_comment = !/\*\//; next }
has_slashes && /^[ \t]*\/\// { next }
has_slashes && /^[ \t]*\/\*/ { in_comment = !/\*\//; next }
kind == "Python" && in_comment { in_comment = !/"""/; next }
kind == "Python" && /^[ \t]*"""/ { in_comment = !/""".*"""/; next }
!has_slashes && /^[ \t]*#/ { next }
kind == "Rust" && attribute ~ /^#\[cfg\(.*test/ && /^mod .*\{$/ { is_test = 1 }
{
    attribute = $0
    count[kind, is_test]++
    sum[is_test]++
}
END {
    printf "%-8s %8s %8s %8s\n", "", "product", "tests", "all"
    kinds = split("Rust C++ CUDA shell Python YAML", names, " ")
    for (i = 1; i <= kinds; i++) row(names[i], count[names[i], 0], count[names[i], 1])
    row("all", sum[0], sum[1])
}
function row(name, product, tests) {
    printf "%-8s %8d %8d %8d\n", name, product, tests, product + tests
}' "${files[@]}"
