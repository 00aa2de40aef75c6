DROP FUNCTION watch, leave, wait_ticket, release, renew, acquire, check_client, advisory_key CASCADE;
CREATE OR REPLACE FUNCTION pglock_schema_version() RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT 8';
