// Package doctor checks whether pglock can work with a database: the connection, the server, the
// tables, the rights of a role, and what slows locks down later. It changes nothing, needs no
// superuser, and waits for a bounded time only.
//
//	connect ── fails ──▶ one result
//	   │
//	each section of doctor.sql, then each probe ── the connection is lost ──▶ a failure, and no more
package doctor

import (
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock/pglock-go/internal/pgtx"
	"github.com/pglock/pglock-go/internal/schema"
)

// Level says how bad a result is.
type Level string

// The levels. With Warn, locks work, but get slower, or a crash may harm them. With Fail, they do
// not work or are not safe. With Skip, the role may not look, so the check has found nothing out.
const (
	OK   Level = "ok"
	Warn Level = "warn"
	Fail Level = "fail"
	Skip Level = "skip"
)

// Result is what one check has found. A check has one result, or one for each problem.
type Result struct {
	Check  string `json:"check"`
	Level  Level  `json:"level"`
	Found  string `json:"found"`
	Remedy string `json:"remedy,omitempty"` // of OK: how to see more
}

// Text returns what was found, with the remedy.
func (r Result) Text() string { return strings.TrimSuffix(r.Found+": "+r.Remedy, ": ") }

// Config says what to check.
type Config struct {
	Conn   *pgx.ConnConfig
	Schema string
	Role   string // what that of the connection is for: one of Roles, or Screen; empty: the first
	Limits Limits
	// ExplainConnect returns the error to show for one of connecting, without a password.
	ExplainConnect func(error) error
}

// Roles are what a role may be for: see the grant functions of the migrations.
var Roles = []string{"user", "writer", "owner", "reader"}

// Screen is for a role that looks at locks: a user if it may acquire them, and a reader otherwise.
const Screen = "screen"

// Limits are the bounds of waits, and the numbers from which on a check warns. Those with a name in
// JSON are for doctor.sql.
type Limits struct {
	Connect         time.Duration `json:"-"` // for the connection, unless Conn has a limit
	Answer          time.Duration `json:"-"` // for each answer of the server, beside the time of the statement
	Scan            time.Duration `json:"-"` // for each section of doctor.sql
	Deliver         time.Duration `json:"-"` // for the delivery of a notification
	ClockDifference time.Duration `json:"-"`

	OldestServer    int     `json:"oldest_server"`    // major version
	LongTransaction float64 `json:"long_transaction"` // in seconds
	XIDs            int64   `json:"xids"`             // age of what a slot or a standby holds back, in transactions
	DeadRows        int64   `json:"dead_rows"`        // of a table, beyond five times its live ones
	BloatedSize     int64   `json:"bloated_size"`     // of a table in bytes, if the rows need less than a tenth of it
	IdleRows        int64   `json:"idle_rows"`        // names that were idle for IdleFor
	IdleFor         float64 `json:"idle_for"`         // in seconds, beyond the default retention
	Headroom        int64   `json:"headroom"`         // connections
	QueueUsage      float64 `json:"queue_usage"`      // part of the notification queue, 0 to 1
}

// DefaultLimits returns the limits of the command.
func DefaultLimits() Limits {
	return Limits{
		Connect: 5 * time.Second, Answer: 2 * time.Second, Scan: time.Second, Deliver: time.Second, ClockDifference: 5 * time.Second,
		OldestServer: 13, LongTransaction: 300, XIDs: 100_000, DeadRows: 10_000, BloatedSize: 32 << 20,
		IdleRows: 1000, IdleFor: 48 * 3600, Headroom: 10, QueueUsage: 0.5,
	}
}

//go:embed doctor.sql
var checksSQL string

// step is a section of doctor.sql or a probe. Its name stands for its checks if it fails itself.
type step struct {
	name string
	run  func(context.Context) ([]Result, error)
}

type checker struct {
	Config
	conn      *pgx.Conn
	untrusted bool // nothing of the schema may be used
}

// Run makes all checks in turn. ctx ends it early.
func Run(ctx context.Context, config Config) []Result {
	c := &checker{Config: config}
	results := []Result{c.connect(ctx)}
	if c.conn == nil {
		return results
	}
	defer func() { _ = pgtx.CleanUp(ctx, c.conn.Close) }() // also after the end of ctx
	for _, step := range c.steps() {
		found, err := step.run(ctx)
		results = append(results, found...)
		if err == nil {
			continue
		}
		r := c.unchecked(step.name, err)
		lost := c.conn.IsClosed() || ctx.Err() != nil
		if lost {
			r.Found += ", later checks are left out"
		}
		if results = append(results, r); lost {
			break
		}
	}
	bad := map[string]bool{}
	for _, r := range results {
		bad[r.Check] = bad[r.Check] || r.Level != OK
	}
	return slices.DeleteFunc(results, func(r Result) bool { return r.Found == "" || r.Level == OK && bad[r.Check] })
}

