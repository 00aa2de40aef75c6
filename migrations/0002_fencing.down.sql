-- Removes the functions and marks of fencing, and what other roles have built on them.
ALTER DOMAIN token_value DROP CONSTRAINT room_for_further_grants;
DROP FUNCTION pin_functions(text[], text), grant_user(text), grant_writer(text), require_right(boolean, text), grant_on(text, text, text, text[]), token_follows(bigint), advance(text, bigint), require_bound(text, bigint), bind(text, bigint),
    guard(text, bigint), check_fence(text, bigint), idle_limit(bigint), require_fence(text, bigint), raise_stale(text, bigint, bigint),
    fencing_seal(bytea, text), high_water_limit() CASCADE;
DROP TABLE fencing_high_water, fencing_secret CASCADE;
CREATE OR REPLACE FUNCTION pglock_schema_version() RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT 1';
