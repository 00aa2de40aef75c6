#!/bin/sh
# Runs a command, such as `go test ./...`. At the end it prints one line with the tests that were left out because
# this machine lacks a tool: how many, which, and the tool. The go command hides them where the package passes. The
# exit status is the command's.
#
# usage: skipped.sh COMMAND [ARGUMENT...]
set -u

PGLOCK_TEST_SKIPPED=$(mktemp) || exit
export PGLOCK_TEST_SKIPPED
trap 'rm -f "$PGLOCK_TEST_SKIPPED"' EXIT
trap 'exit 130' INT TERM
"$@"
status=$?
# Each line has a tool, a tab and a test.
sort -u "$PGLOCK_TEST_SKIPPED" | awk -F '\t' '
	!seen[$2]++ { total++ }
	$1 != tool { tool = $1; text = text (text ? "; " : "") "without " tool ": "; between = "" }
	{ text = text between $2; between = ", " }
	END { if (total) printf "LEFT OUT: %d test%s, %s\n", total, (total > 1 ? "s" : ""), text }'
exit $status
