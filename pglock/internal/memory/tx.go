package memory

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/pglock/internal/backend"
	"github.com/pglock/pglock-go/pglock/internal/link"
)

// tx is a transaction that answers the statements of package fencing, and every other one with
// ErrNoDatabase. Where a server keeps a guarded grant until the end of the transaction, the commit
// judges it again.
type tx struct {
	pgx.Tx  // nil, for the methods that no statement needs
	store   *Store
	effects []func() // of the commit
	broken  error    // why its connection is gone

	// Guarded by the server's mu:
	judged []func() error  // of the grants that are guarded, and of the marks
	raised []fencing.Fence // the marks
	jobs   []func()        // what the commit changes of jobs
	over   error           // what a statement gets after one that has failed, or after the end
}

// Begin begins a transaction.
func (c *Store) Begin(ctx context.Context) (pgx.Tx, error) {
	return ask[pgx.Tx](ctx, c, Message{Op: "begin"}, func() pgx.Tx { return &tx{store: c} })
}

// job is a row of scheduled_jobs.
type job struct {
	failed    int64
	attempts  int32
	triggered int64
}

// change changes the row of a job, or makes one, with the commit.
func (t *tx) change(name string, change func(j *job)) {
	t.jobs = append(t.jobs, func() {
		j := t.store.server.jobs[name]
		change(&j)
		t.store.server.jobs[name] = j
	})
}

// trigger is trigger_job of the migration.
func (t *tx) trigger(name string) (row []any) {
	j, known := t.store.server.jobs[name]
	mark, latest := int64(t.store.server.marks[schema.LastTick+name]), time.Now().Add(time.Minute).UnixMicro()
	switch {
	case !known && mark == 0:
		return []any{"unknown", int64(0)}
	case len(t.store.server.lock(name).live(time.Now())) > 0:
		return []any{"running", int64(0)}
	case mark > latest:
		return []any{"ahead", mark}
	case j.triggered <= mark || j.triggered > latest:
		j.triggered = max(time.Now().UnixMicro(), mark+1)
		t.change(name, func(row *job) { row.triggered = j.triggered })
	}
	return []any{"triggered", j.triggered}
}

// OnCommit adds an effect to those of a commit, which the network is told, and reports false if
// t is no transaction of a Store.
func OnCommit(t pgx.Tx, effect func()) bool {
	own, ok := t.(*tx)
	if ok {
		own.effects = append(own.effects, effect)
	}
	return ok
}

// InTx does not exclude others by the key, because the commit judges the grants and marks again.
func (c *Store) InTx(ctx context.Context, _ advisory.Key, fn func(ctx context.Context, tx pgx.Tx) error) error {
	return pgx.BeginFunc(ctx, c, func(t pgx.Tx) error { return fn(ctx, t) })
}

// run runs a statement on the connection of the transaction, which does not outlive a lost answer.
func (t *tx) run(ctx context.Context, m Message, statement func() (row []any, err error)) (row []any, err error) {
	if t.broken != nil {
		return nil, errs.Errorf("pglocktest: the connection of the transaction is gone: %w", t.broken)
	}
	row, err = run(ctx, t.store, m, func() (row []any, err error) {
		if t.over != nil {
			return nil, t.over
		}
		if row, err = statement(); err != nil && t.over == nil {
			t.over = pgx.ErrTxCommitRollback
		}
		return row, err
	})
	if link.ConnectionFailed(err) || ctx.Err() != nil {
		t.broken = err
	}
	return row, err
}

func (t *tx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	return t.query(ctx, "query", sql, args)
}

func (t *tx) query(ctx context.Context, op, sql string, args []any) (a answer) {
	a.row, a.err = t.run(ctx, Message{Op: op}, func() (row []any, err error) {
		switch {
		case strings.Contains(sql, ".job_state("):
			name := args[0].(string)
			j := t.store.server.jobs[name]
			row = []any{time.Now(), int64(t.store.server.marks[schema.LastTick+name]), j.failed, j.attempts, j.triggered}
		case strings.Contains(sql, ".trigger_job("):
			row = t.trigger(args[0].(string))
		case strings.Contains(sql, ".scheduled_jobs "):
			t.change(args[0].(string), func(j *job) {
				if len(args) > 1 { // a failure
					j.failed, j.attempts = args[1].(int64), int32(args[2].(int)) //nolint:gosec // at most 101
				}
			})
		case strings.Contains(sql, ".check_fence("):
			f, refused := t.guard(args)
			row = []any{f.Name, f.Token, refused == nil, t.store.server.lock(f.Name).token, "read committed"}
		case strings.Contains(sql, ".bind("):
			_, err = t.guard(args)
			for _, f := range fences(args) {
				if l, g := t.store.findLive(f); g != nil && l.capacity > 0 && !g.whole {
					return nil, &pgconn.PgError{Code: "PGL10", Message: fmt.Sprintf("pglock: the grant %d of %q is one of several at the same time", f.Token, f.Name)}
				}
			}
		case strings.Contains(sql, ".advance("):
			t.raised = append(t.raised, fences(args)...)
			err = t.keep(t.store.advance, t.raised[len(t.raised)-1])
		default:
			err = backend.ErrNoDatabase
		}
		return row, err
	})
	return a
}

