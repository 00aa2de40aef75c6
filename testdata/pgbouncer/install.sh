#!/bin/sh
# Puts a newer PgBouncer than this machine's release has into a directory, with the libraries and the loader
# that it was built for, and prints the program's path, for
#
#   PGLOCK_TEST_PGBOUNCER=$(testdata/pgbouncer/install.sh) PGLOCK_TEST_PGBOUNCER_PREPARES=1 go test ./advisory
#
# usage: install.sh [--suite SUITE] [DIRECTORY]
#
#   --suite    the Debian release to take it from; without it trixie, whose PgBouncer (1.24) knows prepared statements
#   DIRECTORY  to put it in; without it, one in the user's cache. An earlier download is used again.
#
# Exit status: 69 if this machine has no such source, 1 if something is broken.
set -eu

say() { printf 'install.sh: %s\n' "$*" >&2; }

fail() {
	say "$*"
	exit 69
}

usage() {
	sed -n '/^# usage:/,/^set -eu/{/^#/s/^# \{0,1\}//p;}' "$0" >&2
	exit 64
}

suite=trixie
while [ $# -gt 0 ]; do
	case $1 in
	--suite)
		[ $# -ge 2 ] || usage
		suite=$2
		shift
		;;
	-*) usage ;;
	*) break ;;
	esac
	shift
done
[ $# -le 1 ] || usage
dir=${1:-${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/pglock-test/pgbouncer-$suite}
# shellcheck source=testdata/debian.sh
. "$(dirname "$0")/../debian.sh"
fetch "$dir" "$suite" sbin/pgbouncer pgbouncer
printf '%s\n' "$dir/pgbouncer"
