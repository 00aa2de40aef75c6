package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/pgtx"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/inspect"
	"github.com/pglock/pglock-go/pglock/once"
)

// TestActionsAreRecorded once each, if they were done, whatever kind of lock it is, with the role that did them.
func TestActionsAreRecorded(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	user := fixture{t, pgtest.UserPool(t, f.pool, f.schema), f.schema}
	c, operator := f.open(), user.open()
	l, reader := try(t, c, "n"), tried(t, c.Reader("rw"))
	for range 2 { // a repetition is one action
		must(t, operator.RequestRelease(t.Context(), "n", l.Token(), "deploy (by alice)"))
		must(t, operator.RequestRelease(t.Context(), "rw", reader.Token(), ""))
	}
	for range 2 {
		must(t, operator.Revoke(t.Context(), "rw", reader.Token(), "maintenance"))
	}
	fails(t, "a request to a grant that has ended", operator.RequestRelease(t.Context(), "rw", reader.Token(), "late"), pglock.ErrStale)
	fails(t, "a revocation of another grant", operator.Revoke(t.Context(), "n", reader.Token(), "wrong"), pglock.ErrStale)
	unknown := errors.New("no answer")
	_, err := once.Do(t.Context(), c, "k", nil, func(context.Context, *pglock.Lease) (int, error) { return 0, unknown })
	fails(t, "the effect", err, unknown)
	info, err := once.Get(t.Context(), user.pool, "k", once.WithSchema(f.schema))
	must(t, err)
	resolve := func(token pglock.Token) error {
		return once.Resolve(t.Context(), user.pool, "k", token, true, once.WithSchema(f.schema), once.WithReason("seen at the bank"))
	}
	fails(t, "an older attempt", resolve(info.Token-1), once.ErrInProgress)
	must(t, resolve(info.Token))
	for _, reason := range []string{"", "\x00", "\xff", strings.Repeat("x", 513)} {
		fails(t, "a reason", once.Resolve(t.Context(), user.pool, "k", 1, true, once.WithReason(reason)), pglock.ErrInvalidOption)
	}
	var got []string
	for _, a := range snapshot(t, c, inspect.Query{}).Actions {
		got = append(got, fmt.Sprintf("%s %s %d: %s", a.What, a.Name, a.Token, a.Reason))
		if a.Role != user.pool.Config().ConnConfig.User || a.At.IsZero() || a.Application == "" && a.Name != "k" {
			t.Errorf("%+v", a)
		}
	}
	want := []string{
		fmt.Sprintf("resolved: happened k %d: seen at the bank", info.Token), fmt.Sprintf("revoked rw %d: maintenance", reader.Token()),
		fmt.Sprintf("asked to release rw %d: ", reader.Token()), fmt.Sprintf("asked to release n %d: deploy (by alice)", l.Token()),
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	release(t, l)
	_ = reader.Release(context.Background()) // it is revoked
}

// TestAnActionOfAnotherRoleIsRecorded: a user can't keep the action of another role out of the record by recording
// it first, nor empty the record with the numbers of rows that it rolls back.
func TestAnActionOfAnotherRoleIsRecorded(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	user := fixture{t, pgtest.UserPool(t, f.pool, f.schema), f.schema}
	for _, role := range []fixture{user, f, user, f} {
		role.sql("SELECT pglock.record_action('revoked', 'n', 1, 'stuck')")
	}
	is(f, "roles", 2, "SELECT count(DISTINCT role)::int FROM pglock.operator_actions")
	tx := begin(t, user)
	run(t, tx, user.named("SELECT pglock.record_action('a', 'n', i, 'r') FROM generate_series(1, 1200) AS i"))
	must(t, tx.Rollback(t.Context()))
	user.sql("SELECT pglock.record_action('a', 'n', 1, 'r')")
	is(f, "rows", 3, "SELECT count(*)::int FROM pglock.operator_actions")
}

// TestTheRecordIsBounded: what a user records has its own role, is cut, and pushes the oldest out. It can
// neither write the table nor make the record wait. A writer can't record.
func TestTheRecordIsBounded(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	user := fixture{t, pgtest.UserPool(t, f.pool, f.schema), f.schema}
	const record = "SELECT pglock.record_action('a', 'n', i, 'r') FROM generate_series(%d, %d) AS i"
	user.sql(fmt.Sprintf(record, 1, 1000))
	tx := begin(t, user)
	run(t, tx, user.named(fmt.Sprintf(record, 1001, 1002))) // which deletes the oldest, and stays open
	user.sql(fmt.Sprintf(record, 1003, 1005))
	must(t, tx.Commit(t.Context()))
	user.sql("SELECT pglock.record_action(repeat('a', 2000000), 'n', NULL, repeat('ä', 2000000))")
	is(f, "rows", 1000, "SELECT count(*)::int FROM pglock.operator_actions")
	is(f, "the oldest", 7, "SELECT min(token)::int FROM pglock.operator_actions")
	if size := value[int](f, "SELECT max(octet_length(a::text))::int FROM pglock.operator_actions AS a"); size > 1500 {
		t.Errorf("%d bytes", size)
	}
	writer := pgtest.WriterPool(t, f.pool, f.schema)
	for what, refused := range map[string]func(string) error{
		"a user":   func(sql string) error { _, err := user.pool.Exec(t.Context(), f.named(sql)); return err },
		"a writer": func(sql string) error { _, err := writer.Exec(t.Context(), f.named(sql)); return err },
	} {
		for _, sql := range []string{
			"DELETE FROM pglock.operator_actions", "UPDATE pglock.operator_actions SET role = 'x'",
			"INSERT INTO pglock.operator_actions (at, role, application, action, name, reason) VALUES (now(), 'x', '', '', 'n', '')", "TRUNCATE pglock.operator_actions",
			"SELECT pglock.record_action('a', 'n', 1, 'r')",
		} {
			if err := refused(sql); pgtx.SQLState(err) != "42501" && (what == "a writer" || !strings.HasPrefix(sql, "SELECT")) {
				t.Errorf("%s: %s: %v", what, sql, err)
			}
		}
	}
}
