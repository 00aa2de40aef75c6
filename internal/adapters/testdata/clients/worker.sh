#!/usr/bin/env bash
# The command that pglock.sh runs in a test: it understands the lines that worker.py does.
echo "held $PGLOCK_TOKEN"
while read -r line && [ "$line" != end ]; do
	echo checked
	read -r _
	if answer=$(psql -XAtq -v ON_ERROR_STOP=1 -v VERBOSITY=sqlstate -v name="$PGLOCK_NAME" -v token="$PGLOCK_TOKEN" 2>&1 <<-'END'
		BEGIN;
		SELECT pglock.guard(:'name', :token) \g /dev/null
		INSERT INTO writes VALUES (:'name', :token);
		COMMIT;
	END
	); then
		echo written
	else
		echo "refused ${answer##* }"
	fi
done
