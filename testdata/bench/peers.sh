#!/bin/sh
# Puts the newest Redis and etcd that Debian has into a directory, with the libraries and the loader that they were
# built for. `make bench` starts its peers from the directory in the user's cache, and without it those in PATH.
#
# usage: peers.sh [DIRECTORY]
#
#   DIRECTORY  to put them in; without it, the one in the user's cache. An earlier download is used again: remove it
#              for newer ones.
#
# The packages come from where this machine's apt gets its own, through an apt root of their own: nothing is
# installed, and root is not needed. Their suites are sid and experimental, whichever is newer. Exit status: 69 if
# this machine has no such source, 1 if something is broken.
set -eu

say() { printf 'peers.sh: %s\n' "$*" >&2; }

unavailable() {
	say "$*"
	exit 69
}

# versions prints what the directory has.
versions() {
	"$dir/redis-server" --version
	"$dir/etcd" --version | head -n 1
}

case ${1:-} in
-*)
	sed -n '/^# usage:/,/^set -eu/{/^#/s/^# \{0,1\}//p;}' "$0" >&2
	exit 64
	;;
esac
dir=${1:-${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/pglock-test/peers}
if [ -x "$dir/etcd" ]; then
	versions
	exit 0
fi

for tool in apt-get dpkg-deb; do
	command -v "$tool" >/dev/null || unavailable "this needs apt and dpkg-deb"
done

# shellcheck source=testdata/debian.sh
. "$(dirname "$0")/../debian.sh"
from=$(configured_mirror "$(own_suite)") # a mirror has all releases
[ -n "$from" ] || unavailable "apt's configuration names no mirror of this release"

mkdir -p "$(dirname "$dir")"
work=$(mktemp -d "$dir.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
chmod 755 "$work"
apt=$work/apt
mkdir -p "$apt/state/lists/partial" "$apt/cache/archives/partial" "$apt/packages" "$work/root"
: >"$apt/state/status"
printf 'deb %s %s main\n' "$from" sid "$from" experimental >"$apt/sources.list"
# Without a pin, apt takes nothing of experimental as long as sid has a version. The libraries stay those of sid.
printf 'Package: redis-server redis-tools etcd-server\nPin: release a=experimental\nPin-Priority: 500\n' >"$apt/preferences"

# isolated runs an apt command that knows these sources only, and no installed package. Keys and proxies are the machine's.
isolated() {
	apt-get -q -o "Dir::Etc::sourcelist=$apt/sources.list" -o Dir::Etc::sourceparts=/dev/null \
		-o "Dir::Etc::preferences=$apt/preferences" -o Dir::Etc::preferencesparts=/dev/null \
		-o "Dir::State=$apt/state" -o "Dir::State::status=$apt/state/status" -o "Dir::Cache=$apt/cache" \
		-o APT::Sandbox::User=root -o Acquire::Languages=none -o APT::Update::Error-Mode=any "$@"
}

say "Redis and etcd of sid and experimental from $from"
isolated update >"$work/log" 2>&1 || {
	cat "$work/log" >&2
	unavailable "the mirror lacks a suite, or does not answer"
}
# Libraries are in packages called lib…. Others, like adduser, are only for the installation.
packages=$(isolated -s --no-install-recommends install redis-server etcd-server |
	awk '$1 == "Inst" && ($2 ~ /^(redis|etcd)-/ || $2 ~ /^lib/) && $2 !~ /^libperl/ { print $2 }' | sort -u)
[ -n "$packages" ] || unavailable "these suites lack Redis or etcd"
# shellcheck disable=SC2086 # names of packages hold no blanks
(cd "$apt/packages" && isolated download $packages) >>"$work/log" 2>&1 || {
	cat "$work/log" >&2
	unavailable "the download failed"
}
for package in "$apt"/packages/*.deb; do
	dpkg-deb -x "$package" "$work/root"
done
rm -rf "$apt" "$work/log" "$work/root/usr/share"

# Their own loader finds their own libraries. The process becomes the server, with the arguments by which the bench's
# keeper finds it. The paths are relative, so that the directory can be moved.
for program in redis-server etcd; do
	cat >"$work/$program" <<'END'
#!/bin/sh
root=$(cd "$(dirname "$0")/root" && pwd)
for loader in "$root"/usr/lib*/ld-linux*.so.? "$root"/usr/lib*/*/ld-linux*.so.? "$root"/lib*/ld-linux*.so.?; do
	[ ! -x "$loader" ] || break
done
libraries=$(echo "$root"/usr/lib/*-linux-gnu* | tr ' ' ':')
exec "$loader" --library-path "$libraries" "$root/usr/bin/${0##*/}" "$@"
END
	chmod 755 "$work/$program"
done
"$work/redis-server" --version >/dev/null
trap - EXIT
if ! mv -T "$work" "$dir" 2>/dev/null; then # another run was faster
	rm -rf "$work"
fi
versions
