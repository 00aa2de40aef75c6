-- Removes the functions and marks of fencing, and what other roles have built on them.
DROP TRIGGER refuse_jump ON distributed_locks;
DROP FUNCTION grant_user(text), grant_writer(text), require_right(boolean, text), refuse_jump(), advance(text, bigint), require_bound(text, bigint), bind(text, bigint),
    guard(text, bigint), check_fence(text, bigint), idle_limit(bigint), require_fence(text, bigint), raise_stale(text, bigint, bigint),
    fencing_seal(bytea, text), high_water_limit() CASCADE;
DROP TABLE fencing_high_water, fencing_secret CASCADE;
CREATE OR REPLACE FUNCTION pglock_schema_version() RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT 1';
