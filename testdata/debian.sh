# shellcheck shell=sh
# Sourced by the scripts that build a Debian or Ubuntu, or take programs of one, from the packages that this machine's
# apt gets. They define say, and fail, which ends with the status 69: this machine can't do it.

# configured_mirror prints where apt gets a suite's main packages from, whatever kind of file says so. Addresses that
# only apt understands, like lists of mirrors, don't count.
configured_mirror() {
	# shellcheck disable=SC2016 # apt fills in these, not the shell
	apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Identifier: Packages' |
		awk -v suite="$1" '$1 ~ /^(https?|file):/ && $2 == suite && $3 == "main" { print $1; exit }'
}

# own_suite prints the name of this machine's release.
own_suite() {
	# shellcheck disable=SC1091,SC2154 # the variable comes from that file
	(. /etc/os-release && printf '%s' "${VERSION_CODENAME:-}")
}

# default_mirror prints the mirror of a suite that this machine doesn't use itself: that of the suite it does use, since
# a mirror has all suites of a distribution, or else the distribution's own.
default_mirror() {
	own=$(own_suite)
	own_mirror=
	[ -z "$own" ] || own_mirror=$(configured_mirror "$own")
	if [ -n "$own_mirror" ]; then
		printf '%s' "$own_mirror"
	elif grep -q '^ID=ubuntu$' /etc/os-release; then
		printf 'http://archive.ubuntu.com/ubuntu'
	else
		printf 'http://deb.debian.org/debian'
	fi
}

# use_apt_proxy hands apt's proxies on to debootstrap, and to apt in the new system.
use_apt_proxy() {
	http='' https=''
	eval "$(apt-config shell http Acquire::http::Proxy https Acquire::https::Proxy)"
	if [ -n "$http" ] && [ "$http" != DIRECT ]; then
		http_proxy=$http
		export http_proxy
	fi
	if [ -n "$https" ] && [ "$https" != DIRECT ]; then
		https_proxy=$https
		export https_proxy
	fi
}

# bootstrap SUITE ROOT LOG [PACKAGE...] fills a directory with a minimal system of the suite, and the packages. It
# needs root and apt.
bootstrap() {
	suite=$1 root=$2 log=$3
	shift 3
	command -v debootstrap >/dev/null || {
		say "installing debootstrap"
		apt-get update -qq || true # the package lists at hand may suffice
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends debootstrap >/dev/null ||
			fail "debootstrap can't be installed"
	}
	mirror=$(configured_mirror "$suite")
	mirror=${mirror:-$(default_mirror)}
	use_apt_proxy
	case $mirror in
	https:*) set -- "$@" ca-certificates ;;
	esac
	say "debootstrap $suite from $mirror"
	include=$(echo "$*" | tr ' ' ',')
	debootstrap --variant=minbase ${include:+--include="$include"} "$suite" "$root" "$mirror" >"$log" 2>&1 || {
		tail -n 20 "$log" >&2
		fail "debootstrap failed"
	}
	# The mirror's certificate may be one that only this machine trusts.
	if [ -e "$root/etc/ssl/certs/ca-certificates.crt" ]; then
		cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
	fi
}

# fetch DIR SUITES PROGRAMS PACKAGE... puts programs (paths under /usr) of the packages into a directory, with the
# libraries and the loader that they were built for. Of several suites the newest version counts. The packages come
# through an apt root of their own: nothing is installed, and root is not needed. A directory that has the programs
# stays as it is.
fetch() {
	dir=$1 suites=$2 programs=$3
	shift 3
	[ ! -d "$dir" ] || return 0
	for tool in apt-get dpkg-deb; do
		command -v "$tool" >/dev/null || fail "this needs apt and dpkg-deb"
	done
	from=$(configured_mirror "$(own_suite)") # a mirror has all releases
	[ -n "$from" ] || fail "apt's configuration names no mirror of this release"

	mkdir -p "$(dirname "$dir")"
	work=$(mktemp -d "$dir.XXXXXX")
	trap 'rm -rf "$work"' EXIT
	trap 'exit 130' INT TERM
	chmod 755 "$work"
	apt=$work/apt
	mkdir -p "$apt/state/lists/partial" "$apt/cache/archives/partial" "$apt/packages" "$work/root"
	: >"$apt/state/status"
	for suite in $suites; do
		printf 'deb %s %s main\n' "$from" "$suite"
	done >"$apt/sources.list"
	# Without a pin, apt takes nothing of experimental as long as sid has a version. The libraries stay those of sid.
	printf 'Package: %s\nPin: release a=experimental\nPin-Priority: 500\n' "$*" >"$apt/preferences"

	say "$* of $suites from $from"
	isolated update >"$work/log" 2>&1 || {
		cat "$work/log" >&2
		fail "the mirror lacks a suite, or does not answer"
	}
	# Libraries are in packages called lib…. Others, like adduser, are only for the installation.
	packages=$(isolated -s --no-install-recommends install "$@" |
		awk -v named=" $* " '$1 == "Inst" && (index(named, " " $2 " ") || $2 ~ /^lib/) && $2 !~ /^libperl/ { print $2 }' | sort -u)
	[ -n "$packages" ] || fail "$suites: no such packages"
	# shellcheck disable=SC2086 # names of packages hold no blanks
	(cd "$apt/packages" && isolated download $packages) >>"$work/log" 2>&1 || {
		cat "$work/log" >&2
		fail "the download failed"
	}
	for package in "$apt"/packages/*.deb; do
		dpkg-deb -x "$package" "$work/root"
	done
	rm -rf "$apt" "$work/log" "$work/root/usr/share"
	for program in $programs; do
		loader_of "$program" >"$work/${program##*/}"
		chmod 755 "$work/${program##*/}"
		"$work/${program##*/}" --version >&2
	done
	trap - EXIT
	mv -T "$work" "$dir" 2>/dev/null || rm -rf "$work" # another run was faster
}

# isolated runs an apt command that knows fetch's sources only, and no installed package. Keys and proxies are the
# machine's.
isolated() {
	apt-get -q -o "Dir::Etc::sourcelist=$apt/sources.list" -o Dir::Etc::sourceparts=/dev/null \
		-o "Dir::Etc::preferences=$apt/preferences" -o Dir::Etc::preferencesparts=/dev/null \
		-o "Dir::State=$apt/state" -o "Dir::State::status=$apt/state/status" -o "Dir::Cache=$apt/cache" \
		-o APT::Sandbox::User=root -o Acquire::Languages=none -o APT::Update::Error-Mode=any "$@"
}

# loader_of prints the script that runs a program by its own loader, which finds its own libraries. The process becomes
# the program, with its arguments. The paths are relative, so that the directory can be moved.
loader_of() {
	cat <<END
#!/bin/sh
root=\$(cd "\$(dirname "\$0")/root" && pwd)
for loader in "\$root"/usr/lib*/ld-linux*.so.? "\$root"/usr/lib*/*/ld-linux*.so.? "\$root"/lib*/ld-linux*.so.?; do
	[ ! -x "\$loader" ] || break
done
libraries=\$(echo "\$root"/usr/lib/*-linux-gnu* | tr ' ' ':')
exec "\$loader" --library-path "\$libraries" "\$root/usr/$1" "\$@"
END
}
