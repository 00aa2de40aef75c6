-- Removes the functions and marks of fencing.
DROP FUNCTION grant_user(text), grant_writer(text), require_right(boolean, text), advance(text, bigint), bind(text, bigint), guard(text, bigint),
    check_fence(text, bigint), idle_limit(bigint), require_fence(text, bigint), raise_stale(text, bigint, bigint);
DROP TABLE fencing_high_water;
CREATE OR REPLACE FUNCTION pglock_schema_version() RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT 1';
