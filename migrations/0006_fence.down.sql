DROP FUNCTION fence_truncate_rows, fence_truncate, fence_attached, fence_moved, fence_changed, fence_stamp, fence_rows, judge_rows, bound_grants,
    judging_query, unbound_query, raise_unfit, lock_name_expression, raise_unfenced CASCADE;
CREATE OR REPLACE FUNCTION pglock_schema_version() RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT 5';
