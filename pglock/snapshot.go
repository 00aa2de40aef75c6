package pglock

import (
	"cmp"
	"context"
	_ "embed"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"

	"github.com/pglock/pglock-go/advisory"
	"github.com/pglock/pglock-go/internal/pgtx"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/pglock/inspect"
)

var (
	//go:embed sql/server.sql
	serverSQL string
	//go:embed sql/guards.sql
	guardsSQL string
	//go:embed sql/nested.sql
	nestedSQL string
	//go:embed sql/once.sql
	onceSQL string
	//go:embed sql/schedules.sql
	schedulesSQL string
	//go:embed sql/sessions.sql
	sessionsSQL string
	//go:embed sql/actions.sql
	actionsSQL string
)

// Snapshot returns what there is in the schema of the client: locks, waiters, permits, elections,
// schedules, idempotency keys without an outcome, advisory locks, sessions, the last actions of
// operators, and the state of the server. It changes nothing, and needs no more rights than migrations.WithReader grants. The
// sessions of other roles are complete only for a member of pg_read_all_stats.
//
// It reads all rows of the locks once, and memory is needed for those within the limit. The error
// is that of the first part that fails.
func (c *Client) Snapshot(ctx context.Context, q inspect.Query) (s inspect.Snapshot, err error) {
	limit := cmp.Or(q.Limit, 500)
	args, err := filterArgs(q.Filter)
	switch {
	case err != nil:
		return s, err
	case limit < 0 || q.Offset < 0:
		return s, invalidOption("snapshot: limit %d or offset %d is out of range: must be 0 or more", limit, q.Offset)
	}
	if err := c.beginCall(); err != nil {
		return s, err
	}
	defer c.endCall()
	var locks page
	for _, read := range []func() error{
		func() error {
			return readInto(ctx, c.store, &s, scanServer, schema.Render(serverSQL, c.cfg.schema), c.cfg.schema)
		},
		func() error {
			return readInto(ctx, c.store, &locks, (*page).scan, schema.Render(surveySQL+matchingSQL+rowSQL, c.cfg.schema),
				append([]any{""}, append(args, string(q.Order), limit, q.Offset)...)...)
		},
		readAll(ctx, c, &s.Nested, pgx.RowToStructByName, nestedSQL, limit),
		readAll(ctx, c, &s.Guards, pgx.RowToStructByName, guardsSQL, limit),
		readAll(ctx, c, &s.Once, pgx.RowToStructByName, onceSQL, limit),
		readAll(ctx, c, &s.Schedules, scanSchedule, schedulesSQL, limit),
		readAll(ctx, c, &s.Sessions, pgx.RowToStructByName, sessionsSQL, limit),
		readAll(ctx, c, &s.Actions, pgx.RowToStructByName, actionsSQL, limit),
		func() error {
			return c.WithConn(ctx, func(conn *pgx.Conn) (err error) { s.Advisory, err = advisory.Inspect(ctx, conn); return err })
		},
	} {
		if err := read(); err != nil {
			return s, c.explainIn(ctx, "snapshot", err)
		}
	}
	s.Names, s.Matching = locks.seen, locks.matching
	for _, row := range locks.rows {
		s.Locks = append(s.Locks, row.Lock)
	}
	s.Advisory = s.Advisory[:min(len(s.Advisory), limit)]
	return s, nil
}

// readAll returns a function that reads the rows of a statement, each of which scan returns, into
// *all.
func readAll[T any](ctx context.Context, c *Client, all *[]T, scan pgx.RowToFunc[T], sql string, limit int) func() error {
	return func() error {
		return readInto(ctx, c.store, all, func(all *[]T, r pgx.Rows) error {
			row, err := scan(r)
			*all = append(*all, row)
			return err
		}, schema.Render(sql, c.cfg.schema), limit)
	}
}

func scanServer(s *inspect.Snapshot, r pgx.Rows) error {
	v := &s.Server
	return r.Scan(&s.At, &v.Version, &v.Database, &v.User, &v.Connections, &v.MaxConnections, &v.Sessions, &v.Listeners,
		&v.NotifyQueue, (*pgtx.Micros)(&v.OldestTransaction), &v.OldestTransactionWho, &v.DeadRows, &v.Held, &v.Waiting, &v.Started, &v.Standby, (*pgtx.Micros)(&v.Behind))
}

func scanSchedule(r pgx.CollectableRow) (s inspect.Schedule, err error) {
	var next, running string
	err = r.Scan(&s.Job, (*zeronull.Timestamptz)(&s.Last), &next, &running, &s.Holder, &s.Zone,
		(*zeronull.Timestamptz)(&s.Failed), &s.Attempts, &s.Error, (*zeronull.Timestamptz)(&s.Triggered))
	s.Next, s.Running = tickOf(next), tickOf(running)
	return s, err
}

// tickOf returns a tick that a label has, or the zero time.
func tickOf(label string) time.Time {
	tick, _ := time.Parse(time.RFC3339Nano, label)
	return tick
}
