#!/bin/sh
# Builds a Docker image of PostgreSQL on a machine that reaches no container registry, for
#
#   PGLOCK_TEST_IMAGE=pglock-postgres:15 go test ./...
#
# usage: build.sh [--force] [--from debootstrap [SUITE] | --from binaries] [NAME]
#
#   --from debootstrap  a minimal Debian or Ubuntu with its postgresql package. SUITE is one word of letters, bookworm
#                       without it. The packages come from where this machine's apt gets them. Needs root. This is
#                       the default. The suite experimental has the next PostgreSQL, on top of sid.
#   --from binaries     what is installed on this machine: PostgreSQL's programs, the libraries they use, a shell
#   --force             build also if there is an image of that name
#   NAME                of the image; without it $PGLOCK_IMAGE_NAME, or pglock-postgres:15
#
# PGLOCK_IMAGE_BINDIR names the directory of the programs for --from binaries. Without it, the newest is taken.
set -eu

say() { printf 'build.sh: %s\n' "$*" >&2; }

fail() {
	say "$*"
	exit 1
}

usage() {
	sed -n '/^# usage:/,/^set -eu/{/^#/s/^# \{0,1\}//p;}' "$0" >&2
	exit 64
}

# --- from debootstrap -------------------------------------------------------------------------------------------------

