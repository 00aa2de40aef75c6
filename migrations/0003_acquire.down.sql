DROP FUNCTION acquire_slots, judge_slots, wake_opened, grant_slots, lock_gates, change_ticket, judge_slot, check_slots, create_free, add_room, free_expired_permits, by_index CASCADE;
DROP TYPE verdict, slot CASCADE;
CREATE OR REPLACE FUNCTION pglock_schema_version() RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT 2';
