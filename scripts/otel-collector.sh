#!/usr/bin/env bash
# Builds an OpenTelemetry collector from Go modules, once, and prints the path of the program.
#
# It is in target/otel-collector, and has what the tests in tests/telemetry/otlp need: it receives
# OTLP, prints what it got, and sends it on. That takes minutes the first time.
set -euo pipefail
cd "$(dirname "$0")/.."

version=0.165.0
folder=$PWD/target/otel-collector
program=$folder/collector

fail() {
    printf 'otel-collector: %s\n' "$*" >&2
    exit 3
}

if [ "$(cat "$folder/installed" 2>/dev/null)" != "$version" ]; then
    command -v go >/dev/null ||
        fail "expected Go 1.26 or newer in PATH, found none: https://go.dev/dl"
    rm -rf "$folder"
    mkdir -p "$folder"
    cat >"$folder/builder.yaml" <<YAML
dist:
  name: collector
  output_path: $folder/source
receivers:
  - gomod: go.opentelemetry.io/collector/receiver/otlpreceiver v$version
exporters:
  - gomod: go.opentelemetry.io/collector/exporter/debugexporter v$version
  - gomod: go.opentelemetry.io/collector/exporter/otlphttpexporter v$version
YAML
    go run "go.opentelemetry.io/collector/cmd/builder@v$version" \
        --config "$folder/builder.yaml" >"$folder/build.log" 2>&1 ||
        fail "the collector could not be built: $(tail -n 3 "$folder/build.log")"
    mv "$folder/source/collector" "$program"
    rm -rf "$folder/source"
    printf '%s\n' "$version" >"$folder/installed"
fi
printf '%s\n' "$program"
