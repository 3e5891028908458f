#!/usr/bin/env bash
# `cargo test` with the profile of all tests, which prints the seconds of each test.
#
#   scripts/cargo-test.sh [CARGO TEST ARGUMENTS] [-- TEST ARGUMENTS]
#
# It always selects the whole workspace: for a single crate cargo would select fewer features of
# dependencies and compile them again. $PROFILE is the profile, by default `testing`, and $PRELOAD a
# library that is loaded first in the processes of the tests.
set -euo pipefail

# The option that reports times is unstable. The variable that allows it is for the tests alone: it
# would make cargo compile crates again.
runner="'env', 'RUSTC_BOOTSTRAP=1'"
[ -z "${PRELOAD-}" ] || runner+=", 'LD_PRELOAD=$PRELOAD'"
case " $* " in
    *' -- '*) ;;
    *) set -- "$@" -- ;;
esac
test=(cargo test --profile "${PROFILE:-testing}" --workspace --no-fail-fast
    --config "target.'cfg(unix)'.runner = [$runner]" "$@" -Z unstable-options --report-time)
case " $* " in
    *' --no-run '*) exec "${test[@]}" ;;
esac
# A filter that no test has any more must not be green.
"${test[@]}" | awk '{ print; fflush() }
    /^test result: / { chosen += $4 + $6 + $8 }
    END { if (!chosen) { print "FAILED: no test has such a name"; exit 1 } }'
