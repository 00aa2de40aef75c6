package fencing_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/pglock"
)

// form is the way in which a holder's writes are fenced.
type form string

const (
	unfenced form = "no fence"
	column   form = "token column"
	guarded  form = "guard"
	bound    form = "protected table"
)

// spec is the input of a holder when it starts.
type spec struct {
	URL, Role, Password, Schema string
	TTL                         time.Duration
	Form                        form
	Inside                      bool // waits in the transaction, after the guard
	Unbounded                   bool // takes the bound on idling away again
}

// report is the output of a holder.
type report struct {
	Token   fencing.Token
	Ready   bool // holds the lock, has read, and waits for a line before it writes
	Wrote   bool
	Refused bool   // by the fence
	Paused  bool   // its transaction was ended by the server
	Error   string // anything else that went wrong
}

// counterSQL creates a table that holders increment by reading and writing, and one in which each
// write makes an entry in the same transaction.
const counterSQL = `
	CREATE TABLE pglock.counter (id int PRIMARY KEY, n int NOT NULL, fence_token bigint NOT NULL DEFAULT 0);
	INSERT INTO pglock.counter VALUES (1, 0);
	CREATE TABLE pglock.entries (at bigint GENERATED ALWAYS AS IDENTITY, token bigint NOT NULL);`

// hold is the main function of a holder. For each line of input it acquires the lock, reads,
// reports, waits for the next line, writes, and reports again.
func hold(in io.Reader, out io.Writer) int {
	say := json.NewEncoder(out)
	if err := holdAll(bufio.NewReader(in), say); err != nil {
		_ = say.Encode(report{Error: err.Error()})
		return 1
	}
	return 0
}

func holdAll(in *bufio.Reader, say *json.Encoder) error {
	var s spec
	line, err := in.ReadBytes('\n')
	if err != nil {
		return err
	}
	if err := json.Unmarshal(line, &s); err != nil {
		return err
	}
	ctx := context.Background()
	config, err := pgxpool.ParseConfig(s.URL)
	if err != nil {
		return err
	}
	config.ConnConfig.User, config.ConnConfig.Password, config.MaxConns = s.Role, s.Password, 3
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return err
	}
	defer pool.Close()
	client, err := pglock.Open(ctx, pool, pglock.WithSchema(s.Schema), pglock.WithTTL(s.TTL))
	if err != nil {
		return err
	}
	defer func() { _ = client.Close(ctx) }() // its leases may be lost
	for {
		if _, err := in.ReadBytes('\n'); err != nil {
			return nil // no more rounds
		}
		if err := s.round(ctx, client, pool, in, say); err != nil {
			return err
		}
	}
}

// round is one grant and one write.
func (s spec) round(ctx context.Context, client *pglock.Client, pool *pgxpool.Pool, in *bufio.Reader, say *json.Encoder) error {
	lease, err := client.Acquire(ctx, "counter")
	if err != nil {
		return err
	}
	defer func() { _ = lease.Release(ctx) }() // as a rule it is lost by then
	wait := func() error {
		if err := say.Encode(report{Token: lease.Token(), Ready: true}); err != nil {
			return err
		}
		_, err := in.ReadBytes('\n')
		return err
	}
	n, err := readCounter(ctx, pool, s.Schema)
	if err != nil {
		return err
	}
	pause := func(pgx.Tx) error { return nil }
	if s.Inside {
		pause = func(tx pgx.Tx) error {
			if s.Unbounded {
				if _, err := tx.Exec(ctx, "SET LOCAL idle_in_transaction_session_timeout = 0"); err != nil {
					return err
				}
			}
			return wait()
		}
	} else if err := wait(); err != nil {
		return err
	}
	err = writeCounter(ctx, pool, s.Form, lease.Fence(), n+1, pause)
	r := report{Token: lease.Token(), Wrote: err == nil, Refused: errors.Is(err, fencing.ErrStale), Paused: errors.Is(fencing.Explain(err), fencing.ErrPaused)}
	if err != nil && !r.Refused && !r.Paused {
		r.Error = err.Error()
	}
	return say.Encode(r)
}

func readCounter(ctx context.Context, pool *pgxpool.Pool, schemaName string) (n int, err error) {
	err = pool.QueryRow(ctx, schema.Render("SELECT n FROM pglock.counter", schemaName)).Scan(&n)
	return n, err
}

// writeCounter writes n as the holder of f, fenced in that form. It calls pause after the guard, if
// there is one.
func writeCounter(ctx context.Context, pool *pgxpool.Pool, how form, f fencing.Fence, n int, pause func(pgx.Tx) error) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		update := "UPDATE pglock.counter SET n = $1, fence_token = $2 WHERE id = 1"
		var err error
		switch how {
		case column:
			update += " AND fence_token <= $2"
		case guarded:
			err = fencing.Check(ctx, tx, f)
		case bound:
			err = fencing.Bind(ctx, tx, f)
		}
		if err == nil {
			err = pause(tx)
		}
		if err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, schema.Render(update, f.Schema), n, int64(f.Token))
		if err != nil {
			return err
		}
		if tag.RowsAffected() == 0 {
			return &fencing.StaleError{Resource: f.Name, Token: f.Token}
		}
		_, err = tx.Exec(ctx, schema.Render("INSERT INTO pglock.entries (token) VALUES ($1)", f.Schema), int64(f.Token))
		return err
	})
}

// holder is another process that holds locks.
type holder struct {
	t       *testing.T
	cmd     *exec.Cmd
	in      io.WriteCloser
	reports chan report
	stderr  strings.Builder
}

// startHolder starts a holder. The end of the test kills it.
func startHolder(t *testing.T, s spec) *holder {
	t.Helper()
	h := &holder{t: t, cmd: exec.Command(os.Args[0]), reports: make(chan report, 16)}
	h.cmd.Env = append(os.Environ(), holderVariable+"=1")
	h.cmd.Stderr = &h.stderr
	in, err := h.cmd.StdinPipe()
	ok(t, err)
	out, err := h.cmd.StdoutPipe()
	ok(t, err)
	h.in = in
	ok(t, h.cmd.Start())
	go func() {
		defer close(h.reports)
		for all := json.NewDecoder(out); ; {
			var r report
			if all.Decode(&r) != nil {
				return // it has ended
			}
			h.reports <- r
		}
	}()
	t.Cleanup(func() {
		_ = h.cmd.Process.Kill() // it may have ended
		for range h.reports {    // until its output ends
		}
		_ = h.cmd.Wait() // killed
	})
	first, err := json.Marshal(s)
	ok(t, err)
	h.tell(string(first))
	return h
}

func (h *holder) tell(line string) {
	h.t.Helper()
	if _, err := fmt.Fprintln(h.in, line); err != nil {
		h.t.Fatalf("%v: %s", err, &h.stderr)
	}
}

// hear returns the holder's next report.
func (h *holder) hear() report {
	h.t.Helper()
	select {
	case r, ok := <-h.reports:
		if !ok || r.Error != "" {
			h.t.Fatalf("the holder said %q: %s", r.Error, &h.stderr)
		}
		return r
	case <-time.After(30 * time.Second):
		h.t.Fatalf("the holder says nothing: %s", &h.stderr)
		return report{}
	}
}
