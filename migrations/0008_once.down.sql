-- Removes all idempotency keys and their results.
DROP FUNCTION once_claim CASCADE;
DROP VIEW once_started CASCADE;
DROP TABLE once_keys CASCADE;
CREATE OR REPLACE FUNCTION pglock_schema_version() RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT 7';
