-- Unprotects all tables.
DO $unprotect$
DECLARE
    t regclass;
    f regprocedure;
BEGIN
    FOR t IN SELECT protected FROM protected_tables LOOP
        PERFORM unprotect(t);
    END LOOP;
    -- What tables left behind that were dropped while they were protected.
    FOR f IN SELECT oid FROM pg_proc WHERE pronamespace = quote_ident(current_schema())::regnamespace AND proname ~ '^fence_row_[0-9]+$' LOOP
        EXECUTE format('DROP FUNCTION %s', f);
    END LOOP;
END
$unprotect$;
DROP VIEW protected_tables;
DROP FUNCTION unprotect(regclass), protect(regclass, text, boolean, boolean, text), require_table(regclass),
    row_triggers(text, regclass, text, text, text), statement_triggers(regclass, text), drop_triggers(regclass, regprocedure[]),
    has_row_triggers(regclass),
    row_function(text, text, regclass, text, boolean, text, text), lock_name_expression(regclass, text, text),
    trigger_arguments(oid), fence_truncate(), fence_statement(), verify_grants(text, text);
DROP SEQUENCE fencing_protections;
-- grant_writer as 0002 has it.
CREATE OR REPLACE FUNCTION grant_writer(role_name text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('GRANT USAGE ON SCHEMA %I TO %I', current_schema(), role_name);
    EXECUTE format('GRANT EXECUTE ON FUNCTION check_fence(text, bigint), guard(text, bigint), bind(text, bigint), advance(text, bigint) TO %I', role_name);
    PERFORM require_right(has_function_privilege(role_name, 'bind(text, bigint)', 'EXECUTE'), role_name);
END
$$;
DO $pin$
BEGIN
    EXECUTE format('ALTER FUNCTION grant_writer(text) SET search_path = %I, pg_temp', current_schema());
END
$pin$;
CREATE OR REPLACE FUNCTION pglock_schema_version() RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT 2';
