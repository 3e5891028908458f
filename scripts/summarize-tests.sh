#!/usr/bin/env bash
# Sums up what test binaries printed and refuses tests that were skipped without a reason.
#
#   scripts/summarize-tests.sh LOG [SKIPS]
#
# LOG is the output of `cargo test` runs, SKIPS a list like tests/skips.toml (its default). The last
# line printed is `N passed, N failed, N skipped`; the exit status is 1 if a test failed, if one
# was skipped that is not listed, or if there was no test at all.
set -euo pipefail

log=$1
skips=${2:-$(dirname "$0")/../tests/skips.toml}
listed=$(sed -n 's/^test *= *"\(.*\)" *$/\1/p' "$skips")
status=0

# libtest writes `test NAME ... ignored`, or `ignored, REASON`.
while read -r name; do
    if ! grep -qxF -- "$name" <<<"$listed"; then
        printf 'skipped, but not named in %s: %s\n' "$skips" "$name"
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
