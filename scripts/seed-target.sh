#!/usr/bin/env bash
# Begins another folder of builds with the libraries that are built in target: crates of others are
# not compiled again. Does nothing where the folder has a build, or target has none.
#
#   scripts/seed-target.sh FOLDER
set -euo pipefail
cd "$(dirname "$0")/.."

from=target/${PROFILE:-testing}
to=$PWD/$1/${PROFILE:-testing}
if [ ! -d "$from" ] || [ -d "$to" ]; then
    exit
fi
mkdir -p "$to"
cd "$from"
# Without the executables, which have no dot in their names.
find .fingerprint build deps -type f \( -path 'deps/*.*' -o ! -path 'deps/*' \) -print0 |
    xargs --null cp --archive --parents --target-directory "$to"