// steps returns what Run does after connecting: the sections of doctor.sql, and what SQL can't see.
func (c *checker) steps() []step {
	steps := []step{{"schema", c.checkOwner}, {"schema", c.checkObjects}}
	head, sections, _ := strings.Cut(checksSQL, "-- section: ")
	for section := range strings.SplitSeq(sections, "-- section: ") {
		name, body, _ := strings.Cut(section, "\n")
		sql := schema.Render(head+body, c.Schema)
		uses := strings.Contains(sql, schema.Quote(c.Schema)+".")
		steps = append(steps, step{name, func(ctx context.Context) ([]Result, error) {
			if uses && c.untrusted {
				return nil, nil
			}
			return c.query(ctx, sql)
		}})
	}
	return append(steps, step{"pooler", c.checkPooler}, step{"notifications", c.checkNotifications}, step{"clock", c.checkClock})
}

// query returns the rows of a statement of doctor.sql. Its settings end with its transaction, so
// they stay out of the sessions of a pooler.
func (c *checker) query(ctx context.Context, sql string) ([]Result, error) {
	ctx, cancel := context.WithTimeout(ctx, c.Limits.Answer+c.Limits.Scan)
	defer cancel()
	begin := fmt.Sprintf("BEGIN READ ONLY; SET LOCAL statement_timeout = %d; SET LOCAL search_path = pg_catalog, pg_temp; SET LOCAL jit = off",
		max(c.Limits.Scan.Milliseconds(), 1))
	if _, err := c.conn.PgConn().Exec(ctx, begin).ReadAll(); err != nil {
		return nil, err
	}
	params, err := json.Marshal(struct {
		Limits
		Schema  string `json:"schema"`
		Word    string `json:"word"`   // for a shell
		Wanted  string `json:"wanted"` // kind of role
		Version int    `json:"version"`
	}{c.Limits, c.Schema, schema.ShellWord(c.Schema), cmp.Or(c.Role, Roles[0]), schema.Version})
	if err != nil {
		return nil, err
	}
	rows, _ := c.conn.Query(ctx, sql, string(params)) // CollectRows returns its error
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Result])
	if c.conn.IsClosed() {
		return found, err
	}
	_, rollbackErr := c.conn.Exec(ctx, "ROLLBACK")
	return found, errors.Join(err, rollbackErr)
}

// unchecked is the result of a step that failed itself. It is empty if an object is missing, which
// the check of the schema reports.
func (c *checker) unchecked(name string, err error) Result {
	var pg *pgconn.PgError
	_ = errors.As(err, &pg)
	switch state := pgtx.SQLState(err); state {
	case pgtx.InsufficientPrivilege:
		return Result{name, Skip, "the role may not look: " + pg.Message, "run doctor with a role that may see it"}
	case pgtx.FeatureNotSupported: // an unlogged table on a standby
		return Result{name, Skip, "can't be checked: " + pg.Message, "run doctor on the primary"}
	case pgtx.QueryCanceled:
		return Result{name, Warn, fmt.Sprintf("could not be read in %v: a table is large, or a session has locked it", c.Limits.Scan),
			"see dead rows and transactions, and run doctor again"}
	case pgtx.InvalidSchemaName, pgtx.UndefinedTable, pgtx.UndefinedColumn, pgtx.UndefinedFunction:
		return Result{}
	case "":
		if errors.Is(err, context.DeadlineExceeded) {
			return Result{name, Fail, "the server does not answer in time", "look at the server's load and log, then run doctor again"}
		}
		return Result{name, Fail, fmt.Sprintf("the connection failed: %v", err), "look at the server's log, then run doctor again"}
	default:
		return Result{name, Fail, fmt.Sprintf("can't be checked: %s (SQLSTATE %s)", pg.Message, state), "see the server's log"}
	}
}

// Failed reports whether a check has failed.
func Failed(results []Result) bool {
	return slices.ContainsFunc(results, func(r Result) bool { return r.Level == Fail })
}
