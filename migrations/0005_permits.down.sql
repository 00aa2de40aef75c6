-- Removes the statements of semaphores and readers-writer locks.
DROP FUNCTION resize_permits(text, integer, boolean), release_permits(text, bigint, boolean), acquire_permits(text, integer, integer, uuid, text, jsonb, bigint, bigint, boolean),
    free_expired_permits(text), commit_durably(), fits_since(text, bigint, integer, integer, timestamptz), permits_fit(text, bigint, integer) CASCADE;
CREATE OR REPLACE FUNCTION pglock_schema_version() RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT 4';
