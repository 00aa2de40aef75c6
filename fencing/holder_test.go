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
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/locktest"
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

// spec is what a holder finds in its environment.
type spec struct {
	URL, Schema string
	TTL         time.Duration
	Form        form
	Inside      bool // waits in the transaction, after the guard
	Unbounded   bool // takes the bound on idling away again
}

// counterSQL creates a table that holders increment by reading and writing, and one in which each
// write makes an entry in the same transaction.
const counterSQL = `
	CREATE TABLE pglock.counter (id int PRIMARY KEY, n int NOT NULL, fence_token bigint NOT NULL DEFAULT 0);
	INSERT INTO pglock.counter VALUES (1, 0);
	CREATE TABLE pglock.entries (at bigint GENERATED ALWAYS AS IDENTITY, token bigint NOT NULL);`

// hold is the main function of a holder. For each line of input it acquires the lock, reads, prints
// "ready", waits for the next line, writes, and prints the outcome of the write.
func hold(input string, lines io.Reader) error {
	var s spec
	if err := json.Unmarshal([]byte(input), &s); err != nil {
		return err
	}
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, s.URL)
	if err != nil {
		return err
	}
	defer pool.Close()
	client, err := pglock.Open(ctx, pool, pglock.WithSchema(s.Schema), pglock.WithTTL(s.TTL))
	if err != nil {
		return err
	}
	defer func() { _ = client.Close(ctx) }() // its leases may be lost
	for in := bufio.NewScanner(lines); in.Scan(); {
		lease, err := client.Acquire(ctx, "counter")
		if err != nil {
			return err
		}
		fmt.Fprintln(os.Stdout, s.increment(ctx, pool, lease.Fence(), func() {
			fmt.Fprintln(os.Stdout, "ready")
			in.Scan()
		}))
		_ = lease.Release(ctx) // as a rule it is lost by then
	}
	return nil
}

// increment reads the counter and writes it plus one, fenced in the holder's form. It calls pause
// before it writes, and returns "wrote", "refused", "paused" or the text of another error.
func (s spec) increment(ctx context.Context, pool *pgxpool.Pool, f fencing.Fence, pause func()) string {
	var n int
	if err := pool.QueryRow(ctx, schema.Render("SELECT n FROM pglock.counter", s.Schema)).Scan(&n); err != nil {
		return err.Error()
	}
	if !s.Inside {
		pause()
	}
	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		update := "UPDATE pglock.counter SET n = $1, fence_token = $2 WHERE id = 1"
		var err error
		switch s.Form {
		case column:
			update += " AND fence_token <= $2"
		case guarded:
			err = fencing.Check(ctx, tx, f)
		case bound:
			err = fencing.Bind(ctx, tx, f)
		}
		if err == nil && s.Unbounded {
			_, err = tx.Exec(ctx, "SET LOCAL idle_in_transaction_session_timeout = 0")
		}
		if err != nil {
			return err
		}
		if s.Inside {
			pause()
		}
		tag, err := tx.Exec(ctx, schema.Render(update, s.Schema), n+1, int64(f.Token))
		if err == nil && tag.RowsAffected() == 0 {
			err = fencing.ErrStale
		}
		if err == nil {
			_, err = tx.Exec(ctx, schema.Render("INSERT INTO pglock.entries (token) VALUES ($1)", s.Schema), int64(f.Token))
		}
		return err
	})
	switch err = fencing.Explain(err); {
	case err == nil:
		return "wrote"
	case errors.Is(err, fencing.ErrStale):
		return "refused"
	case errors.Is(err, fencing.ErrPaused):
		return "paused"
	default:
		return err.Error()
	}
}

// holder is another process that holds locks.
type holder struct {
	t    *testing.T
	cmd  *exec.Cmd
	in   io.Writer
	said chan string
}

// startHolder starts a holder. The end of the test kills it.
func startHolder(t *testing.T, s spec) holder {
	t.Helper()
	input, err := json.Marshal(s)
	ok(t, err)
	h := holder{t: t, cmd: exec.Command(os.Args[0]), said: make(chan string)}
	h.cmd.Env, h.cmd.Stderr = append(os.Environ(), holderVariable+"="+string(input)), os.Stderr
	h.in, err = h.cmd.StdinPipe()
	ok(t, err)
	out, err := h.cmd.StdoutPipe()
	ok(t, err)
	ok(t, h.cmd.Start())
	go func() {
		defer close(h.said)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			h.said <- lines.Text()
		}
	}()
	t.Cleanup(func() {
		_ = h.cmd.Process.Kill() // it may have ended
		for range h.said {       // until its output ends
		}
		_ = h.cmd.Wait() // killed
	})
	return h
}

// step sends the holder a line.
func (h holder) step() {
	h.t.Helper()
	_, err := fmt.Fprintln(h.in)
	ok(h.t, err)
}

// hear ends the test unless the holder prints that line next.
func (h holder) hear(line string) {
	h.t.Helper()
	if said := locktest.Receive(h.t, h.said); said != line {
		h.t.Fatalf("the holder said %q, want %q", said, line)
	}
}
