#!/bin/sh
# A migration runner as many services have one: applies each numbered SQL file of a directory
# that is newer than the recorded version, each with its record in one transaction.
#
#   pglock run migrations -- ./migrate.sh directory
#
# The database is the one that psql finds: PGHOST and so on, or PGSERVICE.
# It has no lock of its own: two at once apply the same file twice.
set -eu

sql() { psql --no-psqlrc --quiet --tuples-only --no-align --set=ON_ERROR_STOP=1 "$@"; }

sql --command='CREATE TABLE IF NOT EXISTS app_version (version int NOT NULL)'
version=$(sql --command='SELECT coalesce(max(version), 0) FROM app_version')
for file in "$1"/*.sql; do
  number=$(basename "$file" | sed 's/^0*\([0-9]*\).*/\1/')
  [ "$number" -gt "$version" ] || continue
  sql --single-transaction --file="$file" --command="INSERT INTO app_version VALUES ($number)" >/dev/null
  echo "applied $number"
done
