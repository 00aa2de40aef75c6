#!/bin/sh
# Runs commands on a bare machine: a minimal Debian with Go, git, make and this repository, and nothing else. It shows
# that the commands do their own set-up.
#
# usage: bare.sh [--suite SUITE] COMMAND...
#
#   SUITE    one word of letters, without it this machine's own
#   COMMAND  one command line each, such as 'make test', in the repository's directory
#
# The machine is a directory that debootstrap fills, entered by chroot in namespaces of its own: its mounts and all
# processes in it end with this script, and nothing but that directory is written. It shares this machine's network and
# gets copies of its Go and of its settings for apt and for Go modules. Modules that this machine has come from its
# cache, which the bare machine can only read; all others from the Go proxy. Likewise it reads what this machine has
# compiled, and keeps what it compiles itself.
#
# Variables that are handed on: CI and PGLOCK_TEST_WITHOUT. Needs root and apt. Exit status: 69 if this machine can't
# do it, else that of the first command that fails.
set -eu

say() { printf 'bare: %s\n' "$*"; }

# fail ends the script: this machine can't make a bare one.
fail() {
	say "$*"
	exit 69
}

usage() {
	sed -n '/^# usage:/,/^set -eu/{/^#/s/^# \{0,1\}//p;}' "$0" >&2
	exit 64
}

# enter mounts what a machine has, and runs a command. It is process 1 of a namespace; its mounts end with it.
enter() {
	root=$1
	shift
	mount -t proc proc "$root/proc"
	mount --rbind /dev "$root/dev"
	mount -t tmpfs -o mode=1777,nosuid,nodev tmpfs "$root/dev/shm"
	mount --bind "$MODULES" "$root/mnt"
	mount -o remount,bind,ro "$root/mnt"
	mount -t overlay -o "lowerdir=$BUILDS,upperdir=$root/var/builds,workdir=$root/var/builds.work" overlay "$root/root/.cache/go-build" ||
		say "it compiles all by itself"
	# shellcheck disable=SC2016 # the shell in there expands $1
	set -- chroot "$root" env -i \
		HOME=/root PATH=/usr/local/go/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 \
		"CI=${CI:-}" "PGLOCK_TEST_WITHOUT=${PGLOCK_TEST_WITHOUT:-}" \
		"GOPROXY=file:///mnt/cache/download,$(go env GOPROXY)" "GOFLAGS=$(go env GOFLAGS)" "GOSUMDB=$(go env GOSUMDB)" \
		"GOPRIVATE=$(go env GOPRIVATE)" "GONOPROXY=$(go env GONOPROXY)" "GONOSUMDB=$(go env GONOSUMDB)" \
		"GOINSECURE=$(go env GOINSECURE)" GOTOOLCHAIN=local \
		"http_proxy=${http_proxy:-}" "https_proxy=${https_proxy:-}" "no_proxy=${no_proxy:-}" \
		sh -c 'cd /root/repository && exec sh -c "$1"' sh "$1"
	"$@" </dev/null
}

if [ "${1:-}" = --enter ]; then
	shift
	enter "$@"
	exit
fi

suite=
case ${1:-} in
--suite)
	[ $# -ge 2 ] || usage
	suite=$2
	shift 2
	;;
-*) usage ;;
esac
[ $# -gt 0 ] || usage
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=testdata/debian.sh
. "$here/debian.sh"

[ "$(id -u)" = 0 ] || fail "this needs root"
command -v apt-get >/dev/null || fail "this needs apt"
unshare --mount --pid --fork --kill-child true 2>/dev/null || fail "this needs the right to make namespaces"

begin=$(date +%s)
work=$(mktemp -d)
root=$work/root
child=
clean_up() {
	if [ -n "$child" ]; then
		kill -KILL "$child" 2>/dev/null || true # unshare --kill-child takes along all that runs there
		wait "$child" 2>/dev/null || true
	fi
	# The mounts of an interrupted debootstrap have to be removed first.
	umount -q "$root/proc" "$root/sys" 2>/dev/null || true
	rm -rf --one-file-system "$work"
}
trap clean_up EXIT
trap 'exit 130' INT TERM HUP

bootstrap "${suite:-$(own_suite)}" "$root" "$work/log" ca-certificates git make
# Its apt gets the settings of this machine's apt.
apt-config dump | grep '^Acquire::' >"$root/etc/apt/apt.conf.d/99host"
for path in /etc/apt/auth.conf.d /etc/apt/trusted.gpg.d /etc/resolv.conf /etc/hosts; do
	[ ! -e "$path" ] || cp -RL "$path" "$root$(dirname "$path")/"
done
cd "$here/.."
cp -RL "$(go env GOROOT)" "$root/usr/local/go"
mkdir "$root/root/repository"
git ls-files -z --cached --others --exclude-standard | tar -c --null --files-from=- --ignore-failed-read |
	tar -x -C "$root/root/repository" --no-same-owner
MODULES=$(go env GOMODCACHE)
BUILDS=$(go env GOCACHE)
mkdir -p "$MODULES/cache/download" "$BUILDS" "$root/var/builds" "$root/var/builds.work" "$root/root/.cache/go-build"
export MODULES BUILDS
say "a machine with $("$root/usr/local/go/bin/go" version) and no more after $(($(date +%s) - begin)) s"

for command in "$@"; do
	say "$command"
	began=$(date +%s)
	status=0
	unshare --mount --pid --fork --kill-child "$here/bare.sh" --enter "$root" "$command" &
	child=$!
	wait "$child" || status=$?
	child=
	say "$command: status $status after $(($(date +%s) - began)) s"
	[ "$status" = 0 ] || exit "$status"
done
