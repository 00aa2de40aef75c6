#!/bin/sh
# Installs what `make test` and `make demo` need besides Go, where it is missing. As root on Debian and
# Ubuntu it calls apt-get, with Homebrew brew; elsewhere it names the command to run.
#
# usage: setup.sh [PROGRAM...]
#
#   PROGRAM  postgres, client (psql, pg_dump, pg_basebackup), pgbouncer, locales, tmux, cc or make; without any: these.
#            Also chromium, prometheus and python (with psycopg2), for tests that CI runs outside of the bare machine
#
# Programs are wanted, not services: apt-get neither makes nor starts a PostgreSQL server cluster, now or later
# (create_main_cluster = false), nor a PgBouncer. Where nothing is missing, this takes some milliseconds and no network.
#
# Exit status: 0 if everything is there, 69 if something is still missing. `make test` then leaves out the tests that
# need it and counts them at its end. Without a server's programs the tests look for Docker.
set -eu

say() { printf 'setup: %s\n' "$*"; }

usage() {
	sed -n '/^# usage:/,/^set -eu/{/^#/s/^# \{0,1\}//p;}' "$0" >&2
	exit 64
}

# have succeeds if this machine has the program. The places are those of internal/testserver.
have() {
	case $1 in
	postgres) [ -n "${PGLOCK_TEST_BINDIR:-}" ] || together initdb postgres pg_ctl ;;
	client) anywhere psql && anywhere pg_dump && anywhere pg_basebackup ;;
	pgbouncer) [ -n "${PGLOCK_TEST_PGBOUNCER:-}" ] || command -v pgbouncer >/dev/null || [ -x /usr/sbin/pgbouncer ] ;;
	chromium) command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null ;;
	python) python3 -c 'import psycopg2' 2>/dev/null || /usr/bin/python3 -c 'import psycopg2' 2>/dev/null ;;
	locales) [ -r /usr/share/i18n/locales/en_US ] || [ "$(uname)" != Linux ] ;;
	cc) compiles ;;
	make | tmux | prometheus) command -v "$1" >/dev/null ;;
	esac
}

