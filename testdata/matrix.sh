#!/bin/sh
# Runs the tests on several versions of PostgreSQL, each in a container. A version's image is the official one where a
# registry can be reached, and is built from the apt mirror otherwise, as root.
#
# usage: matrix.sh VERSION...
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
	*)
		echo "matrix.sh: version $1: must be 13, 15, 17 or 18" >&2
		exit 64
		;;
	esac
}

export PGLOCK_TEST_WITHOUT=postgres,pg_basebackup,pg_dump,psql,docker
failed=
for version in "$@"; do
	PGLOCK_TEST_IMAGE=postgres:$version-alpine
	if ! docker pull -q "$PGLOCK_TEST_IMAGE" >/dev/null 2>&1; then
		PGLOCK_TEST_IMAGE=pglock-postgres:$version
		testdata/image/build.sh --from debootstrap "$(suite "$version")" "$PGLOCK_TEST_IMAGE"
	fi
	export PGLOCK_TEST_IMAGE
	echo "=== PostgreSQL $version ($PGLOCK_TEST_IMAGE)"
	# shellcheck disable=SC2086 # a list of packages
	go run ./internal/testserver/run go test -count=1 -timeout 30m ${PGLOCK_MATRIX_PACKAGES:-./...} || failed="$failed $version"
done
if [ -n "$failed" ]; then
	echo "matrix.sh: failed on PostgreSQL$failed" >&2
	exit 1
fi
