package leasetable_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/pgtx"
	"github.com/pglock/pglock-go/internal/schema"
)

// TestProtocol replays the fixtures of the SQL protocol: see testdata/protocol/README.md.
func TestProtocol(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../testdata/protocol/*.txt")
	if err != nil || len(files) < 8 {
		t.Fatalf("%d fixtures, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(file)
			locktest.OK(t, err)
			pool := pgtest.Pool(t)
			p := &protocol{t: t, url: pool.Config().ConnString(), schema: pgtest.Schema(t, pool), clients: map[string]*pgx.Conn{}}
			p.replay(string(text))
		})
	}
}

// protocol replays a fixture.
type protocol struct {
	t           *testing.T
	url, schema string
	clients     map[string]*pgx.Conn
}

func (p *protocol) replay(text string) {
	p.t.Helper()
	var step string // the statement, with its client
	var want []string
	for line := range strings.Lines(text + "\n.: end\n") {
		line = strings.TrimRight(line, "\n")
		client, rest, isStep := strings.Cut(line, ": ")
		listener, notification, isNotification := strings.Cut(line, "< ")
		switch {
		case line == "", strings.HasPrefix(line, "#"):
		case line[0] == '=', line[0] == '!':
			want = append(want, strings.TrimSpace(line))
		case isStep && !strings.Contains(client, " "), isNotification && !strings.Contains(listener, " "):
			p.check(step, want)
			step, want = line, nil
			if isNotification && !isStep {
				p.notified(listener, notification)
				step = ""
			}
			_ = rest
		default:
			p.t.Fatalf("not a step: %q", line)
		}
	}
}

// client returns the connection of a client.
func (p *protocol) client(name string) *pgx.Conn {
	p.t.Helper()
	if p.clients[name] == nil {
		config, err := pgx.ParseConfig(p.url)
		locktest.OK(p.t, err)
		config.RuntimeParams["statement_timeout"] = "60s" // of a search that does not end
		conn, err := pgx.ConnectConfig(p.t.Context(), config)
		locktest.OK(p.t, err)
		p.t.Cleanup(func() { _ = conn.Close(context.Background()) })
		p.clients[name] = conn
	}
	return p.clients[name]
}

// check sends a statement and compares what it returns, in the form of a fixture. Statements of settings return
// nothing, and the fixture says nothing then.
func (p *protocol) check(step string, want []string) {
	p.t.Helper()
	if step == "" {
		return
	}
	name, sql, _ := strings.Cut(step, ": ")
	results, err := p.client(name).PgConn().Exec(p.t.Context(), schema.Render(sql, p.schema)).ReadAll()
	var got []string
	var failure *pgconn.PgError
	switch {
	case errors.As(err, &failure):
		got = append(got, "! "+failure.Code)
	case err != nil:
		p.t.Fatalf("%s: %v", step, err)
	case results[0].CommandTag.Select() && len(results[0].Rows) == 0:
		got = append(got, "= nothing")
	default:
		for _, row := range results[0].Rows {
			var values []string
			for _, v := range row {
				values = append(values, string(v))
			}
			got = append(got, strings.TrimSpace("= "+strings.Join(values, " | ")))
		}
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		p.t.Errorf("%s\ngot %q, %v\nwant %q", step, got, err, want)
	}
}

func (p *protocol) notified(client, want string) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), time.Minute)
	defer cancel()
	n, err := p.client(client).WaitForNotification(ctx)
	if err != nil || n.Channel+" "+n.Payload != want {
		p.t.Errorf("%s: %+v, %v, want %s", client, n, err, want)
	}
}

// TestRenewOfARowInUse: a renewal does not wait for the transaction that is at work on the grant, and does not say
// that the grant is lost.
func TestRenewOfARowInUse(t *testing.T) {
	t.Parallel()
	pool := pgtest.Pool(t)
	name := pgtest.Schema(t, pool)
	for _, permits := range []int{0, 2} {
		var token int64
		locktest.OK(t, pool.QueryRow(t.Context(), schema.Render("SELECT token FROM pglock.acquire($1, 'A', permits => $2)", name), fmt.Sprint(permits), permits).Scan(&token))
		renewals := func() (n int, err error) {
			tag, err := pool.Exec(t.Context(), schema.Render("SELECT * FROM pglock.renew($1, $2)", name), fmt.Sprint(permits), token)
			return int(tag.RowsAffected()), err
		}
		tx, err := pool.Begin(t.Context())
		locktest.OK(t, err)
		_, err = tx.Exec(t.Context(), schema.Render("SELECT FROM pglock.distributed_locks FOR NO KEY UPDATE", name))
		locktest.OK(t, err)
		_, err = tx.Exec(t.Context(), schema.Render("SELECT FROM pglock.lock_permits FOR NO KEY UPDATE", name))
		locktest.OK(t, err)
		if n, err := renewals(); pgtx.SQLState(err) != "55P03" {
			t.Errorf("%d permits, while the row is in use: %d, %v", permits, n, err)
		}
		locktest.OK(t, tx.Rollback(t.Context()))
		if n, err := renewals(); n != 1 || err != nil {
			t.Errorf("%d permits, afterwards: %d, %v", permits, n, err)
		}
		token++
		if n, err := renewals(); n != 0 || err != nil {
			t.Errorf("%d permits, of another grant: %d, %v", permits, n, err)
		}
	}
}
