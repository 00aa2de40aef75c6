#!/bin/sh
# Makes the pictures of `pglock top` and `pglock ui` in docs/pictures from a scripted run: a server, some processes
# that hold locks and wait, and the real programs. It needs tmux, aha and chromium, and is called by `make pictures`.
set -eu

for tool in tmux aha chromium psql; do
	command -v "$tool" >/dev/null || { echo "pictures: missing: $tool" >&2; exit 69; }
done
out=docs/pictures
work=$(mktemp -d)
mkdir -p "$out"
go build -o "$work/pglock" ./pglock/cmd/pglock
# Of the server that internal/testserver/run has started.
PGLOCK_DATABASE_URL=$(printf '%s' "$PGLOCK_TESTSERVER_SHARED" | sed 's/.*"URL":"\([^"]*\)".*/\1/')
PGLOCK_SCHEMA=pictures
TERM=xterm-256color
export PGLOCK_DATABASE_URL PGLOCK_SCHEMA TERM
unset NO_COLOR
pglock=$work/pglock
screen="tmux -S $work/tmux -f /dev/null"
processes=

finish() {
	$screen kill-server 2>/dev/null || true
	# shellcheck disable=SC2086 # a list
	kill $processes 2>/dev/null || true
	wait 2>/dev/null || true
	psql -q "$PGLOCK_DATABASE_URL" -c "ALTER SYSTEM RESET fsync" -c "ALTER SYSTEM RESET full_page_writes" -c "DROP SCHEMA \"$PGLOCK_SCHEMA\" CASCADE" >/dev/null 2>&1 || true
	rm -rf "$work"
}
trap finish EXIT

start() {
	"$pglock" "$@" >/dev/null 2>&1 &
	processes="$processes $!"
}

sql() { psql -q "$PGLOCK_DATABASE_URL" -c "SET search_path = \"$PGLOCK_SCHEMA\"" -c "$1" >/dev/null; }

# As a server is configured that needs no attention.
psql -q "$PGLOCK_DATABASE_URL" -c "ALTER SYSTEM SET fsync = on" -c "ALTER SYSTEM SET full_page_writes = on" -c "SELECT pg_reload_conf()" >/dev/null
"$pglock" migrate up >/dev/null
start run --holder api-1 --label team=payments account:17 -- sleep 600
start run --holder api-2 --label team=payments account:44 -- sleep 600
start run --holder etl-1 --label team=data --ttl 60s 'exports/eu-west' -- sleep 600
start run --holder api-3 --label team=billing invoice:2026-11 -- sleep 600
start run --holder deploy-7 --ttl 5m migrations -- sleep 600
start lead --holder scheduler-1 --payload 10.0.0.7:8080 scheduler -- sleep 600
for i in 1 2 3; do start run --holder "mailer-$i" --permits 3 smtp -- sleep 600; done
"$pglock" run --tick 1h hourly-rollup -- true
start run --tick 1h --holder report-1 nightly-report -- sleep 600
sleep 2
for i in 4 5 6; do start run --holder "api-$i" account:17 -- true; done
start run --holder api-1 invoice:2026-11 -- true # which waits with what it holds
start run --holder mailer-4 --permits 3 smtp -- true
start lead --holder scheduler-2 --payload 10.0.0.8:8080 scheduler -- sleep 600
sql "INSERT INTO once_keys (key, fingerprint, state, token, holder, created_at, started_at)
	VALUES ('charge:8812', sha256('x'), 'started', next_fencing_token(), 'api-9', now() - interval '26 min', now() - interval '26 min')"
sleep 3

# shot SIZE FILE SOURCE makes a picture of a page.
shot() {
	timeout 60 chromium --headless --no-sandbox --user-data-dir="$work/profile" --disable-gpu --hide-scrollbars --force-device-scale-factor=2 --window-size="$1" \
		--timeout=3000 ${4:+"$4"} --screenshot="$out/$2" "$3" >/dev/null 2>&1
	echo "pictures: $out/$2"
}

$screen new-session -d -x 110 -y 18 -s t "$pglock top --every 1s --screen held"
sleep 12 # some reads, and some renewals
$screen send-keys -t t Down
sleep 1
# shellcheck disable=SC2016 # no command but a style
{
	echo '<style>body{margin:0;background:#16181d;color:#d8dee9}pre{font:14px/1.35 "DejaVu Sans Mono",monospace;margin:14px;color:#d8dee9}</style>'
	$screen capture-pane -e -N -p -t t | sed 's/\x1b\[7m\x1b\[39m/\x1b[7m/g' | aha --no-header --black
} >"$work/top.html"
sed -i 's/^/<pre>/;1!s/^<pre>//' "$work/top.html"
shot 970,380 top.png "file://$work/top.html"

sql "UPDATE lock_waiters SET since = now() - interval '9 min' WHERE name = 'account:17'"
"$pglock" ask exports/eu-west --reason "the disk is full" >/dev/null
"$pglock" release migrations --force --reason "its host is gone" >/dev/null
"$pglock" ui --addr 127.0.0.1:0 --access revoke >"$work/address" 2>/dev/null &
processes="$processes $!"
until [ -s "$work/address" ]; do sleep 0.1; done
page=$(cat "$work/address")
shot 1180,900 ui.png "$page/"
shot 1180,900 ui-dark.png "$page/" --blink-settings=preferredColorScheme=0
shot 400,1300 ui-phone.png "$page/"
