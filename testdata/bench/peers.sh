#!/bin/sh
# Puts the newest Redis and etcd that Debian has into a directory, with the libraries and the loader that they were
# built for. `make bench` starts its peers from the directory in the user's cache, and without it those in PATH.
#
# usage: peers.sh [DIRECTORY]
#
#   DIRECTORY  to put them in; without it, the one in the user's cache. An earlier download is used again: remove it
#              for newer ones.
#
# Their suites are sid and experimental, whichever is newer. Exit status: 69 if this machine has no such source, 1 if
# something is broken.
set -eu

say() { printf 'peers.sh: %s\n' "$*" >&2; }

fail() {
	say "$*"
	exit 69
}

case ${1:-} in
-*)
	sed -n '/^# usage:/,/^set -eu/{/^#/s/^# \{0,1\}//p;}' "$0" >&2
	exit 64
	;;
esac
dir=${1:-${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/pglock-test/peers}
# shellcheck source=testdata/debian.sh
. "$(dirname "$0")/../debian.sh"
fetch "$dir" "sid experimental" "bin/redis-server bin/etcd" redis-server redis-tools etcd-server
