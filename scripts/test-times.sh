#!/usr/bin/env bash
# Makes target/test-times.tsv, or the file $TABLE, of the output of a run: seconds, group/binary and
# name of each test, slowest first. Prints the seconds of each group and the slowest tests.
#
#   scripts/test-times.sh LOG
#
# LOG is the output of `.ci/run`, `make test` or one group, stderr included.
set -euo pipefail
cd "$(dirname "$0")/.."

table=${TABLE:-target/test-times.tsv}
mkdir -p target
{
    printf 'seconds\tgroup/binary\ttest\n'
    awk -v OFS='\t' '
        /^== [a-z0-9-]+: at most / { group = substr($2, 1, length($2) - 1) }
        /^ +Running / { binary = $NF; sub(/.*\//, "", binary); sub(/-[0-9a-f]*\)$/, "", binary) }
        /^test .* \.\.\. .*<[0-9.]+s>$/ {
            print substr($NF, 2, length($NF) - 3), group "/" binary, $2
        }
    ' "$1" | sort --general-numeric-sort --reverse
} >"$table"

awk '/^== [a-z0-9-]+: ([0-9]+ s|FAILED, stopped|stamped)/ {
        name = substr($2, 1, length($2) - 1)
        if (!(name in text)) names[++n] = name
        if ($3 == "stamped") text[name] = "stamped"
        else if ($3 == "FAILED,") text[name] = $(NF - 1) " s, stopped"
        else text[name] = (seconds[name] += $3) " s" ($5 == "of" ? " of " $6 " s" : "")
        if (/status [1-9]/) text[name] = text[name] ", FAILED"
    }
    END { for (i = 1; i <= n; i++) print names[i] ": " text[names[i]] }' "$1"
printf '\nThe slowest tests; all are in %s:\n' "$table"
sed -n 2,11p "$table" | expand --tabs=12,48
