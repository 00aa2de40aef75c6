-- Deletes the rows of pglock's tables in a schema, except the ones that the migrations wrote, and
-- starts the tokens again. $1 is the schema's name. The lock timeout is for a statement that a test
-- gave up: the schema is dropped then, which waits longer.
SET lock_timeout = '200ms';
SELECT pg_catalog.set_config('pgtest.schema', $1, false);
DO $$
DECLARE
    schema constant text := pg_catalog.quote_ident(pg_catalog.current_setting('pgtest.schema'));
BEGIN
    EXECUTE 'TRUNCATE ' || (
        SELECT pg_catalog.string_agg(c.oid::pg_catalog.regclass::text, ', ')
        FROM pg_catalog.pg_class AS c
        WHERE c.relnamespace = schema::pg_catalog.regnamespace AND c.relkind = 'r'
          AND c.relname NOT IN ('pglock_migrations', 'fencing_secret'));
    EXECUTE 'ALTER SEQUENCE ' || schema || '.fencing_tokens RESTART';
END
$$;
