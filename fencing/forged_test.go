package fencing_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/schema"
)

// settings returns the names of the settings that a transaction's grants are kept in.
func settings(g fixture) map[string]string {
	g.t.Helper()
	var source string // without replacing "pglock." in what is looked for
	if err := g.pool.QueryRow(g.t.Context(), "SELECT string_agg(prosrc, ' ') FROM pg_proc WHERE pronamespace = $1::text::regnamespace", schema.Quote(g.schema)).Scan(&source); err != nil {
		g.t.Fatal(err)
	}
	_, suffix, found := strings.Cut(source, "'pglock.grants_")
	if !found {
		g.t.Fatal("no setting holds the grants")
	}
	suffix, _, _ = strings.Cut(suffix, "'")
	names := map[string]string{}
	for _, key := range []string{"grants", "token", "stamp"} {
		names[key] = "pglock." + key + "_" + suffix
	}
	return names
}

// forge returns an expression that is never empty and sets what a holder's transaction has, as well as
// an attacker can tell: a lock's name, a token, and a seal that it must guess.
func (g fixture) forge(name string, token fencing.Token) string {
	g.t.Helper()
	names := settings(g)
	grants := sprintf(`%s{"lock": "%s", "grants": {"%[2]s": %d}}`, strings.Repeat("0", 64), name, token)
	return sprintf("concat(set_config('%s', '%s', true), set_config('%s', '%d', true), set_config('%s', '%d', true))",
		names["grants"], grants, names["token"], token, names["stamp"], token)
}

// clear returns an expression that takes all settings away.
func (g fixture) clear() string {
	g.t.Helper()
	var all []string
	for _, name := range settings(g) {
		all = append(all, sprintf("set_config('%s', '', true)", name))
	}
	return "concat(" + strings.Join(all, ", ") + ", 'x')"
}

// run carries statements out in one transaction and commits unless one fails. Unlike commit it sends
// them as they are.
func (g fixture) run(pool *pgxpool.Pool, statements ...string) error {
	g.t.Helper()
	return g.runAt(pool, pgx.ReadCommitted, statements...)
}

func (g fixture) runAt(pool *pgxpool.Pool, level pgx.TxIsoLevel, statements ...string) error {
	g.t.Helper()
	return g.send(g.beginOn(pool, pgx.TxOptions{IsoLevel: level}), statements...)
}

// send carries statements out as they are, and commits unless one fails.
func (g fixture) send(tx pgx.Tx, statements ...string) error {
	g.t.Helper()
	defer func() { _ = tx.Rollback(context.Background()) }()
	for _, s := range statements {
		if _, err := tx.Exec(g.t.Context(), s); err != nil {
			return fencing.Explain(err)
		}
	}
	return fencing.Explain(tx.Commit(g.t.Context()))
}

// bindSQL is the statement that binds a fence, from any language.
func (g fixture) bindSQL(f fencing.Fence) string {
	return sprintf("SELECT %s.bind(%s, %d)", schema.Quote(g.schema), literal(f.Name), f.Token)
}

// refused fails the test unless err is a refusal: stale, unfenced, another lock's, or no right.
func refused(t *testing.T, what string, err error) {
	t.Helper()
	var pg *pgconn.PgError
	if errors.Is(err, fencing.ErrStale) || errors.Is(err, fencing.ErrUnfenced) || errors.Is(err, fencing.ErrOtherLock) ||
		errors.As(err, &pg) && (pg.Code == "42501" || pg.Code == "40001") {
		return
	}
	t.Errorf("%s: %v, want a refusal", what, err)
}

// reset gives the table one row: 1, 0 and that token.
func (g fixture) reset(table string, token fencing.Token) {
	g.t.Helper()
	g.sql("SET session_replication_role = replica; DELETE FROM " + table + sprintf("; INSERT INTO %s (id, v, fence_token) VALUES (1, 0, %d); RESET session_replication_role", table, token))
}

// huge is a token that would lock out every later holder.
const huge = 9_000_000_000_000_000_000

