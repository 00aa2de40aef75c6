-- Removes the table of nested waits and its functions: deadlocks are not found any more.
DROP FUNCTION nested_wait, end_nested_wait, find_deadlock, cycle_words, stuck_edges, wait_edges, wait_names CASCADE;
DROP TYPE wait_edge;
DROP TABLE nested_waits;
CREATE OR REPLACE FUNCTION pglock_schema_version() RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT 9';
