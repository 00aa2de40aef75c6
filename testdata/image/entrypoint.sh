#!/bin/sh
# Entry point of the image that build.sh makes. It understands the official image's variables as far as tests need
# them:
#
#   POSTGRES_PASSWORD  of the superuser; needed on the first start
#   POSTGRES_USER      the superuser's name, postgres without it
#   POSTGRES_DB        a database to create, called like the user without it
#
# Arguments go to the server: "postgres -c fsync=off", or just "-c fsync=off". Any other command runs as it is.
set -eu

PGDATA=${PGDATA:-/var/lib/postgresql/data}
TZ=${TZ:-UTC} # without it initdb may compare every time zone there is, which takes seconds
export PGDATA TZ

# initialize makes the cluster. It isn't synced to disk: what this image is for throws its data away.
initialize() {
	user=${POSTGRES_USER:-postgres}
	name=${POSTGRES_DB:-$user}
	if [ -z "${POSTGRES_PASSWORD:-}" ]; then
		echo "entrypoint: POSTGRES_PASSWORD must be set for the first start" >&2
		exit 1
	fi
	password_file=$(mktemp)
	printf '%s\n' "$POSTGRES_PASSWORD" >"$password_file"
	initdb --no-sync --auth=scram-sha-256 --pwfile="$password_file" --username="$user" --encoding=UTF8 --locale=C.UTF-8
	rm -f "$password_file"
	echo "listen_addresses = '*'" >>"$PGDATA/postgresql.conf"
	echo "host all all all scram-sha-256" >>"$PGDATA/pg_hba.conf"
	if [ "$name" != postgres ]; then
		quoted=$(printf '%s' "$name" | sed 's/"/""/g')
		printf 'CREATE DATABASE "%s"\n' "$quoted" | postgres --single -F -D "$PGDATA" postgres >/dev/null
	fi
}

case ${1:-} in
'' | -*) set -- postgres "$@" ;;
postgres) ;;
*) exec "$@" ;;
esac

# The server refuses root. This script starts again as the user whom it accepts.
if [ "$(id -u)" = 0 ]; then
	mkdir -p "$PGDATA"
	chown postgres:postgres "$PGDATA"
	chmod 700 "$PGDATA"
	exec setpriv --reuid=postgres --regid=postgres --clear-groups "$0" "$@"
fi

if [ ! -s "$PGDATA/PG_VERSION" ]; then
	initialize
fi
unset POSTGRES_PASSWORD
exec "$@"
