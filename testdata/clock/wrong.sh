#!/usr/bin/env bash
# Runs `go test` with a wall clock that is wrong by five minutes, as a bad time server or an administrator may set
# it: "ahead", "behind", or "jumps" between these ten times a second. The monotonic clock goes on. Only the program
# under test sees it: the build replaces time.Now (see -overlay in `go help build`).
#
#   testdata/clock/wrong.sh behind ./leasetable -run Renew
set -euo pipefail

case ${1:-} in
ahead) by=300 ;;
behind) by=-300 ;;
jumps) by='300 * (mono/100_000_000%3 - 1)' ;;
*) echo "wrong.sh: the first argument must be ahead, behind or jumps" >&2; exit 64 ;;
esac
shift
source=$(go env GOROOT)/src/time/time.go
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
awk -v by="$by" '{ print }
     /sec, nsec, mono := runtimeNow\(\)/ { print "\tsec += " by; found++ }
     END { exit found != 1 }' "$source" >"$made/time.go" ||
  { echo "wrong.sh: time.Now looks different in $(go version)"; exit 1; }
printf '{"Replace": {"%s": "%s"}}\n' "$source" "$made/time.go" >"$made/overlay.json"
PGLOCK_TEST_CLOCK=wrong go test -overlay "$made/overlay.json" -count=1 "$@"
