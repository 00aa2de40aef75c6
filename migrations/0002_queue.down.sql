DROP FUNCTION leave_queue, head_weight, head_is_silent, queue, wake_each, wake_next CASCADE;
DROP VIEW locks_waiting CASCADE;
CREATE OR REPLACE FUNCTION pglock_schema_version() RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT 1';
