#!/bin/sh
# Runs the tests on several versions of PostgreSQL, each in a container. A version's image is the official one where a
# registry can be reached, and is built from the apt mirror otherwise, as root.
#
# usage: matrix.sh VERSION...
#
# On each of them, the tests through a pooler run again with PgBouncer 1.24, where the apt mirror has it. They run with
# this machine's PgBouncer before, in session and in transaction mode. Where pgpool is installed, a conformance
# suite runs behind pgpool-II. From PostgreSQL 17 on, one test fills the server's notification queue. A line for each run counts
# its packages and tests.
#
# PGLOCK_MATRIX_PACKAGES limits the packages. Tests that start private servers or need PostgreSQL's programs do not
# depend on the version of the container, so they are left out.
set -eu
cd "$(dirname "$0")/.."

# suite prints the Debian release with that version.
suite() {
	case $1 in
	13) echo bullseye ;;
	15) echo bookworm ;;
	17) echo trixie ;;
	18) echo sid ;;
	19) echo experimental ;;
	*)
		echo "matrix.sh: version $1: must be 13, 15, 17, 18 or 19" >&2
		exit 64
		;;
	esac
}

# tests LABEL ARGUMENT... runs go test on a server of its own, and prints what failed and a line with the counts.
tests() {
	label=$1 begin=$(date +%s)
	shift
	go run ./internal/testserver/run go test -v -count=1 -timeout 60m "$@" >"$log" 2>&1 || {
		failed="$failed; $label"
		mkdir -p bin
		cp "$log" "bin/$label.log"
		echo "matrix.sh: all that the tests said: bin/$label.log" >&2
		grep -E -A 12 '^ *--- FAIL|^panic:|^FAIL|[.]go:[0-9]+:[0-9]+:' "$log" || tail -n 20 "$log"
	}
	awk -v label="$label" -v took=$(($(date +%s) - begin)) '
		/^ok / { packages++ } /^FAIL\t/ { bad++ } /^ *--- PASS/ { passed++ } /^ *--- FAIL/ { lost++ } /^ *--- SKIP/ { skipped++ }
		END { printf "=== %s: packages: %d passed, %d failed; tests: %d passed, %d failed, %d skipped; %d s\n",
			label, packages, bad, passed, lost, skipped, took }' "$log"
}

export PGLOCK_TEST_WITHOUT=postgres,pg_basebackup,pg_dump,psql,docker
failed=
log=$(mktemp)
trap 'rm -f "$log"' EXIT
trap 'exit 130' INT TERM
newer=$(testdata/pgbouncer/install.sh) || echo "matrix.sh: no second PgBouncer" >&2
PGLOCK_TEST_PGPOOL=$(PATH=$PATH:/usr/sbin command -v pgpool) || echo "matrix.sh: no pgpool" >&2
export PGLOCK_TEST_PGPOOL
for version in "$@"; do
	PGLOCK_TEST_IMAGE=postgres:$version-alpine
	if ! docker pull -q "$PGLOCK_TEST_IMAGE" >/dev/null 2>&1; then
		PGLOCK_TEST_IMAGE=pglock-postgres:$version
		testdata/image/build.sh --from debootstrap "$(suite "$version")" "$PGLOCK_TEST_IMAGE"
	fi
	export PGLOCK_TEST_IMAGE
	# shellcheck disable=SC2086 # a list of packages
	tests "PostgreSQL $version" ${PGLOCK_MATRIX_PACKAGES:-./... ./pglock/cmd/pglock/...}
	if [ -n "$newer" ]; then
		export PGLOCK_TEST_PGBOUNCER="$newer" PGLOCK_TEST_PGBOUNCER_PREPARES=1
		tests "PostgreSQL $version, PgBouncer 1.24" -run 'Pooler|SessionMode' ./advisory ./pglock ./pglock/rowlock
		unset PGLOCK_TEST_PGBOUNCER PGLOCK_TEST_PGBOUNCER_PREPARES
	fi
	if [ "$version" -ge 17 ]; then
		export PGLOCK_TEST_SETTINGS=max_notify_queue_pages=64
		tests "PostgreSQL $version, full notification queue" -run TestI10_FullNotificationQueue ./pglock
		unset PGLOCK_TEST_SETTINGS
	fi
done
if [ -n "$failed" ]; then
	echo "matrix.sh: failed: ${failed#; }" >&2
	exit 1
fi
