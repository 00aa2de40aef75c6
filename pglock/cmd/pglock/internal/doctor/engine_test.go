package doctor_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/internal/testserver"
	"github.com/pglock/pglock-go/migrations"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/cmd/pglock/internal/doctor"
	"github.com/pglock/pglock-go/pglock/internal/link"
)

// open reports why pglock.Open fails for the role of doctor.
func (p *patient) open() error {
	p.Helper()
	c, err := pglock.Open(p.Context(), p.pool(), pglock.WithSchema(p.schema))
	if err == nil {
		locktest.OK(p, c.Close(p.Context()))
	}
	return err
}

// pool returns a pool of the role of doctor.
func (p *patient) pool() *pgxpool.Pool {
	return pgtest.PoolOn(p, p.admin.Config().ConnString(), func(c *pgxpool.Config) { c.ConnConfig = p.conn.Copy() })
}

func (p *patient) up() error {
	return migrations.Up(p.Context(), p.admin, migrations.WithSchema(p.schema))
}

// unsafe: Open, Up and doctor refuse the server with that text, and accept it after fix.
func (p *patient) unsafe(set, text, fix string) {
	p.Helper()
	accepted := func() {
		p.Helper()
		locktest.OK(p, p.open())
		locktest.OK(p, p.up())
		p.expect("server", doctor.OK, "accepts writes")
	}
	accepted()
	p.exec(set)
	for what, err := range map[string]error{"Open": p.open(), "Up": p.up()} {
		p.refused(what, err, text)
	}
	p.expect("server", doctor.Fail, text)
	p.exec(fix)
	accepted()
}

// refused: the error is not one that a client repeats.
func (p *patient) refused(what string, err error, text string) {
	p.Helper()
	if !errors.Is(err, pglock.ErrSchema) || errors.Is(err, pglock.ErrUnavailable) || link.Transient(err) || !strings.Contains(err.Error(), p.fill(text)) {
		p.Errorf("%s: %v, want %q", what, err, p.fill(text))
	}
}

// TestUnsafeSequence: a client that is open refuses a new connection, and works again later.
func TestUnsafeSequence(t *testing.T) {
	t.Parallel()
	p := newPatient(t, pgtest.Database(t))
	const cache, fix = "ALTER SEQUENCE <fencing_tokens> CACHE 10", "ALTER SEQUENCE <fencing_tokens> CACHE 1"
	p.unsafe(cache, "sessions cache 10 values", fix)

	client := locktest.ClientOn(t, p.pool(), pglock.WithSchema(p.schema))
	_, err := client.TryAcquire(t.Context(), "a")
	locktest.OK(t, err)
	p.exec(cache + "; SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = <user>")
	_, err = client.Acquire(t.Context(), "b")
	p.refused("Acquire", err, fix+", and restart all clients")
	p.exec(fix)
	_, err = client.Acquire(t.Context(), "b")
	locktest.OK(t, err)
}

// TestUnsafeReplication: a subscription that has no slot yet has the same rows in the catalog as one that has.
// The table of pglogical stands for that extension, and for Spock.
func TestUnsafeReplication(t *testing.T) {
	t.Parallel()
	server := pgtest.Server(t, testserver.Options{Settings: map[string]string{"wal_level": "logical"}})
	p := newPatient(t, server.URL())
	locktest.Exec(t, p.admin, "CREATE DATABASE publisher")
	publisher := pgtest.PoolOn(t, server.URL(), func(c *pgxpool.Config) { c.ConnConfig.Database = "publisher" })
	locktest.OK(t, migrations.Up(t.Context(), publisher, migrations.WithSchema(p.schema)))
	locktest.Exec(t, p.admin, "CREATE TABLE other ()")
	locktest.Exec(t, publisher, "CREATE TABLE other ()")
	locktest.Exec(t, publisher, "CREATE PUBLICATION other FOR TABLE other")
	locktest.Exec(t, publisher, p.fill("CREATE PUBLICATION locks FOR TABLE <once_keys>"))
	from := publisher.Config().ConnConfig
	const subscribe = `CREATE SUBSCRIPTION "to: %[1]s" CONNECTION 'host=%s port=%d user=%s password=%s dbname=publisher'
		PUBLICATION %[1]s WITH (create_slot = false, slot_name = NONE, enabled = false, copy_data = false)`
	p.exec(fmt.Sprintf(subscribe, "other", from.Host, from.Port, from.User, from.Password))
	p.unsafe(fmt.Sprintf(subscribe, "locks", from.Host, from.Port, from.User, from.Password), "a subscription writes to once_keys", `DROP SUBSCRIPTION "to: locks"`)

	p.exec(`CREATE SCHEMA pglogical; GRANT USAGE ON SCHEMA pglogical TO <role>; CREATE TABLE pglogical.local_sync_status (sync_kind "char", sync_nspname name, sync_relname name);
		GRANT SELECT ON pglogical.local_sync_status TO <role>; ` + "INSERT INTO pglogical.local_sync_status VALUES ('d', 'public', 'lock_permits')")
	p.unsafe("INSERT INTO pglogical.local_sync_status SELECT 'd', n.nspname, c.relname FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE c.relname = 'lock_permits'",
		"a subscription of pglogical writes to lock_permits", "ALTER TABLE pglogical.local_sync_status OWNER TO <role>") // nobody reads a stranger's table
}