fill_by_debootstrap() {
	[ "$(id -u)" = 0 ] || fail "--from debootstrap needs root; --from binaries doesn't"
	command -v apt-get >/dev/null || fail "--from debootstrap needs apt; --from binaries doesn't"
	packages=postgresql
	if [ "$suite" = experimental ]; then
		bootstrap sid "$root" "$work/log"
		sed -n '/^deb /s/ sid / experimental /p' "$root/etc/apt/sources.list" >"$root/etc/apt/sources.list.d/experimental.list"
		inside apt-get -o Acquire::Check-Valid-Until=false update >>"$work/log" 2>&1 || # the mirror may lag
			fail_with_log "apt-get update failed"
		newest=$(inside apt-cache search --names-only '^postgresql-[0-9]+$' | sed 's/^postgresql-\([0-9]*\) .*/\1/' | sort -n | tail -n 1)
		packages="postgresql-$newest/experimental postgresql-client-$newest/experimental libpq5/experimental"
	else
		bootstrap "$suite" "$root" "$work/log"
	fi

	# Packages may neither start a server nor make a cluster.
	printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
	chmod 755 "$root/usr/sbin/policy-rc.d"
	mkdir -p "$root/etc/postgresql-common"
	echo "create_main_cluster = false" >"$root/etc/postgresql-common/createcluster.conf"
	printf 'path-exclude /usr/share/%s/*\n' doc man info locale >"$root/etc/dpkg/dpkg.cfg.d/small"
	say "installing $packages"
	mount -t proc proc "$root/proc" # postgresql-common of trixie and later needs it, for systemd-tmpfiles
	# shellcheck disable=SC2086 # a list of packages
	inside env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $packages \
		>>"$work/log" 2>&1 || fail_with_log "apt-get install $packages failed"
	umount "$root/proc"
	rm -rf "$root/var/cache/apt/archives" "$root/var/lib/apt/lists" "$root/usr/sbin/policy-rc.d"
	bin=$(cd "$root" && echo usr/lib/postgresql/*/bin)
	bin=/$bin
	# The compiler for expressions is half of the image, and of no use to short statements. The server does without.
	rm -rf "$root$bin/../lib/bitcode" "$root$bin"/../lib/llvmjit* "$root"/usr/lib/*/libLLVM*
}

inside() {
	chroot "$root" "$@"
}

fail_with_log() {
	tail -n 20 "$work/log" >&2
	fail "$*"
}

# --- from binaries ----------------------------------------------------------------------------------------------------

newest_bindir() {
	if [ -n "${PGLOCK_IMAGE_BINDIR:-}" ]; then
		printf '%s' "$PGLOCK_IMAGE_BINDIR"
		return
	fi
	for dir in $(printf '%s\n' /usr/lib/postgresql/*/bin /usr/pgsql-*/bin | sort -rV) "$(dirname "$(command -v postgres || echo /)")"; do
		if [ -x "$dir/postgres" ] && [ -x "$dir/initdb" ]; then
			printf '%s' "$dir"
			return
		fi
	done
}

# copy puts files and directories of this machine in the same place of the new system. Links stay links, and what
# they point to comes along.
copy() {
	for path in "$@"; do
		[ ! -e "$root$path" ] || continue
		mkdir -p "$root$(dirname "$path")"
		cp -a "$path" "$root$path"
		[ ! -L "$path" ] || copy "$(readlink -f "$path")"
	done
}

# libraries prints the shared libraries that programs and libraries need, the loader among them.
libraries() {
	for file in "$@"; do
		ldd "$file" 2>/dev/null || true # a script has none
	done | awk '$2 == "=>" && $3 ~ /^\// { print $3 } $1 ~ /^\// { print $1 }' | sort -u
}

fill_by_binaries() {
	bin=$(newest_bindir)
	[ -n "$bin" ] || fail "no PostgreSQL server is installed here; name its directory in PGLOCK_IMAGE_BINDIR"
	[ -x "$bin/pg_config" ] || fail "there is no pg_config in $bin"
	say "packing $("$bin/postgres" --version) from $bin"

	# A merged /usr: Debian's /bin, /lib and so on are links, and the loader's path goes through one.
	for dir in bin sbin lib lib64; do
		if [ -L "/$dir" ]; then
			mkdir -p "$root/usr/$dir"
			cp -a "/$dir" "$root/$dir"
		fi
	done
	modules=$("$bin/pg_config" --pkglibdir)
	copy "$bin" "$modules" "$("$bin/pg_config" --sharedir)"
	# The compiler for expressions needs large libraries and is of no use to short statements. The server does without.
	rm -rf "$root$modules/bitcode" "$root$modules"/llvmjit*
	[ ! -d /usr/share/zoneinfo ] || copy /usr/share/zoneinfo
	for locale in /usr/lib/locale/C.*; do
		[ ! -e "$locale" ] || copy "$locale"
	done
	tools=
	for tool in sh cat chmod chown cp env id ls mkdir mktemp rm sed setpriv; do
		path=$(PATH=/bin:/usr/bin:/sbin:/usr/sbin command -v "$tool") || fail "$tool is missing on this machine"
		copy "$path"
		tools="$tools $path"
	done
	# shellcheck disable=SC2046,SC2086 # these paths hold no blanks
	copy $(libraries "$bin"/* "$root$modules"/*.so $tools)

	mkdir -p "$root/etc" "$root/root" "$root/tmp" "$root/run/postgresql" "$root/var/lib/postgresql" "$root/dev" "$root/proc" "$root/sys"
	chmod 1777 "$root/tmp"
	ln -s /run "$root/var/run"
	printf 'root:x:0:0:root:/root:/bin/sh\npostgres:x:999:999:postgres:/var/lib/postgresql:/bin/sh\n' >"$root/etc/passwd"
	printf 'root:x:0:\npostgres:x:999:\n' >"$root/etc/group"
	printf 'passwd: files\ngroup: files\nhosts: files dns\n' >"$root/etc/nsswitch.conf"
	chmod 1777 "$root/run/postgresql"
}

# --- the image --------------------------------------------------------------------------------------------------------

import() {
	mkdir -p "$root/usr/local/bin"
	install -m 755 "$here/entrypoint.sh" "$root/usr/local/bin/entrypoint.sh"
	tar -C "$root" --numeric-owner -c . | docker import \
		--change "ENV PATH=$bin:/usr/local/bin:/usr/bin:/bin PGDATA=/var/lib/postgresql/data LANG=C.UTF-8" \
		--change 'ENTRYPOINT ["/usr/local/bin/entrypoint.sh"]' \
		--change 'CMD ["postgres"]' \
		--change 'EXPOSE 5432' \
		--change 'VOLUME /var/lib/postgresql/data' \
		- "$name" >/dev/null
}

clean_up() {
	# The mounts have to be removed first, or the removal would continue in the machine's own /proc.
	if [ -d "$root/proc" ]; then
		umount -q "$root/proc" "$root/sys" 2>/dev/null || true
	fi
	rm -rf --one-file-system "$work"
}

from=debootstrap
suite=bookworm
force=
name=${PGLOCK_IMAGE_NAME:-pglock-postgres:15}

while [ $# -gt 0 ]; do
	case $1 in
	--force) force=yes ;;
	--from)
		[ $# -ge 2 ] || usage
		from=$2
		shift
		case $from in
		debootstrap)
			# A word of letters is a suite. A word with a colon, dash or slash is an image's name.
			case ${2:-} in
			'' | *[!a-z]*) ;;
			*)
				suite=$2
				shift
				;;
			esac
			;;
		binaries) ;;
		*) usage ;;
		esac
		;;
	-*) usage ;;
	*) name=$1 ;;
	esac
	shift
done

here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=testdata/debian.sh
. "$here/../debian.sh"

docker version >/dev/null 2>&1 || fail "no Docker engine answers"
if [ -z "$force" ] && docker image inspect "$name" >/dev/null 2>&1; then
	say "$name exists; --force builds it again"
	exit 0
fi

old=$(docker image inspect --format '{{.Id}}' "$name" 2>/dev/null || true)
begin=$(date +%s)
work=$(mktemp -d)
root=$work/root
mkdir "$root"
chmod 755 "$root"
trap clean_up EXIT
trap 'exit 130' INT TERM
"fill_by_$from"
import
if [ -n "$old" ]; then
	docker rmi "$old" >/dev/null 2>&1 || true # a container may still use it
fi
size=$(docker image inspect --format '{{.Size}}' "$name")
say "built $name from $from in $(($(date +%s) - begin)) s, $((size / 1000000)) MB"
