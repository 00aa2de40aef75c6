// Package doctor checks whether pglock can work with a database: the connection, the server, the
// tables, the rights of a role, and what slows locks down later. It changes nothing, needs no
// superuser, and waits for a bounded time only.
//
//	connect ── fails ──▶ one result
//	   │
//	each check in turn ── no answer in time ──▶ a failure, and no further checks
package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock/pglock-go/internal/schema"
)

// Level tells how bad a result is.
type Level string

// The levels. With Warn, locks work, but get slower, or a crash may harm them. With Fail, they do not
// work or are not safe.
const (
	OK   Level = "ok"
	Warn Level = "warn"
	Fail Level = "fail"
)

// Result is what one check has found. A check has one result, or one for each problem.
type Result struct {
	Check  string `json:"check"`
	Level  Level  `json:"level"`
	Found  string `json:"found"`
	Remedy string `json:"remedy,omitempty"` // of OK: how to see more
}

// Config says what to check.
type Config struct {
	Conn   *pgx.ConnConfig
	Schema string
	Limits Limits
	// ExplainConnect returns the error to show for one of connecting, without a password.
	ExplainConnect func(error) error
}

// Limits are the bounds of waits, and the numbers from which on a check warns.
type Limits struct {
	Connect time.Duration // for the connection, unless Conn has a limit
	Answer  time.Duration // for each statement
	Scan    time.Duration // for reading the lock table
	Deliver time.Duration // for the delivery of a notification

	LongTransaction time.Duration
	XIDs            int64         // age of what a slot or a standby holds back, in transactions
	DeadRows        int64         // of a table, beyond five times its live ones
	BloatedSize     int64         // of a table in bytes, if the rows need less than a tenth of it
	IdleRows        int64         // names that were idle for IdleFor
	IdleFor         time.Duration // beyond the default retention
	Headroom        int64         // connections
	ClockDifference time.Duration
}

// DefaultLimits returns the limits of the command.
func DefaultLimits() Limits {
	return Limits{
		Connect: 5 * time.Second, Answer: 2 * time.Second, Scan: time.Second, Deliver: time.Second,
		LongTransaction: 5 * time.Minute, XIDs: 100_000, DeadRows: 10_000, BloatedSize: 32 << 20,
		IdleRows: 1000, IdleFor: 48 * time.Hour, Headroom: 10, ClockDifference: 5 * time.Second,
	}
}

// maxAhead is how far a machine's clock may be ahead of the database's: see schedule.ErrClock.
const maxAhead = time.Minute

// exam is one run of all checks.
type exam struct {
	Config
	conn *pgx.Conn
	server
	tables
}

// Run makes all checks in turn. ctx ends it early.
func Run(ctx context.Context, config Config) []Result {
	e := &exam{Config: config}
	results := e.connect(ctx)
	if e.conn == nil {
		return results
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), config.Limits.Answer)
		defer cancel()
		_ = e.conn.Close(ctx)
	}()
	for _, check := range []struct {
		name string
		run  func(context.Context) ([]Result, error)
	}{
		{"server", e.checkServer},
		{"schema", e.checkSchema},
		{"rights", e.checkRights},
		{"grants", e.checkGrants},
		{"pooler", e.checkPooler},
		{"notifications", e.checkNotifications},
		{"clock", e.checkClock},
		{"tokens", e.checkTokens},
		{"idle rows", e.checkIdleRows},
		{"dead rows", e.checkDeadRows},
		{"autovacuum", e.checkAutovacuum},
		{"transactions", e.checkTransactions},
		{"prepared transactions", e.checkPrepared},
		{"replication slots", e.checkSlots},
		{"durability", e.checkDurability},
		{"idle timeout", e.checkIdleTimeout},
		{"connections", e.checkConnections},
	} {
		found, err := check.run(ctx)
		for _, r := range found {
			r.Check = check.name
			results = append(results, r)
		}
		if err == nil {
			continue
		}
		r := unchecked(check.name, err)
		if e.conn.IsClosed() || ctx.Err() != nil {
			r.Found += ", later checks are left out"
			results = append(results, r)
			break
		}
		results = append(results, r)
	}
	return results
}

// unchecked is the result of a check that failed itself.
func unchecked(check string, err error) Result {
	var pg *pgconn.PgError
	switch {
	case errors.As(err, &pg) && pg.Code != "42501":
		return Result{check, Fail, fmt.Sprintf("can't be checked: %s (SQLSTATE %s)", pg.Message, pg.Code), "see the server's log"}
	case pg != nil:
		return Result{check, Warn, fmt.Sprintf("can't be checked: %s (SQLSTATE %s)", pg.Message, pg.Code), "run doctor with a role that may see it"}
	case errors.Is(err, context.DeadlineExceeded):
		return Result{check, Fail, "the server does not answer in time", "look at the server's load and log, then run doctor again"}
	}
	return Result{check, Fail, fmt.Sprintf("the connection failed: %v", err), "look at the server's log, then run doctor again"}
}

func ok(format string, args ...any) []Result {
	return []Result{{Level: OK, Found: fmt.Sprintf(format, args...)}}
}

func warn(found, remedy string) Result { return Result{Level: Warn, Found: found, Remedy: remedy} }

func fail(found, remedy string) Result { return Result{Level: Fail, Found: found, Remedy: remedy} }

// orOK returns the problems, or one result that says that there are none.
func orOK(problems []Result, format string, args ...any) ([]Result, error) {
	if len(problems) == 0 {
		return ok(format, args...), nil
	}
	return problems, nil
}

// row reads one row.
func (e *exam) row(ctx context.Context, sql string, args []any, into ...any) error {
	ctx, cancel := context.WithTimeout(ctx, e.Limits.Answer)
	defer cancel()
	return e.conn.QueryRow(ctx, sql, args...).Scan(into...)
}

// rows reads all rows of a query whose columns are those of T.
func rows[T any](ctx context.Context, e *exam, sql string, args ...any) ([]T, error) {
	ctx, cancel := context.WithTimeout(ctx, e.Limits.Answer)
	defer cancel()
	found, err := e.conn.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(found, pgx.RowToStructByPos[T])
}

// name returns the quoted name of an object in the schema.
func (e *exam) name(object string) string { return schema.Quote(e.Schema) + "." + schema.Quote(object) }

// round rounds a duration for people.
func round(d time.Duration) time.Duration {
	switch {
	case d.Abs() > time.Minute:
		return d.Round(time.Second)
	case d.Abs() > time.Second:
		return d.Round(100 * time.Millisecond)
	}
	return d.Round(100 * time.Microsecond)
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// Failed reports whether a check has failed.
func Failed(results []Result) bool {
	return slices.ContainsFunc(results, func(r Result) bool { return r.Level == Fail })
}