// fences returns the arguments of a statement: a name and a token, or several as JSON.
func fences(args []any) (all []fencing.Fence) {
	if len(args) == 2 {
		return []fencing.Fence{{Name: args[0].(string), Token: fencing.Token(args[1].(int64))}}
	}
	var rows []struct {
		Name  string
		Token fencing.Token
	}
	_ = json.Unmarshal([]byte(args[0].(string)), &rows) // of package fencing
	for _, r := range rows {
		all = append(all, fencing.Fence{Name: r.Name, Token: r.Token})
	}
	return all
}

// keep judges now and, if that succeeds, again at the commit.
func (t *tx) keep(judge func(f fencing.Fence) error, f fencing.Fence) error {
	err := judge(f)
	if err == nil {
		t.judged = append(t.judged, func() error { return judge(f) })
	}
	return err
}

// guard guards grants up to the first that is refused, and returns the last of them.
func (t *tx) guard(args []any) (f fencing.Fence, err error) {
	for _, f = range fences(args) {
		if err = t.keep(t.store.guard, f); err != nil {
			break
		}
	}
	return f, err
}

func (t *tx) Commit(ctx context.Context) error {
	_, err := t.run(ctx, Message{Op: "commit", About: t.effects}, func() (row []any, err error) {
		t.over = pgx.ErrTxClosed
		for _, judge := range t.judged {
			if err := judge(); err != nil {
				return nil, err
			}
		}
		for _, m := range t.raised {
			t.store.server.marks[m.Name] = max(m.Token, t.store.server.marks[m.Name])
		}
		for _, change := range t.jobs {
			change()
		}
		return nil, nil
	})
	return fencing.Explain(err)
}

// Rollback needs no message: the server ends a transaction whose connection is gone.
func (t *tx) Rollback(context.Context) error {
	t.store.server.mu.Lock()
	defer t.store.server.mu.Unlock()
	t.over = pgx.ErrTxClosed
	return nil
}

func (t *tx) Exec(ctx context.Context, sql string, args ...any) (tag pgconn.CommandTag, err error) {
	return tag, t.query(ctx, "exec", sql, args).err
}

func (t *tx) Query(context.Context, string, ...any) (pgx.Rows, error) {
	return nil, backend.ErrNoDatabase
}

func (t *tx) Begin(context.Context) (pgx.Tx, error) { return nil, backend.ErrNoDatabase }

func (t *tx) Conn() *pgx.Conn { return nil }

// answer is the row of a statement, or its error.
type answer struct {
	row []any
	err error
}

func (a answer) Scan(dest ...any) error {
	for i, d := range dest[:min(len(dest), len(a.row))] {
		reflect.ValueOf(d).Elem().Set(reflect.ValueOf(a.row[i]))
	}
	return a.err
}

// guard is guard of the migration.
func (c *Store) guard(f fencing.Fence) error {
	if l, g := c.findLive(f); g == nil {
		return stale(f, l.token)
	}
	return nil
}

// advance is that of the migration, before it raises the mark.
func (c *Store) advance(f fencing.Fence) error {
	if mark := c.server.marks[f.Name]; mark > f.Token {
		return stale(f, mark)
	}
	return nil
}

// stale is raise_stale of the migration.
func stale(f fencing.Fence, newest fencing.Token) error {
	facts, _ := json.Marshal(fencing.StaleError{Resource: f.Name, Token: f.Token, Current: newest}) // a text and numbers
	return &pgconn.PgError{Code: "PGL01", Message: fmt.Sprintf("pglock: stale grant: %d of %q, the newest is %d", f.Token, f.Name, newest), Detail: string(facts)}
}
