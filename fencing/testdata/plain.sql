-- Fencing from any language, in plain SQL: the statements of doc.go, as a session of psql.
-- The variables name and token are those of the current grant; old is the token of an earlier one.
\set ON_ERROR_STOP on
\pset format unaligned
\pset tuples_only on

-- 1. A token column that the writer compares itself. No row: a newer grant has written.
CREATE TABLE reports (id int PRIMARY KEY, body text, fence_token bigint NOT NULL DEFAULT 0);
INSERT INTO reports VALUES (1, '');
UPDATE reports SET body = 'new', fence_token = :token WHERE id = 1 AND fence_token <= :token RETURNING 'compared ' || body;
UPDATE reports SET body = 'old', fence_token = :old WHERE id = 1 AND fence_token <= :old RETURNING 'must not be seen';
INSERT INTO reports VALUES (1, 'old', :old)
    ON CONFLICT (id) DO UPDATE SET body = excluded.body, fence_token = excluded.fence_token
    WHERE reports.fence_token <= excluded.fence_token RETURNING 'must not be seen';
SELECT 'report ' || body FROM reports;

-- 2. The guard, in the writer's transaction: it fails with SQLSTATE PGL01 if the grant is not
-- current, and keeps it current until the end of the transaction.
BEGIN;
SELECT 'guarded' FROM pglock.guard(:'name', :token);
COMMIT;
\set ON_ERROR_STOP off
BEGIN;
SELECT 'must not be seen' FROM pglock.guard(:'name', :old);
\echo stale :LAST_ERROR_SQLSTATE
ROLLBACK;

-- 3. A protected table: bind instead of guard, and write as if there were no locks.
SELECT 'protected' FROM pglock.protect('reports');
UPDATE reports SET body = 'unfenced';
\echo unfenced :LAST_ERROR_SQLSTATE
BEGIN;
SELECT 'bound' FROM pglock.bind(:'name', :token);
UPDATE reports SET body = 'bound';
COMMIT;
SELECT 'report ' || body FROM reports;
SELECT 'listed ' || protected FROM pglock.protected_tables WHERE protected = 'reports'::regclass;
SELECT 'unprotected' FROM pglock.unprotect('reports');

-- 4. A mark, for something without a token column.
SELECT 'advanced' FROM pglock.advance('file:/reports/1', :token);
SELECT 'must not be seen' FROM pglock.advance('file:/reports/1', :old);
\echo behind :LAST_ERROR_SQLSTATE
