package leasetable_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/leasetable"
)

// world runs the statements of the protocol in several sessions, one step at a time, in a schema of
// its own. Two things differ from the protocol of a client:
//
//   - The clock is one that only the test moves. Each clock_timestamp() is replaced by test_now(),
//     which reads a sequence. A sequence has no snapshot, so a statement that has waited can read the
//     time after its wait, as in the protocol.
//   - A statement waits for a row lock for a minute, so that a step on a slow machine finds it
//     waiting.
type world struct {
	t       testing.TB
	schema  string
	sql     map[string]string // by the names of the files in sql, and of functions
	monitor *pgx.Conn
	dsn     string
	key     int64 // of the advisory lock on which stalled inserts wait
	idle    []*session
}

// testClock replaces the clock and the lock timeout.
func testClock(name string) *strings.Replacer {
	now := schema.Quote(name) + ".test_now()"
	return strings.NewReplacer("pg_catalog.clock_timestamp()", now, "clock_timestamp()", now, "'100ms'", "'1min'", "'250ms'", "'1min'", "'1s'", "'1min'")
}

// aliases are further names in schedules for statements.
var aliases = map[string]string{"join_queue": "join", "adopt": "renew"}

func newWorld(t *testing.T) *world {
	t.Helper()
	pool := pgtest.Pool(t)
	w := &world{t: t, schema: pgtest.Schema(t, pool), dsn: pool.Config().ConnString(), sql: map[string]string{}}
	w.monitor = w.connect()
	here := schema.Quote(w.schema)
	w.exec(`CREATE SEQUENCE pglock.test_clock MINVALUE 0 START 0`)
	w.exec(`CREATE TABLE pglock.ledger (token bigint)`)
	w.exec(`CREATE FUNCTION pglock.test_now() RETURNS timestamptz LANGUAGE plpgsql VOLATILE AS $$
		BEGIN RETURN timestamptz '2030-01-01 00:00:00+00' + (SELECT last_value FROM ` + here + `.test_clock) * interval '1 ms'; END $$`)
	w.exec(`SELECT pglock.lift_fencing_tokens()`)
	for _, definition := range w.functions("") {
		w.define(testClock(w.schema).Replace(definition))
	}
	// A stalled insert: see the step "stall".
	w.scan(&w.key, `SELECT hashtextextended($1, 0)`, w.schema)
	w.exec(fmt.Sprintf(`CREATE FUNCTION pglock.test_stall() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			IF current_setting('test.stall', true) = 'on' THEN PERFORM pg_advisory_xact_lock_shared(%d); END IF;
			RETURN NEW;
		END $$`, w.key))
	w.exec(`CREATE TRIGGER test_stall BEFORE INSERT ON pglock.distributed_locks FOR EACH ROW EXECUTE FUNCTION pglock.test_stall()`)
	for name, sql := range leasetable.Statements(w.schema) {
		w.sql[name] = testClock(w.schema).Replace(sql)
	}
	for alias, name := range aliases {
		w.sql[alias] = w.sql[name]
	}
	return w
}

// functions returns the definitions of the schema's functions that read the clock or lock rows, or
// of the one with that name.
func (w *world) functions(name string) []string {
	w.t.Helper()
	rows, err := w.monitor.Query(context.Background(), `SELECT pg_get_functiondef(p.oid) FROM pg_proc AS p
		WHERE p.pronamespace = (SELECT n.oid FROM pg_namespace AS n WHERE n.nspname = $1)
		  AND CASE WHEN $2 = '' THEN p.proname <> 'test_now' AND p.prosrc ~ 'clock_timestamp|lock_timeout' ELSE p.proname = $2 END`, w.schema, name)
	all, err2 := pgx.CollectRows(rows, pgx.RowTo[string])
	if err := errors.Join(err, err2); err != nil || len(all) == 0 {
		w.t.Fatalf("functions %q: %d, %v", name, len(all), err)
	}
	for i, definition := range all {
		// The schema's name, which a change may bring into the body, may contain the server's quotes.
		if head, body, ok := strings.Cut(definition, "\nAS $function$"); ok {
			all[i] = head + "\nAS $definition$" + strings.TrimSuffix(strings.TrimSpace(body), "$function$") + "$definition$"
		}
	}
	return all
}

// mutate replaces a part of a statement or a function, and returns how to undo that.
func (w *world) mutate(name, before, after string) (undo func()) {
	w.t.Helper()
	change := func(text string) string {
		if !strings.Contains(text, before) {
			w.t.Fatalf("%s has no %q", name, before)
		}
		return strings.ReplaceAll(text, before, after)
	}
	if text, ok := w.sql[name]; ok && !strings.Contains(text, "."+name+"(") { // not a call of the function
		w.sql[name] = change(text)
		return func() { w.sql[name] = text }
	}
	text := w.functions(name)[0]
	w.define(change(text))
	return func() { w.define(text) }
}

func (w *world) connect() *pgx.Conn {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), pgtest.Patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, w.dsn)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), pgtest.Patience)
		defer cancel()
		_ = conn.Close(ctx)
	})
	return conn
}

