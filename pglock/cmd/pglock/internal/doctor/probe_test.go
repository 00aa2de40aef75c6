package doctor_test

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/testserver"
	"github.com/pglock/pglock-go/pglock/cmd/pglock/internal/doctor"
)

func TestConnectionFails(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t, testserver.Options{}) // which always requires a password
	p := newPatient(t, server.URL())
	good := *p
	for _, test := range []struct {
		set, undo string
		change    func(*pgconn.Config)
		remedy    string
	}{
		{change: func(c *pgconn.Config) { c.Password = "wrong" }, remedy: "check the password"},
		{change: func(c *pgconn.Config) { c.Database = "none" }, remedy: "check the name of the database"},
		{set: "REVOKE CONNECT ON DATABASE <db> FROM PUBLIC", undo: "GRANT CONNECT ON DATABASE <db> TO PUBLIC", remedy: "GRANT CONNECT"},
		{set: "ALTER ROLE <role> CONNECTION LIMIT 0", undo: "ALTER ROLE <role> CONNECTION LIMIT -1", remedy: "the limit of the role"},
		{set: "ALTER ROLE <role> NOLOGIN", undo: "ALTER ROLE <role> LOGIN", remedy: "check the role"},
	} {
		*p = good
		p.expect("connection", doctor.OK, "without TLS on this host")
		if test.change != nil {
			p.conn = p.conn.Copy()
			test.change(&p.conn.Config)
		} else {
			p.exec(test.set)
		}
		p.expect("connection", doctor.Fail, test.remedy)
		if test.undo != "" {
			p.exec(test.undo)
		}
	}
	*p = good
	locktest.OK(t, server.Stop(testserver.Fast))
	p.expect("connection", doctor.Fail, "that the server runs")
	locktest.OK(t, server.Start())
	p.expect("connection", doctor.OK, "")

	// The server hangs after it has accepted the connection, and then before: a bounded time later,
	// one failure says so, and later checks are left out.
	p.conn = p.conn.Copy()
	p.conn.AfterConnect = func(context.Context, *pgconn.PgConn) error { return server.Pause() }
	p.limits.Answer, p.limits.Scan, p.limits.Connect = 300*time.Millisecond, 0, time.Second
	began := time.Now()
	if results := p.run(); len(results) != 2 || results[1].Level != doctor.Fail || !strings.Contains(results[1].Found, "does not answer in time, later checks are left out") {
		t.Errorf("got %+v", results)
	}
	p.conn = good.conn
	p.expect("connection", doctor.Fail, "whether the server hangs")
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("on a hung server it took %v", took)
	}
	locktest.OK(t, server.Resume())
}

// TestJudgements of what no server in a test has: a network without TLS, and another clock.
func TestJudgements(t *testing.T) {
	t.Parallel()
	for address, local := range map[string]bool{"127.0.0.1:5432": true, "[::1]:5432": true, "10.0.0.1:5432": false, "[2001:db8::1]:5432": false} {
		tcp, err := net.ResolveTCPAddr("tcp", address)
		if err != nil || doctor.IsLocal(tcp) != local {
			t.Errorf("%s: local is %v, %v", address, !local, err)
		}
	}
	if !doctor.IsLocal(&net.UnixAddr{Name: "/tmp/.s.PGSQL.5432", Net: "unix"}) {
		t.Error("a socket is not local")
	}
	for _, test := range []struct {
		ahead, uncertain time.Duration
		level            doctor.Level
	}{
		{0, 0, doctor.OK},
		{4 * time.Second, 0, doctor.OK},
		{-4 * time.Second, 0, doctor.OK},
		{6 * time.Second, 2 * time.Second, doctor.OK},
		{6 * time.Second, 0, doctor.Warn},
		{-6 * time.Second, 0, doctor.Warn},
		{-time.Hour, 0, doctor.Warn},
		{61 * time.Second, 0, doctor.Fail},
	} {
		if level := doctor.ClockLevel(test.ahead, test.uncertain); level != test.level {
			t.Errorf("%v ±%v: %q, want %q", test.ahead, test.uncertain, level, test.level)
		}
	}
}