// TestCockroachDB: a server that reports the parameter is refused before it gets a statement. One that does
// not report it gets some, and refuses them like Aurora DSQL.
func TestCockroachDB(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"v25.1.0", ""} {
		var statements atomic.Int64
		url := fakeServer(t, version, &statements)
		p := &patient{T: t, admin: pgtest.PoolOn(t, url), schema: schema.Default, limits: doctor.DefaultLimits()}
		p.conn = p.admin.Config().ConnConfig
		key := advisory.NewKey("a", "b")
		errs := map[string]error{"Open": p.open(), "Up": p.up(), "Do": advisory.Do(t.Context(), p.admin, key, nothing)}
		_, errs["Acquire"] = advisory.TryAcquire(t.Context(), p.admin, key)
		result := p.run()[0]
		if version != "" {
			errs["Lock"] = p.admin.AcquireFunc(t.Context(), func(conn *pgxpool.Conn) error {
				return advisory.Lock(t.Context(), openTx{conn: conn.Conn()}, key)
			})
			for what, err := range errs {
				p.refused(what, err, "the server is CockroachDB")
			}
			if n := statements.Load(); n != 0 || result.Level != doctor.Fail || !strings.Contains(result.Found, "CockroachDB") {
				t.Errorf("%d statements, doctor: %+v", n, result)
			}
			continue
		}
		for what, err := range errs {
			if err == nil || errors.Is(err, pglock.ErrSchema) {
				t.Errorf("control: %s: %v", what, err)
			}
		}
		if n := statements.Load(); n == 0 || result.Level != doctor.OK || !strings.Contains(errs["Up"].Error(), "lacks a feature of PostgreSQL that pglock needs") {
			t.Errorf("control: %d statements, %v, doctor: %+v", n, errs["Up"], result)
		}
	}
}

// openTx is a transaction on conn that fails the test with a panic if a statement is sent.
type openTx struct {
	pgx.Tx
	conn *pgx.Conn
}

func (t openTx) Conn() *pgx.Conn { return t.conn }

func nothing(context.Context, pgx.Tx) error { return nil }

// fakeServer reports the version of CockroachDB, unless it is empty, and refuses all statements.
func fakeServer(t *testing.T, version string, statements *atomic.Int64) (url string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	locktest.OK(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	serve := func(conn net.Conn) {
		defer conn.Close()
		b := pgproto3.NewBackend(conn, conn)
		if _, err := b.ReceiveStartupMessage(); err != nil {
			return
		}
		b.Send(&pgproto3.AuthenticationOk{})
		for name, value := range map[string]string{"crdb_version": version, "client_encoding": "UTF8", "standard_conforming_strings": "on"} {
			b.Send(&pgproto3.ParameterStatus{Name: name, Value: value})
		}
		b.Send(&pgproto3.BackendKeyData{ProcessID: 1, SecretKey: []byte("1234")})
		ready := &pgproto3.ReadyForQuery{TxStatus: 'I'}
		b.Send(ready)
		for b.Flush() == nil {
			message, err := b.Receive()
			if err != nil {
				return
			}
			refusal := &pgproto3.ErrorResponse{Severity: "ERROR", Code: "0A000", Message: "not supported"}
			switch message.(type) {
			case *pgproto3.Query:
				statements.Add(1)
				b.Send(refusal)
				b.Send(ready)
			case *pgproto3.Parse:
				statements.Add(1)
				b.Send(refusal)
			case *pgproto3.Sync:
				b.Send(ready)
			}
		}
	}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go serve(conn)
		}
	}()
	return "postgres://u@" + listener.Addr().String() + "/d?sslmode=disable"
}
