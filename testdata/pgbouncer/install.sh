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
# The packages come from where this machine's apt gets its own, through an apt root of their own: nothing is
# installed, and root is not needed. Exit status: 69 if this machine has no such source, 1 if something is broken.
set -eu

say() { printf 'install.sh: %s\n' "$*" >&2; }

unavailable() {
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
program=$dir/pgbouncer
if [ -x "$program" ]; then
	printf '%s\n' "$program"
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
printf 'deb %s %s main\n' "$from" "$suite" >"$apt/sources.list"

# isolated runs an apt command that knows that source only, and no installed package. Keys and proxies are the machine's.
isolated() {
	tool=$1
	shift
	"$tool" -q -o "Dir::Etc::sourcelist=$apt/sources.list" -o Dir::Etc::sourceparts=/dev/null -o Dir::Etc::preferencesparts=/dev/null \
		-o "Dir::State=$apt/state" -o "Dir::State::status=$apt/state/status" -o "Dir::Cache=$apt/cache" \
		-o APT::Sandbox::User=root -o Acquire::Languages=none -o APT::Update::Error-Mode=any "$@"
}

say "PgBouncer of $suite from $from"
isolated apt-get update >"$work/log" 2>&1 || {
	cat "$work/log" >&2
	unavailable "the mirror has no $suite, or does not answer"
}
# Its libraries are in packages called lib…. The others (adduser, debconf, …) are only for the installation.
packages=$(isolated apt-get -s --no-install-recommends install pgbouncer | awk '$1 == "Inst" && ($2 == "pgbouncer" || $2 ~ /^lib/) && $2 !~ /^libperl/ { print $2 }' | sort -u)
[ -n "$packages" ] || unavailable "$suite has no pgbouncer"
# shellcheck disable=SC2086 # names of packages hold no blanks
(cd "$apt/packages" && isolated apt-get download $packages) >>"$work/log" 2>&1 || {
	cat "$work/log" >&2
	unavailable "the download failed"
}
for package in "$apt"/packages/*.deb; do
	dpkg-deb -x "$package" "$work/root"
done
rm -rf "$apt" "$work/log" "$work/root/usr/share"

# Its own loader finds its own libraries. The paths are relative, so that the directory can be moved.
cat >"$work/pgbouncer" <<'END'
#!/bin/sh
root=$(cd "$(dirname "$0")/root" && pwd)
for loader in "$root"/usr/lib*/ld-linux*.so.? "$root"/usr/lib*/*/ld-linux*.so.? "$root"/lib*/ld-linux*.so.?; do
	[ ! -x "$loader" ] || break
done
libraries=$(echo "$root"/usr/lib/*-linux-gnu* | tr ' ' ':')
exec "$loader" --library-path "$libraries" "$root/usr/sbin/pgbouncer" "$@"
END
chmod 755 "$work/pgbouncer"
"$work/pgbouncer" --version >&2
trap - EXIT
if ! mv -T "$work" "$dir" 2>/dev/null; then # somebody else was faster
	rm -rf "$work"
	[ -x "$program" ]
fi
printf '%s\n' "$program"
