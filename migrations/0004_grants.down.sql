DROP FUNCTION record_action, resize_permits, upgrade_permits, keep_permits, await_guards, release_permits, share_grant, wake_for_room CASCADE;
DROP VIEW locks_held CASCADE;
DROP TABLE operator_actions CASCADE;
CREATE OR REPLACE FUNCTION pglock_schema_version() RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT 3';
