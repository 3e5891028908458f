#!/usr/bin/env bash
# Adds up the results of test binaries, and fails if a test was skipped without a listed reason.
#
#   scripts/summarize-tests.sh LOG [SKIPS]
#
# LOG is the output of `cargo test`, SKIPS a list like tests/skips.toml, which is the default. The
# last line of the output is `N passed, N failed, N skipped`. The exit status is 1 if a test failed,
# if a test was skipped that is not listed, or if there was no test.
set -euo pipefail

log=$1
skips=${2:-$(dirname "$0")/../tests/skips.toml}
listed=$(sed -n 's/^test *= *"\(.*\)" *$/\1/p' "$skips")
status=0

# libtest writes `test NAME ... ignored`, or `ignored, REASON`.
while read -r name; do
    if ! grep -qxF -- "$name" <<<"$listed"; then
        printf 'skipped, but not listed in %s: %s\n' "$skips" "$name"
        status=1
    fi
done < <(sed -n 's/^test \(.*\) \.\.\. ignored\(, .*\)\{0,1\}$/\1/p' "$log" | sort -u)

sums=$(awk '/^test result: / { passed += $4; failed += $6; skipped += $8 }
    END { printf "%d %d %d", passed, failed, skipped }' "$log")
read -r passed failed skipped <<<"$sums"
if [ "$failed" != 0 ] || [ "$passed" = 0 ]; then
    status=1
fi
printf '%s passed, %s failed, %s skipped\n' "$passed" "$failed" "$skipped"
exit "$status"
