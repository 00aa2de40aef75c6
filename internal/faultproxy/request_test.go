package faultproxy_test

import (
	"fmt"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/internal/faultproxy"
	"github.com/pglock/pglock-go/internal/pgtest"
)

// TestFatesOfRequests: in each of pgx's query modes, the server executes a statement as often as
// its fate says, and the client gets its own replies only.
func TestFatesOfRequests(t *testing.T) {
	t.Parallel()
	server, err := url.Parse(pgtest.URL(t))
	if err != nil {
		t.Fatal(err)
	}
	pool := pgtest.Pool(t)
	schema := pgx.Identifier{pgtest.SchemaName(t)}.Sanitize()
	if _, err := pool.Exec(t.Context(), "CREATE SCHEMA "+schema); err != nil {
		t.Fatal(err)
	}
	for i, mode := range []pgx.QueryExecMode{
		pgx.QueryExecModeCacheStatement, pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol,
	} {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			table := fmt.Sprintf("%s.t%d", schema, i)
			if _, err := pool.Exec(t.Context(), "CREATE TABLE "+table+" (what text)"); err != nil {
				t.Fatal(err)
			}
			proxy := faultproxy.New(t, server.Host)
			var fate atomic.Int64
			proxy.OnRequest(func(r faultproxy.Request) faultproxy.Fate {
				if strings.HasPrefix(r.SQL, "INSERT") {
					return faultproxy.Fate(fate.Load())
				}
				return faultproxy.Pass
			})
			config, err := pgx.ParseConfig(proxy.URL(server.String()))
			if err != nil {
				t.Fatal(err)
			}
			config.DefaultQueryExecMode = mode
			conn, err := pgx.ConnectConfig(t.Context(), config)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close(t.Context())
			insert := func(what string, as faultproxy.Fate) (got string, err error) {
				fate.Store(int64(as))
				err = conn.QueryRow(t.Context(), "INSERT INTO "+table+" VALUES ($1) RETURNING what", what).Scan(&got)
				return got, err
			}
			for _, step := range []struct {
				what string
				fate faultproxy.Fate
			}{{"once", faultproxy.Pass}, {"twice", faultproxy.Twice}, {"again", faultproxy.Again}, {"next", faultproxy.Pass}, {"last", faultproxy.Pass}} {
				if got, err := insert(step.what, step.fate); got != step.what || err != nil {
					t.Errorf("%s: the client read %q, %v", step.what, got, err)
				}
			}
			if got, err := insert("lost", faultproxy.LoseReply); err == nil || !conn.IsClosed() {
				t.Errorf("the lost reply: %q, %v", got, err)
			}
			rows, _ := pool.Query(t.Context(), "SELECT what || count(*) FROM "+table+" GROUP BY what ORDER BY what")
			got, err := pgx.CollectRows(rows, pgx.RowTo[string])
			if want := "again2 last1 lost1 next1 once1 twice2"; strings.Join(got, " ") != want || err != nil {
				t.Errorf("the table has %s, %v; want %s", got, err, want)
			}
		})
	}
}

// TestNotificationsPassBesideRequests: the listener of a connection whose requests are read gets its
// notifications, and a request to cancel passes.
func TestNotificationsPassBesideRequests(t *testing.T) {
	t.Parallel()
	server, err := url.Parse(pgtest.URL(t))
	if err != nil {
		t.Fatal(err)
	}
	proxy := faultproxy.New(t, server.Host)
	proxy.OnRequest(func(faultproxy.Request) faultproxy.Fate { return faultproxy.Twice })
	conn, err := pgx.Connect(t.Context(), proxy.URL(server.String()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	channel := pgx.Identifier{pgtest.SchemaName(t)}.Sanitize()
	if _, err := conn.Exec(t.Context(), "LISTEN "+channel); err != nil {
		t.Fatal(err)
	}
	if _, err := pgtest.Pool(t).Exec(t.Context(), "NOTIFY "+channel+", 'hello'"); err != nil {
		t.Fatal(err)
	}
	if n, err := conn.WaitForNotification(t.Context()); err != nil || n.Payload != "hello" {
		t.Errorf("%+v, %v", n, err)
	}
	if err := conn.PgConn().CancelRequest(t.Context()); err != nil {
		t.Error(err)
	}
}