// exec runs a statement for the schema pglock in the world's own session.
func (w *world) exec(sql string, args ...any) {
	w.t.Helper()
	w.define(strings.ReplaceAll(sql, "pglock.", schema.Quote(w.schema)+"."), args...)
}

// define runs a statement as it is.
func (w *world) define(sql string, args ...any) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), pgtest.Patience)
	defer cancel()
	if _, err := w.monitor.Exec(ctx, sql, args...); err != nil {
		w.t.Fatalf("%v: %.200s", err, sql)
	}
}

// scan reads a row in the world's own session.
func (w *world) scan(into any, sql string, args ...any) {
	w.t.Helper()
	if err := w.monitor.QueryRow(context.Background(), strings.ReplaceAll(sql, "pglock.", schema.Quote(w.schema)+"."), args...).Scan(into); err != nil {
		w.t.Fatalf("%v: %.200s", err, sql)
	}
}

// advance moves the clock.
func (w *world) advance(d time.Duration) {
	w.t.Helper()
	w.exec(`SELECT setval($2::text::regclass, last_value + $1) FROM pglock.test_clock`, d.Milliseconds(), schema.Quote(w.schema)+".test_clock")
}

// reset deletes all rows.
func (w *world) reset() {
	w.t.Helper()
	w.exec(`DELETE FROM pglock.distributed_locks`)
	w.exec(`DELETE FROM pglock.lock_waiters`)
	w.exec(`DELETE FROM pglock.lock_permits`)
	w.exec(`DELETE FROM pglock.ledger`)
}

// session is a connection that runs one statement at a time, which may wait for another session.
type session struct {
	w       *world
	name    string
	conn    *pgx.Conn
	pending chan reply // of the statement in progress
}

// reply is what a statement returned.
type reply struct {
	rows [][]any
	err  error
}

// code returns the SQLSTATE of the error.
func (r reply) code() string {
	var e *pgconn.PgError
	if errors.As(r.err, &e) {
		return e.Code
	}
	return ""
}

// text returns the error's text.
func (r reply) text() string { return fmt.Sprint(r.err) }

// session returns a session without a transaction and with the settings of a new one.
func (w *world) session(name string) *session {
	if n := len(w.idle); n > 0 {
		s := w.idle[n-1]
		w.idle = w.idle[:n-1]
		s.name = name
		return s
	}
	return &session{w: w, name: name, conn: w.connect()}
}

func (s *session) pid() uint32 { return s.conn.PgConn().PID() }

// client returns the client of the session's tickets, which is its channel: of this world alone.
func (s *session) client() string { return fmt.Sprintf("client_%x_%s", uint64(s.w.key), s.name) }

// heard returns the payloads of the notifications that have arrived with the answers of the server.
func (s *session) heard() string {
	over, cancel := context.WithCancel(context.Background())
	cancel()
	var payloads []string
	for {
		n, err := s.conn.WaitForNotification(over) // what has arrived, it returns first
		if err != nil {
			return cmp.Or(strings.Join(payloads, " "), "nothing")
		}
		if strings.HasSuffix(n.Channel, schema.NextSuffix) {
			n.Payload = "next " + n.Payload
		}
		payloads = append(payloads, n.Payload)
	}
}

// end rolls back. The connection is kept for another session, unless a statement of it still waits.
func (s *session) end() {
	if s.pending == nil && s.run("ROLLBACK") == nil && s.run("UNLISTEN *") == nil &&
		s.run("SELECT set_config('test.stall', '', false), pg_advisory_unlock_all()") == nil {
		s.heard()
		s.w.idle = append(s.w.idle, s)
		return
	}
	s.w.exec("SELECT pg_terminate_backend($1)", s.pid())
	if s.pending != nil {
		<-s.pending
		s.pending = nil
	}
}

// start sends a statement.
func (s *session) start(sql string, args ...any) {
	done := make(chan reply, 1)
	s.pending = done
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		rows, err := s.conn.Query(ctx, sql, args...)
		var r reply
		if err == nil {
			for rows.Next() {
				values, err := rows.Values()
				if err != nil {
					break
				}
				r.rows = append(r.rows, values)
			}
			err = rows.Err()
		}
		r.err = err
		done <- r
	}()
}

// await waits until the statement has its reply, or until it waits for a lock that another of the
// given sessions holds: that session is the blocker.
func (s *session) await(others []*session) (r reply, blocker *session, err error) {
	patience := time.After(pgtest.Patience)
	for pause := time.Millisecond; ; pause = min(2*pause, 20*time.Millisecond) {
		select {
		case r := <-s.pending:
			s.pending = nil
			return r, nil, nil
		case <-patience:
			return r, nil, fmt.Errorf("%s neither returns nor waits for a lock of another session", s.name)
		case <-time.After(pause):
		}
		var pids []int32
		s.w.scan(&pids, "SELECT pg_blocking_pids($1)", s.pid())
		for _, other := range others {
			if other != s && slices.Contains(pids, int32(other.pid())) {
				return r, other, nil
			}
		}
	}
}

// run sends a statement that waits for no other session.
func (s *session) run(sql string, args ...any) error {
	s.start(sql, args...)
	r := <-s.pending
	s.pending = nil
	return r.err
}
