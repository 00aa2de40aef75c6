package doctor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// scan is what one pass over the lock table finds.
type scan struct {
	Complete      bool  // false: the table could not be read in time, and the rest is zero
	Rows, Held    int64 // names; a name with several holders counts once
	Expired       int64 // held, and neither released nor renewed
	Idle          int64 // for IdleFor
	Token, Ticket int64 // the highest ones, without forged tokens
	Forged        int64
	FutureSeconds float64 // of the latest grant
	PrunedSeconds float64 // since the last pruning; -1 if there was none
}

// scanLocks reads the lock table once, and keeps the result.
func (e *exam) scanLocks(ctx context.Context) (scan, error) {
	if e.scanned != nil {
		return *e.scanned, nil
	}
	ctx, cancel := context.WithTimeout(ctx, e.Limits.Scan+e.Limits.Answer)
	defer cancel()
	s := scan{Complete: true}
	err := pgx.BeginTxFunc(ctx, e.conn, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, fmt.Sprintf("SET LOCAL statement_timeout = %d", e.Limits.Scan.Milliseconds())); err != nil {
			return err
		}
		return tx.QueryRow(ctx, `
			SELECT count(*), count(*) FILTER (WHERE l.expires_at > clock_timestamp() OR l.capacity IS NOT NULL AND EXISTS (
			           SELECT FROM `+e.name("lock_permits")+` AS p WHERE p.name = l.name AND p.expires_at > clock_timestamp())),
			       count(*) FILTER (WHERE l.holder IS NOT NULL AND l.expires_at <= clock_timestamp()),
			       count(*) FILTER (WHERE greatest(l.acquired_at, l.expires_at, l.ended_at) < clock_timestamp() - $1::float8 * interval '1 second'
			           AND NOT (l.capacity IS NOT NULL AND EXISTS (SELECT FROM `+e.name("lock_permits")+` AS p WHERE p.name = l.name AND p.expires_at > clock_timestamp()))),
			       greatest(coalesce(max(l.token) FILTER (WHERE l.token < 4611686018427387904), 0),
			                (SELECT max(p.token) FROM `+e.name("lock_permits")+` AS p WHERE p.token < 4611686018427387904)),
			       coalesce(max(l.ticket) FILTER (WHERE l.ticket < 4611686018427387904), 0),
			       count(*) FILTER (WHERE greatest(l.token, l.ticket) >= 4611686018427387904)
			           + (SELECT count(*) FROM `+e.name("lock_permits")+` AS p WHERE p.token >= 4611686018427387904),
			       coalesce(extract(epoch FROM max(l.acquired_at) - clock_timestamp()), 0)::float8,
			       coalesce(extract(epoch FROM clock_timestamp() - max(l.acquired_at) FILTER (WHERE l.name = 'pglock:prune')), -1)::float8
			FROM `+e.name("distributed_locks")+` AS l`, e.Limits.IdleFor.Seconds()).
			Scan(&s.Rows, &s.Held, &s.Expired, &s.Idle, &s.Token, &s.Ticket, &s.Forged, &s.FutureSeconds, &s.PrunedSeconds)
	})
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == "57014" { // query_canceled: statement_timeout
		s, err = scan{}, nil
	}
	if err != nil {
		return s, err
	}
	e.scanned = &s
	return s, nil
}

// tooLarge is the result of a check that needs the scan.
func (e *exam) tooLarge() []Result {
	return []Result{warn(fmt.Sprintf("the lock table could not be read in %v: it is large, or a session has locked it", e.Limits.Scan), "see dead rows and transactions, and run doctor again")}
}

// checkTokens compares the sequence with the tokens in the table, as lift_fencing_tokens does for one
// name. It reads the sequence last: it only grows.
func (e *exam) checkTokens(ctx context.Context) ([]Result, error) {
	if !e.usable || e.standby {
		return nil, nil
	}
	s, err := e.scanLocks(ctx)
	if err != nil {
		return nil, err
	}
	if !s.Complete {
		return e.tooLarge(), nil
	}
	var byTimeline bool
	err = e.row(ctx, "SELECT p.prosrc LIKE '%pg_walfile_name%' FROM pg_catalog.pg_proc AS p WHERE p.proname = 'next_fencing_token' AND p.pronamespace = pg_catalog.to_regnamespace($1)",
		[]any{quoteSchema(e)}, &byTimeline)
	if err != nil {
		return nil, err
	}
	timeline, last := int64(1), int64(0)
	if byTimeline {
		err = e.row(ctx, "SELECT ('x' || pg_catalog.left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 8))::bit(32)::int8", nil, &timeline)
		if err != nil {
			return nil, err
		}
	}
	err = e.row(ctx, "SELECT coalesce(pg_catalog.pg_sequence_last_value($1::text::pg_catalog.regclass), 0)", []any{e.name("fencing_tokens")}, &last)
	if err != nil {
		return nil, err
	}
	var problems []Result
	const size = 1 << 44 // tokens of a timeline: see next_fencing_token
	before := (timeline - 1) * size
	if highest := max(s.Token-before, s.Ticket); highest > last {
		problems = append(problems, fail(fmt.Sprintf("the sequence is at %d, behind %d in the table: the next grants would get smaller tokens than earlier ones", last, highest),
			fmt.Sprintf("SELECT %s.lift_fencing_tokens(name) FROM (SELECT name FROM %s ORDER BY greatest(token - %d, ticket) DESC LIMIT 1) AS l",
				quoteSchema(e), e.name("distributed_locks"), before)))
	}
	if s.Forged > 0 {
		problems = append(problems, warn(fmt.Sprintf("%d rows have tokens that no sequence has reached: a role has written them", s.Forged), "find out which role may write "+e.name("distributed_locks")))
	}
	return orOK(problems, "highest %d, timeline %d, the sequence is at %d", s.Token, timeline, last)
}

// checkIdleRows: clients prune names that were idle for the retention, 24 h by default, and the queue
// rows of dead clients after a minute.
func (e *exam) checkIdleRows(ctx context.Context) ([]Result, error) {
	if !e.usable {
		return nil, nil
	}
	s, err := e.scanLocks(ctx)
	if err != nil {
		return nil, err
	}
	if !s.Complete {
		return e.tooLarge(), nil
	}
	var dead int64
	err = e.row(ctx, "SELECT count(*) FROM "+e.name("lock_waiters")+" AS w WHERE w.expires_at < clock_timestamp() - interval '1 hour'", nil, &dead)
	if err != nil {
		return nil, err
	}
	pruned := "never"
	if s.PrunedSeconds >= 0 {
		pruned = round(seconds(s.PrunedSeconds).Round(time.Second)).String() + " ago"
	}
	var problems []Result
	if s.Idle >= e.Limits.IdleRows {
		problems = append(problems, warn(fmt.Sprintf("%d of %d names have been idle for %v, last pruned: %s", s.Idle, s.Rows, e.Limits.IdleFor, pruned),
			"run a client without WithoutPruning, or call Client.Prune"))
	}
	if dead >= e.Limits.IdleRows {
		problems = append(problems, warn(fmt.Sprintf("%d queue rows of dead clients are left", dead), "run any client: it deletes them"))
	}
	return orOK(problems, "%d names, %d held, %d expired and not released, %d idle for %v, last pruned: %s", s.Rows, s.Held, s.Expired, s.Idle, e.Limits.IdleFor, pruned)
}