// TestP51_AttackByExpressions: what a statement changes while it runs is of no use to it. The attackers
// are a role that may write the table and nothing else, one with USAGE on the schema of the locks, a
// holder of another lock, and a user of the locks.
func TestP51_AttackByExpressions(t *testing.T) {
	t.Parallel()
	g := newFixture(t)
	outsider, looker, user := g.role("outsider"), g.role("looker"), pgtest.UserPool(t, g.pool, g.schema)
	g.sql("GRANT USAGE ON SCHEMA " + schema.Quote(g.schema) + " TO " + schema.Quote(pgtest.RoleOf(looker)))
	other := g.grant("other", time.Hour)
	current := g.grant("n1", time.Hour)
	attackers := map[string]struct {
		pool *pgxpool.Pool
		own  []string // statements before the attack
	}{
		"a role with rights on the table": {outsider, nil},
		"a role with USAGE":               {looker, nil},
		"a writer without a grant":        {g.writer, nil},
		"a holder of another lock":        {g.writer, []string{g.bindSQL(other)}},
		"a user with another lock":        {user, []string{g.bindSQL(other)}},
	}
	for kind, opts := range map[string][]fencing.Option{"any lock": nil, "named": {fencing.NamedBy("n{id}")}, "permissive": {fencing.Permissive()}} {
		table := g.elsewhereUnprotected("t " + kind)
		for _, a := range attackers {
			g.sql("GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON " + table + " TO " + schema.Quote(pgtest.RoleOf(a.pool)))
		}
		g.protect(table, opts...)
		statements := map[string]string{
			"UPDATE":            "UPDATE %[1]s SET v = 666 WHERE %[2]s <> ''",
			"UPDATE, assigned":  "UPDATE %[1]s SET v = length(%[2]s)",
			"UPDATE, returning": "UPDATE %[1]s SET v = 666 RETURNING %[2]s",
			"DELETE":            "DELETE FROM %[1]s WHERE %[2]s <> ''",
			"INSERT":            "INSERT INTO %[1]s (id, v) SELECT 2, length(%[2]s)",
			"ON CONFLICT":       "INSERT INTO %[1]s (id, v) VALUES (1, 1) ON CONFLICT (id) DO UPDATE SET v = 666 WHERE %[2]s <> ''",
			"restored":          "UPDATE %[1]s SET v = length(%[2]s) + length(%[3]s)",
			"a writing CTE":     "WITH w AS (UPDATE %[1]s SET v = 666 WHERE %[2]s <> '' RETURNING 1) SELECT %[3]s FROM w",
			"two writing CTEs":  "WITH a AS (SELECT %[2]s AS x), b AS (INSERT INTO %[1]s (id, v) SELECT 2, length(x) FROM a RETURNING 1) UPDATE %[1]s SET v = length(%[2]s)",
		}
		if g.serverVersion() >= mergeSince {
			statements["MERGE"] = "MERGE INTO %[1]s AS t USING (SELECT 1 AS id, %[2]s AS x) AS s ON s.id = t.id WHEN MATCHED AND s.x <> '' THEN UPDATE SET v = 666 WHEN NOT MATCHED THEN INSERT (id, v) VALUES (1, 1)"
		}
		for who, a := range attackers {
			if kind == "permissive" && len(a.own) == 0 {
				continue // writes as it likes; TestPermissiveTokens has what it may not do
			}
			for what, statement := range statements {
				if kind == "permissive" && strings.Contains(statement, "%[3]s") {
					continue // without a grant in the end, which is allowed
				}
				for _, token := range []fencing.Token{current.Token, huge} {
					name := map[bool]string{true: "n2", false: "n1"}[strings.HasPrefix(what, "INSERT")]
					g.reset(table, current.Token)
					before := g.dump(table)
					err := g.run(a.pool, append(a.own, sprintf(statement, table, g.forge(name, token), g.clear()))...)
					refused(t, sprintf("%s: %s: %s with the token %d", kind, who, what, token), err)
					if after := g.dump(table); after != before {
						t.Errorf("%s: %s: %s left %s, before it was %s", kind, who, what, after, before)
					}
				}
			}
			// COPY evaluates its WHERE for each row.
			g.reset(table, current.Token)
			before := g.dump(table)
			tx := g.beginOn(a.pool, pgx.TxOptions{})
			for _, s := range a.own {
				if _, err := tx.Exec(t.Context(), s); err != nil {
					t.Fatal(err)
				}
			}
			_, err := tx.Conn().PgConn().CopyFrom(t.Context(), strings.NewReader("2\t0\n"), "COPY "+table+" (id, v) FROM STDIN WHERE "+g.forge("n2", huge)+" <> ''")
			refused(t, sprintf("%s: %s: COPY", kind, who), fencing.Explain(err))
			if err := tx.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
			if after := g.dump(table); after != before {
				t.Errorf("%s: %s: COPY left %s", kind, who, after)
			}
		}
		g.reset(table, other.Token)
		want(t, kind+": control: the holder's write", g.as(current, "UPDATE "+table+" SET v = 1"), nil)
		g.holds(table, "(1,1,%d)", current.Token)
	}
}

