#!/usr/bin/env bash
# Runs a command under a lock, by the rules of docs/reference/sql-protocol.md, with psql alone.
#
# usage: pglock.sh NAME COMMAND [ARGUMENT...]
#
# It connects as psql does, by PGHOST and the like. PGLOCK_TTL is the TTL in whole seconds, at least
# 3, and 30 by default. The command finds PGLOCK_NAME and PGLOCK_TOKEN in its environment, for guard.
# If the lock is lost, the command and its children are killed, and the exit status is 137. It is 64
# after wrong use, 69 after an error of the database, and otherwise the command's.
set -u
[ $# -ge 2 ] || { sed -n '/^# usage:/s/^# //p' "$0" >&2; exit 64; }
export PGLOCK_NAME=$1 PGLOCK_TOKEN=
shift
[[ ${PGLOCK_TTL:=30} =~ ^[1-9][0-9]{0,8}$ && $PGLOCK_TTL -ge 3 ]] || # bash would run commands in it
	{ printf 'pglock.sh: PGLOCK_TTL: %q: must be whole seconds, at least 3\n' "$PGLOCK_TTL" >&2 && exit 64; }
main=$$ holder="$(uname -n) $$" ttl=$PGLOCK_TTL request='' client='' deadline=''
unanswered='' stopped='' job=''
margin=$((ttl < 50 ? ttl * 100 : 5000)) # milliseconds
span=$(printf '%d.%03d' $(((ttl * 1000 - margin) / 1000)) $(((ttl * 1000 - margin) % 1000)))

# call sends the statements of its standard input, each of which is a transaction, and sets $answer.
# It returns 1 if there is no answer and they may be repeated, and 2 after other errors: rule 9.
call() {
	answer=$({ echo 'SELECT pglock.check_client(4) \g /dev/null' && cat; } |
		timeout $((ttl / 3)) psql -XAtq -v ON_ERROR_STOP=1 -v VERBOSITY=sqlstate -v ttl="$ttl s" \
			-v name="$PGLOCK_NAME" -v token="$PGLOCK_TOKEN" -v holder="$holder" \
			-v client="$client" -v request="$request" 2>&1)
	local status=$?
	[[ $status != 3 || $answer =~ ERROR:\ +(08|40|53|57|25006|55P03) ]] || return 2
	return $((status > 0))
}

# attempt draws a ticket, or refreshes the one that it has, and tries to acquire the lock.
attempt() {
	call <<-'END'
		SELECT ticket FROM pglock.wait_ticket(:'name', :'client', :'holder') \gset
		SELECT 'granted', token FROM pglock.acquire(:'name', :'holder', :'ttl', '{}', :'request', :ticket) WHERE granted
	END
	case $?,$answer in
	0,*) unanswered='' ;;
	2,*PGL12*) request='' ;;
	2,*) echo "pglock.sh: $answer" >&2 && exit 69 ;;
	*) unanswered=1 ;;
	esac
	[[ $unanswered || ! $answer =~ granted\|([0-9]+) ]] || PGLOCK_TOKEN=${BASH_REMATCH[1]}
}

# renew renews the grant. It kills this group of processes if the lock is lost, or at the deadline,
# for which a timer starts before the call: rule 1. After an error the old timer counts: rule 3.
renew() {
	(trap '' INT TERM HUP && sleep "$span"; kill -KILL 0) &
	local timer=$! && disown
	if call <<<"SELECT 'renewed' FROM pglock.renew(:'name', :token, :'ttl')"; then
		[[ $answer == *renewed* ]] || kill -KILL 0
		[ -z "$deadline" ] || kill -KILL "$deadline"
		deadline=$timer
	else
		kill -KILL "$timer"
		return 1
	fi
}

# keep renews the grant while the script runs.
keep() {
	trap '' INT TERM HUP
	local pause=$((ttl / 3))
	while sleep "$pause"; do
		kill -0 "$main" 2>/dev/null || kill -KILL 0
		if renew; then pause=$((ttl / 3)); else pause=0.2; fi
	done
}

trap 'stopped=1; [ -z "$job" ] || kill -TERM -- "-$job"' INT TERM HUP
until [ "$PGLOCK_TOKEN$stopped" ]; do
	if [ "$request" ]; then
		attempt
	elif call <<<'SELECT gen_random_uuid()' && [[ $answer =~ [0-9a-f-]{36} ]]; then
		request=${BASH_REMATCH[0]} && client=sh_${request//-/} # rules 7 and 11
		continue
	fi
	[ "$PGLOCK_TOKEN$stopped" ] || sleep 0.5 # rule 12
done
status=130
[ -z "$unanswered" ] || attempt # the script was stopped: rule 8
if [ -z "$stopped" ]; then
	set -m # the job is a group of processes
	(
		until renew; do sleep 0.2; done # at once, because an older grant has less time: rule 2
		trap : INT TERM HUP
		keep &
		"$@"
	) &
	job=$!
	set +m
	until wait "$job"; status=$?; ! kill -0 "$job" 2>/dev/null; do :; done # a signal ends wait
	kill -KILL -- "-$job" 2>/dev/null # its timers
fi
for ((i = 0; i < ttl; i++)); do # rules 13 and 6
	call <<<$'SELECT pglock.leave(:\'name\', :\'client\') \\g /dev/null\nSELECT pglock.release(:\'name\', nullif(:\'token\', \'\')::bigint)' && break
	sleep 0.5
done
exit $status
