package doctor_test

import (
	"net"
	"strings"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/testserver"
	"github.com/pglock/pglock-go/pglock/cmd/pglock/internal/doctor"
)

func TestConnectionFails(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t, testserver.Options{}) // which always requires a password
	p := patientAt(t, server.URL())
	good := *p.conn
	p.expect("connection", doctor.OK, "without TLS on this host")

	p.conn = good.Copy()
	p.conn.Password = "wrong"
	p.expect("connection", doctor.Fail, "check the password")

	p.conn = good.Copy()
	p.conn.Database = "none"
	p.expect("connection", doctor.Fail, "check the name of the database")

	p.exec("REVOKE CONNECT ON DATABASE postgres FROM PUBLIC")
	p.conn = good.Copy()
	p.expect("connection", doctor.Fail, "GRANT CONNECT")
	p.exec("GRANT CONNECT ON DATABASE postgres TO PUBLIC")

	p.exec("ALTER ROLE " + p.role() + " CONNECTION LIMIT 0")
	p.expect("connection", doctor.Fail, "the limit of the role")
	p.exec("ALTER ROLE " + p.role() + " CONNECTION LIMIT -1")

	p.exec("ALTER ROLE " + p.role() + " NOLOGIN")
	p.expect("connection", doctor.Fail, "check the role")
	p.exec("ALTER ROLE " + p.role() + " LOGIN")

	if err := server.Stop(testserver.Fast); err != nil {
		t.Fatal(err)
	}
	p.expect("connection", doctor.Fail, "that the server runs")
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}

	if err := server.Pause(); err != nil {
		t.Fatal(err)
	}
	p.limits.Connect = 300 * time.Millisecond
	began := time.Now()
	p.expect("connection", doctor.Fail, "whether the server hangs")
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("on a hung server it took %v", took)
	}
	if err := server.Resume(); err != nil {
		t.Fatal(err)
	}
}

// TestServerHangsLater: a statement gets no answer, because a session has locked a table. One
// failure says so, and later checks are left out.
func TestServerHangsLater(t *testing.T) {
	t.Parallel()
	p := newPatient(t)
	blocker := p.session(false)
	if _, err := blocker.Exec(t.Context(), "BEGIN; LOCK TABLE "+p.table("lock_waiters")); err != nil {
		t.Fatal(err)
	}
	p.limits.Answer = 2 * time.Second
	began := time.Now()
	results := p.run()
	if last := results[len(results)-1]; last.Check != "idle rows" || last.Level != doctor.Fail || !strings.Contains(last.Found, "does not answer") {
		t.Errorf("got %+v", results)
	}
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("it took %v", took)
	}
	if _, err := blocker.Exec(t.Context(), "ROLLBACK; BEGIN; LOCK TABLE "+p.table("distributed_locks")); err != nil {
		t.Fatal(err)
	}
	p.limits.Answer, p.limits.Scan = 5*time.Second, 300*time.Millisecond
	p.expect("tokens", doctor.Warn, "could not be read in 300ms")
}

// TestWithoutTLSOverANetwork: the server is reached by an address that is not the loopback's.
func TestWithoutTLSOverANetwork(t *testing.T) {
	t.Parallel()
	for address, local := range map[string]bool{"127.0.0.1:5432": true, "[::1]:5432": true, "10.0.0.1:5432": false, "[2001:db8::1]:5432": false} {
		tcp, err := net.ResolveTCPAddr("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		if doctor.IsLocal(tcp) != local {
			t.Errorf("%s: local is %v", address, !local)
		}
	}
	if !doctor.IsLocal(&net.UnixAddr{Name: "/tmp/.s.PGSQL.5432", Net: "unix"}) {
		t.Error("a socket is not local")
	}
}
