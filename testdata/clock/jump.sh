#!/usr/bin/env bash
# Runs `go test` with a wall clock that jumps back and forth by five minutes, ten times a second, as a bad time server
# or an administrator may set it. The monotonic clock goes on. Only the program under test sees it: the build
# replaces time.Now (see -overlay in `go help build`).
#
#   testdata/clock/jump.sh ./leasetable -run Renew
set -euo pipefail

source=$(go env GOROOT)/src/time/time.go
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
awk '{ print }
     /sec, nsec, mono := runtimeNow\(\)/ { print "\tsec += 300 * (mono/100_000_000%3 - 1)"; found++ }
     END { exit found != 1 }' "$source" >"$made/time.go" ||
  { echo "jump.sh: time.Now looks different in $(go version)"; exit 1; }
printf '{"Replace": {"%s": "%s"}}\n' "$source" "$made/time.go" >"$made/overlay.json"
PGLOCK_TEST_CLOCK=jumps go test -overlay "$made/overlay.json" -count=1 "$@"
