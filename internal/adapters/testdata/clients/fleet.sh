#!/usr/bin/env bash
# A worker in shell of a mixed fleet, which takes turns at two locks until it is killed.
#
# usage: fleet.sh PGLOCK.SH WORKER MODE, or fleet.sh turn WORKER for one turn under the lock
worker=$2
if [ "$1" = turn ]; then
	read -r began _ </proc/uptime
	for ((i = RANDOM % 3; i >= 0; i--)); do
		read -r seen _ </proc/uptime
		# The first number is rounded down.
		psql -XAtq -v ON_ERROR_STOP=1 -v name="$PGLOCK_NAME" -v token="$PGLOCK_TOKEN" -v worker="$worker" -v began="$began" -v seen="$seen" <<-END || exit
			INSERT INTO intervals VALUES (:'name', :token, :'worker', 'shell', :began + 0.01, greatest(:seen, :began + 0.01))
				ON CONFLICT (name, token, worker, began) DO UPDATE SET seen = excluded.seen;
			BEGIN;
			${GUARD-SELECT pglock.guard(:'name', :token) \\g /dev/null}
			SELECT balance FROM accounts WHERE name = :'name' \\gset
			SELECT pg_sleep(random() * 0.05) \\g /dev/null
			UPDATE accounts SET balance = :balance + 1 WHERE name = :'name';
			INSERT INTO entries (name, token, kind) VALUES (:'name', :token, 'shell');
			COMMIT;
		END
	done
	exit
fi
while :; do
	name=$([ $((RANDOM % 2)) = 0 ] && echo a || echo b)
	if [ "$3" = unlocked ]; then
		GUARD='' PGLOCK_NAME=$name PGLOCK_TOKEN=0 bash "$0" turn "$worker"
	else
		bash -c 'echo "pid $$"; exec bash "$@"' bash "$1" "$name" bash "$0" turn "$worker"
	fi
done