directories() {
	for dir in /usr/lib/postgresql/*/bin /usr/pgsql-*/bin /usr/libexec/postgresql* /usr/local/pgsql/bin \
		/opt/homebrew/opt/postgresql*/bin /usr/local/opt/postgresql*/bin \
		/Applications/Postgres.app/Contents/Versions/*/bin; do
		[ ! -d "$dir" ] || printf '%s\n' "$dir"
	done
	path=$(command -v initdb) && dirname "$path"
}

# together succeeds if one directory has all these programs.
together() {
	directories | while read -r dir; do
		for program in "$@"; do
			[ -x "$dir/$program" ] || continue 2
		done
		echo found
		break
	done | grep -q found
}

anywhere() { command -v "$1" >/dev/null || together "$1"; }

# compiles succeeds if Go's C compiler is there, with the C library's headers, which the race detector needs.
compiles() {
	command -v "${CC:-gcc}" >/dev/null && "${CC:-gcc}" -E -include stdlib.h -x c /dev/null >/dev/null 2>&1
}

# look sets $missing. Tools that PGLOCK_TEST_WITHOUT lists do not count as missing.
look() {
	missing=
	for program in "$@"; do
		case ,${PGLOCK_TEST_WITHOUT:-}, in
		*",$program,"*) ;;
		*) have "$program" || missing="$missing $program" ;;
		esac
	done
}

# describe prints what the programs are, for people.
describe() {
	list=
	for program in "$@"; do
		case $program in
		postgres) what="PostgreSQL's server programs" ;;
		client) what="psql, pg_dump and pg_basebackup" ;;
		pgbouncer) what=PgBouncer ;;
		chromium) what=Chromium ;;
		python) what="Python with psycopg2" ;;
		locales) what="the sources of glibc's locales" ;;
		cc) what="a C compiler for the race detector" ;;
		*) what=$program ;;
		esac
		list="$list${list:+; }$what"
	done
	printf '%s' "$list"
}

# packages prints the packages that bring the programs.
packages() {
	manager=$1
	shift
	for program in "$@"; do
		case $manager-$program in
		apt-postgres | apk-postgres) echo postgresql ;;
		dnf-postgres) echo postgresql-server ;;
		apt-client | apk-client) echo postgresql-client ;;
		dnf-client) echo postgresql ;;
		brew-postgres | brew-client) echo postgresql@17 ;;
		apt-python | dnf-python) echo python3-psycopg2 ;;
		apk-python) echo py3-psycopg2 ;;
		apt-cc) printf 'gcc\nlibc6-dev\n' ;;
		dnf-cc) printf 'gcc\nglibc-devel\n' ;;
		apk-cc) printf 'gcc\nmusl-dev\n' ;;
		brew-cc | brew-make) ;; # Apple's
		*) echo "$program" ;;
		esac
	done | sort -u | paste -s -d ' ' -
}

apt() {
	DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=120 "$@" </dev/null >>"$log" 2>&1
}

install_by_apt() {
	mkdir -p /etc/postgresql-common
	if ! grep -qs '^create_main_cluster = false' /etc/postgresql-common/createcluster.conf; then
		echo 'create_main_cluster = false' >>/etc/postgresql-common/createcluster.conf
	fi
	# Packages run policy-rc.d before they start a service; its status 101 forbids that.
	if [ ! -e /usr/sbin/policy-rc.d ]; then
		trap 'rm -f "$log" /usr/sbin/policy-rc.d' EXIT
		printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
		chmod 755 /usr/sbin/policy-rc.d
	fi
	apt update || true # the package lists at hand may suffice
	# One after the other if all at once fails: a release may lack one of them.
	# shellcheck disable=SC2086 # names of packages hold no blanks
	apt install -y --no-install-recommends $1 || for package in $1; do
		apt install -y --no-install-recommends "$package" || true
	done
	for service in pgbouncer prometheus; do
		case $1 in
		*$service*) [ ! -d /run/systemd/system ] || systemctl --quiet disable $service >>"$log" 2>&1 || true ;;
		esac
	done
}

for program in "$@"; do
	case $program in
	postgres | client | pgbouncer | locales | tmux | chromium | prometheus | python | cc | make) ;;
	*) usage ;;
	esac
done
[ $# -gt 0 ] || set -- postgres client pgbouncer locales tmux cc make
look "$@"
[ -n "$missing" ] || exit 0

begin=$(date +%s)
log=$(mktemp)
trap 'rm -f "$log"' EXIT
trap 'exit 130' INT TERM
# shellcheck disable=SC2086 # words, one each
{
	say "missing: $(describe $missing)"
	if command -v apt-get >/dev/null; then
		wanted=$(packages apt $missing)
		if [ "$(id -u)" = 0 ]; then
			say "installing by apt-get: $wanted"
			install_by_apt "$wanted"
			command="apt-get install --no-install-recommends $wanted"
		else
			command="sudo $0$missing"
		fi
	elif command -v brew >/dev/null; then
		wanted=$(packages brew $missing)
		command=
		if [ -n "$wanted" ]; then
			say "installing by brew: $wanted"
			brew install $wanted </dev/null >"$log" 2>&1 || true
			command="brew install $wanted"
		fi
		{ have cc && have make; } || command="$command${command:+ && }xcode-select --install"
	elif command -v dnf >/dev/null; then
		command="sudo dnf install $(packages dnf $missing)"
	elif command -v apk >/dev/null; then
		command="apk add $(packages apk $missing)"
	else
		command="the command of this system that installs packages"
	fi
	look "$@"
}
if [ -z "$missing" ]; then
	say "installed in $(($(date +%s) - begin)) s"
	exit 0
fi
if [ -s "$log" ]; then
	tail -n 5 "$log" | sed 's/^/setup: | /'
	# shellcheck disable=SC2086 # words, one each
	say "still missing: $(describe $missing)"
fi
say "run this, or go on without: $command"
exit 69
