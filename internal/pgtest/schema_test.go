package pgtest_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/internal/pgtest"
)

// A schema whose rows alone have changed, by the owner or another role, is empty in the next test. Any other change keeps it from
// being handed on.
func TestSchemaIsGivenToTheNextTest(t *testing.T) { // alone: no other test may take the schemas
	pool := pgtest.Pool(t)
	use := func(t *testing.T, change string) string {
		t.Helper()
		var name string
		t.Run("use", func(t *testing.T) {
			name = pgtest.Schema(t, pool)
			pgtest.UserPool(t, pool, name) // its role is dropped before the schema is looked at
			quoted := pgx.Identifier{name}.Sanitize()
			var rows int
			var drawn bool
			err := pool.QueryRow(t.Context(), fmt.Sprintf("SELECT (SELECT count(*) FROM %s.once_keys), is_called FROM %[1]s.fencing_tokens", quoted)).Scan(&rows, &drawn)
			if err != nil || rows != 0 || drawn {
				t.Errorf("%d rows, a token drawn: %t, %v: want an empty schema", rows, drawn, err)
			}
			if _, err := pool.Exec(t.Context(), strings.ReplaceAll(change, "SCHEMA", quoted), pgx.QueryExecModeSimpleProtocol); err != nil {
				t.Error(err)
			}
		})
		return name
	}
	for _, test := range []struct {
		change string
		again  bool
	}{
		{``, true},
		{`INSERT INTO SCHEMA.once_keys (key, fingerprint, state, token, created_at, started_at) SELECT 'k', sha256(''), 'started', SCHEMA.next_fencing_token(), now(), now()`, true},
		{`CREATE TABLE SCHEMA.accounts ()`, false},
		{`GRANT SELECT ON SCHEMA.distributed_locks TO PUBLIC`, false},
		{`GRANT EXECUTE ON FUNCTION SCHEMA.next_fencing_token() TO PUBLIC`, false},
		{`ALTER TABLE SCHEMA.lock_waiters ADD CHECK (false) NOT VALID`, false},
		{`ALTER TABLE SCHEMA.lock_waiters ALTER name SET STATISTICS 1`, false},
		{`ALTER SEQUENCE SCHEMA.fencing_tokens CACHE 2`, false},
		{`ANALYZE SCHEMA.pglock_migrations`, false},
		{`CREATE OR REPLACE FUNCTION SCHEMA.next_fencing_token() RETURNS bigint LANGUAGE sql AS 'SELECT 1::bigint'`, false},
		{`UPDATE SCHEMA.fencing_secret SET secret = 'known'`, false},
		{`DROP VIEW SCHEMA.locks_held`, false},
	} {
		first := use(t, test.change)
		var left bool
		if err := pool.QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)", first).Scan(&left); err != nil {
			t.Fatal(err)
		}
		if second := use(t, ""); left != test.again || (first == second) != test.again {
			t.Errorf("after %q: schema %q, left: %t, then %q: handed on: want %t", test.change, first, left, second, test.again)
		}
	}
}