// TestP51_AttackByForgedSettings sets the settings of bind before the statement. Grants that a
// transaction has bound itself stay valid.
func TestP51_AttackByForgedSettings(t *testing.T) {
	t.Parallel()
	g := newFixture(t)
	outsider := g.role("outsider")
	table := g.elsewhere("t")
	named := g.elsewhereUnprotected("named")
	g.protect(named, fencing.NamedBy("n{id}"))
	for _, tb := range []string{table, named} {
		g.sql("GRANT SELECT, INSERT, UPDATE, DELETE, TRUNCATE ON " + tb + " TO " + schema.Quote(pgtest.RoleOf(outsider)))
	}
	old, current := g.grant("n1", time.Hour), g.grant("n1", time.Hour)
	released := g.grant("n2", time.Hour)
	g.sql("UPDATE pglock.distributed_locks SET holder = NULL, expires_at = '-infinity', ended_at = clock_timestamp() WHERE name = 'n2'")
	expired := g.grant("n3", -time.Second)
	own := g.grant("n9", time.Hour)
	for name, forged := range map[string]fencing.Fence{
		"the current grant": current, "an old one": old, "a released one": released, "an expired one": expired,
		"made up": {Name: "n1", Token: huge}, "never": {Name: "never", Token: 1},
	} {
		for who, a := range map[string]struct {
			pool *pgxpool.Pool
			own  []string
		}{"a role with rights on the table": {outsider, nil}, "a holder of another lock": {g.writer, []string{g.bindSQL(own)}}} {
			for _, tb := range []string{table, named} {
				g.reset(tb, 0)
				id := map[string]int{"n1": 1, "n2": 2, "n3": 3, "never": 4}[forged.Name]
				for _, write := range []string{sprintf("INSERT INTO %s (id, v) VALUES (%d, 5) ON CONFLICT (id) DO UPDATE SET v = 5", tb, id), "TRUNCATE " + tb} {
					before := g.dump(tb)
					refused(t, sprintf("%s by %s: %s", name, who, write), g.run(a.pool, append(a.own, "SELECT "+g.forge(forged.Name, forged.Token), write)...))
					if after := g.dump(tb); after != before {
						t.Errorf("%s by %s: %s left %s", name, who, write, after)
					}
				}
			}
		}
	}
	if err := g.run(g.writer, sprintf("SELECT set_config('%s', 'junk', true)", settings(g)["grants"]), "INSERT INTO "+table+" VALUES (5)"); err == nil {
		t.Error("junk passed")
	}
	// bind does not seal what somebody else has set beside.
	err := g.run(g.writer, "SELECT "+g.forge("n1", current.Token), g.bindSQL(own), "INSERT INTO "+named+" (id, v) VALUES (1, 5) ON CONFLICT (id) DO UPDATE SET v = 5")
	want(t, "a forged grant beside one that is bound afterwards", err, fencing.ErrOtherLock)
	g.reset(named, 0)
	want(t, "control: bound afterwards", g.run(g.writer, "SELECT "+g.forge("n1", huge), g.bindSQL(current), "UPDATE "+named+" SET v = 6"), nil)
	g.holds(named, "(1,6,%d)", current.Token)
}

// sealed reads what a transaction has bound, as statements that set it again.
func (g fixture) sealed(tx pgx.Tx) []string {
	g.t.Helper()
	var all []string
	for _, key := range []string{"grants", "token"} {
		var value string
		name := settings(g)[key]
		if err := tx.QueryRow(g.t.Context(), "SELECT current_setting($1, true)", name).Scan(&value); err != nil {
			g.t.Fatal(err)
		}
		all = append(all, sprintf("SELECT set_config('%s', %s, true)", name, literal(value)))
	}
	return all
}

