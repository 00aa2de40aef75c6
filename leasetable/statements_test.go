package leasetable_test

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/leasetable"
)

// TestEveryStatementPrepares has the server parse and plan each statement, in a
// schema whose name needs quoting or does not.
func TestEveryStatementPrepares(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	name := pgtest.Schema(t, pool)
	conn, err := pgx.Connect(t.Context(), pool.Config().ConnString())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	all := reflect.ValueOf(leasetable.Statements(name))
	for i := range all.NumField() {
		field := all.Type().Field(i).Name
		sql := all.Field(i).String()
		if sql == "" || strings.Contains(sql, "--") {
			t.Errorf("%s: rendered as %q", field, sql)
		}
		if _, err := conn.Prepare(t.Context(), fmt.Sprint("s", i), sql); err != nil {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// TestRenderQuotes: a schema's name can't break out of a statement.
func TestRenderQuotes(t *testing.T) {
	t.Parallel()
	got := schema.Render("-- a comment\nSELECT pglock.next_fencing_token() FROM pglock.t", `a"; DROP TABLE x; --`)
	if want := `SELECT "a""; DROP TABLE x; --".next_fencing_token() FROM "a""; DROP TABLE x; --".t`; got != want {
		t.Errorf("rendered %s", got)
	}
}

// TestEveryExecMode runs the protocol in each of pgx's ways to send a statement, some of
// which poolers in transaction mode ask for.
func TestEveryExecMode(t *testing.T) {
	t.Parallel()
	for _, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec,
		pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			pool := pgtest.Pool(t, func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = mode })
			c, err := leasetable.Open(t.Context(), pool, leasetable.WithSchema(pgtest.Schema(t, pool)))
			if err != nil {
				t.Fatal(err)
			}
			for range 2 { // a new row, then an old one
				l, err := c.Acquire(t.Context(), "n", leasetable.WithLabels(map[string]string{"k": `"v"`}))
				if err != nil {
					t.Fatal(err)
				}
				if _, err := c.TryAcquire(t.Context(), "n"); !errors.Is(err, leasetable.ErrNotAcquired) {
					t.Errorf("a second try: %v", err)
				}
				if err := l.Ensure(t.Context(), time.Minute); err != nil {
					t.Errorf("Ensure: %v", err)
				}
				if k, err := c.Get(t.Context(), "n"); err != nil || k.Token != l.Token() || k.Labels["k"] != `"v"` || k.Remaining < time.Minute {
					t.Errorf("Get: %+v, %v", k, err)
				}
				if err := l.Release(t.Context()); err != nil {
					t.Errorf("Release: %v", err)
				}
			}
			if _, err := c.Prune(t.Context(), 0); err != nil {
				t.Errorf("Prune: %v", err)
			}
			if err := c.Close(t.Context()); err != nil {
				t.Errorf("Close: %v", err)
			}
		})
	}
}
