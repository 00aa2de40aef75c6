# shellcheck shell=sh
# Sourced by the scripts that build a Debian or Ubuntu from the packages that this machine's apt gets. They define say
# and fail.

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