// TestAttackByReplay copies the settings of a transaction that has bound a grant into others.
func TestAttackByReplay(t *testing.T) {
	t.Parallel()
	g := newFixture(t)
	table := g.elsewhere("t")
	f := g.grant("n", time.Hour)
	write := "INSERT INTO " + table + " VALUES (1, 5)"
	tx := g.bound(f)
	copied := g.sealed(tx)
	refused(t, "in another session", g.run(g.writer, append(copied, write)...))
	want(t, "control: in the transaction itself", g.send(tx, append(copied, write)...), nil)
	g.holds(table, "(1,5,%d)", f.Token)

	conn, err := g.writer.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	begin := func() pgx.Tx {
		t.Helper()
		tx, err := conn.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return tx
	}
	tx = begin()
	want(t, "Bind", fencing.Bind(t.Context(), tx, f), nil)
	copied = g.sealed(tx)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	refused(t, "in the next transaction of the session", g.send(begin(), append(copied, "UPDATE "+table+" SET v = 6")...))
	for _, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead} {
		for what, meanwhile := range map[string]func(){
			"nobody":       func() {},
			"a takeover":   func() { g.grant("n", time.Hour) },
			"a late write": func() { want(t, "late", g.as(g.grant("n", time.Hour), "UPDATE "+table+" SET v = 7"), nil) },
		} {
			f := g.grant("n", time.Hour)
			tx := g.beginOn(g.writer, pgx.TxOptions{IsoLevel: level})
			inner, err := tx.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			want(t, "Bind", fencing.Bind(t.Context(), inner, f), nil)
			copied := g.sealed(inner)
			if err := inner.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
			meanwhile() // the savepoint has taken the row's lock along
			before := g.dump(table)
			err = g.send(tx, append(copied, "UPDATE "+table+" SET v = 8")...)
			if what == "nobody" { // the grant is still the current one
				want(t, "after a savepoint, "+what, err, nil)
				continue
			}
			refused(t, string(level)+": after a savepoint, "+what, err)
			if after := g.dump(table); after != before {
				t.Errorf("%s: after a savepoint, %s: the table has %s", level, what, after)
			}
		}
	}
}

// TestAWriteLocksItsGrantAgain: a write whose bind was undone with a savepoint keeps a takeover off
// until it is committed. The control is the same transaction without the write.
func TestAWriteLocksItsGrantAgain(t *testing.T) {
	t.Parallel()
	g := newFixture(t)
	table := g.elsewhere("t")
	f := g.grant("n", time.Hour)
	tx := g.begin()
	inner, err := tx.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want(t, "Bind", fencing.Bind(t.Context(), inner, f), nil)
	copied := g.sealed(inner)
	if err := inner.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	free := func() bool {
		return value[bool](g, "SELECT EXISTS (SELECT FROM pglock.distributed_locks WHERE name = 'n' FOR UPDATE SKIP LOCKED)")
	}
	if !free() {
		t.Error("control: the grant is still held after the savepoint")
	}
	for _, s := range append(copied, "INSERT INTO "+table+" VALUES (1, 5)") {
		if _, err := tx.Exec(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	if free() {
		t.Error("a takeover could come between the write and its commit")
	}
}

// TestPermissiveTokens: a role that may write a permissive table without a grant can't make tokens up,
// which would lock holders out, nor lower them. Its other writes pass.
func TestPermissiveTokens(t *testing.T) {
	t.Parallel()
	g := newFixture(t)
	outsider := g.role("outsider")
	for kind, how := range map[string]string{"plain": "", "partitioned": " PARTITION BY LIST (id)"} {
		table := g.elsewhereUnprotected("t")
		if how != "" {
			g.sql("DROP TABLE " + table + "; CREATE TABLE " + table + " (id int, v int)" + how + "; CREATE TABLE " + strings.Replace(table, `"t"`, "p", 1) + " PARTITION OF " + table + " DEFAULT")
			g.open(table)
		}
		g.sql("GRANT SELECT, INSERT, UPDATE, DELETE ON " + table + " TO " + schema.Quote(pgtest.RoleOf(outsider)))
		g.protect(table, fencing.Permissive())
		f := g.grant("n", time.Hour)
		for _, write := range []string{
			"UPDATE %[1]s SET v = length(%[2]s)",
			"UPDATE %[1]s SET v = length(%[2]s) + length(%[3]s)",
			"WITH w AS (UPDATE %[1]s SET v = length(%[2]s) RETURNING 1) SELECT %[3]s FROM w",
			"INSERT INTO %[1]s (id, v) SELECT 2, length(%[2]s) + length(%[3]s)",
			"INSERT INTO %[1]s (id, v) SELECT 2, length(%[2]s)",
		} {
			g.reset(table, f.Token)
			for _, token := range []fencing.Token{1, huge} {
				err := g.run(outsider, sprintf(write, table, g.forge("n", token), g.clear()))
				if value[int](g, sprintf("SELECT count(*) FROM %s WHERE fence_token NOT IN (0, %d)", table, f.Token)) != 0 {
					t.Errorf("%s: %s: %v, and the table has %s", kind, write, err, g.dump(table))
				}
			}
		}
		g.reset(table, f.Token)
		want(t, kind+": control: a write without a grant", g.run(outsider, "UPDATE "+table+" SET v = 5"), nil)
		g.holds(table, "(1,5,%d)", f.Token)
		want(t, kind+": control: the holder's write", g.as(f, "UPDATE "+table+" SET v = 6"), nil)
	}
}
