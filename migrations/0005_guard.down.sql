DROP VIEW schedules CASCADE;
DROP FUNCTION trigger_job, job_state, grant_reader, revoke_role, grant_user, grant_writer, grant_on, advance, require_bound, bind, guard, check_fence, idle_limit, require_fence,
    raise_stale, unsealed, fencing_seal, high_water_limit CASCADE;
DROP TABLE scheduled_jobs, fencing_high_water, fencing_secret CASCADE;
CREATE OR REPLACE FUNCTION pglock_schema_version() RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT 4';
