-- Removes the functions that grant, and what other roles have built on them.
DROP FUNCTION acquire_slots, create_free, share_grant, wake_for_room, add_room, free_expired_permits, by_index, commit_durably CASCADE;
DROP VIEW locks_held CASCADE;
CREATE OR REPLACE FUNCTION pglock_schema_version() RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT 2';
