package leasetable

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/fencing"
)

// Row is the row of a lock and its queue.
type Row struct {
	Name       string
	Token      fencing.Token
	Version    int64
	Holder     string // empty if released
	Labels     string // JSON
	AcquiredAt time.Time
	Remaining  time.Duration
	Age        time.Duration // since AcquiredAt

	LastHolder string // of the last grant that is over
	LastEnd    string // released, expired or revoked; empty if no grant is over
	EndedAt    *time.Time
	Reason     string  // of a revocation
	Request    *string // the reason of a request to release the lock, or nil

	Waiters []Waiter // in the order of the queue

	Capacity int           // the number of permits; 0: the lock has one holder
	Shared   []SharedGrant // that are live, in the order of tokens
}

// SharedGrant is a live grant of some of the permits of a name.
type SharedGrant struct {
	Token      fencing.Token
	Weight     int
	Holder     string
	Labels     string // JSON
	AcquiredAt time.Time
	Remaining  time.Duration
	Age        time.Duration // since AcquiredAt
	Request    *string       // the reason of a request to release it, or nil
}

// Waiter is a client in the queue.
type Waiter struct {
	Holder string // the name that it would hold the lock with
	Ticket int64
	Waited time.Duration
}

// scan reads a row of row.sql. The columns in front are into.
func (row *Row) scan(r pgx.Rows, into ...any) error {
	var left, age int64
	var holders []string
	var tickets, waited []int64
	var shared struct {
		tokens, weights, remaining, ages []int64
		holders, labels                  []string
		since                            []time.Time
		requests                         []*string
	}
	err := r.Scan(append(into, &row.Name, &row.Token, &row.Version, &row.Holder, &row.Labels, &row.AcquiredAt, &left, &age,
		&row.LastHolder, &row.LastEnd, &row.EndedAt, &row.Reason, &row.Request, &holders, &tickets, &waited, &row.Capacity,
		&shared.tokens, &shared.weights, &shared.holders, &shared.labels, &shared.since, &shared.remaining, &shared.ages, &shared.requests)...)
	if err != nil {
		return err
	}
	row.Remaining, row.Age = time.Duration(left)*time.Microsecond, time.Duration(age)*time.Microsecond
	for i, holder := range holders {
		row.Waiters = append(row.Waiters, Waiter{holder, tickets[i], time.Duration(waited[i]) * time.Microsecond})
	}
	for i, token := range shared.tokens {
		row.Shared = append(row.Shared, SharedGrant{
			Token: fencing.Token(token), Weight: int(shared.weights[i]), Holder: shared.holders[i], Labels: shared.labels[i],
			AcquiredAt: shared.since[i], Remaining: time.Duration(shared.remaining[i]) * time.Microsecond,
			Age: time.Duration(shared.ages[i]) * time.Microsecond, Request: shared.requests[i],
		})
	}
	return nil
}

// Get reads the row of a lock, and reports whether there is one.
func (s *Store) Get(ctx context.Context, name string) (row Row, found bool, err error) {
	p, err := s.page(ctx, s.sql.get, name)
	if err != nil || len(p.Rows) == 0 {
		return Row{}, false, err
	}
	return p.Rows[0], true, nil
}

// Filter selects locks. Empty fields select all.
type Filter struct {
	Held    bool
	Prefix  string
	Pattern string // of LIKE
	Holder  string
	Labels  string // JSON
}

// listStep is the number of rows that one statement examines: see sql/list.sql.
const listStep = 500

// Page is the result of one step of listing.
type Page struct {
	Rows []Row
	Last string // name of the last row that was examined
	Done bool   // there are no further rows
	seen int    // the number of rows that were examined
}

// List examines some rows whose names follow after, and returns those that match.
func (s *Store) List(ctx context.Context, after string, f Filter) (Page, error) {
	return s.page(ctx, s.sql.list, after, f.Held, f.Prefix, f.Pattern, f.Holder, f.Labels)
}

// page sends a statement that ends with row.sql.
func (s *Store) page(ctx context.Context, sql string, args ...any) (p Page, err error) {
	err = s.twice(ctx, func(ctx context.Context) error {
		p = Page{} // without the rows of an attempt that failed half-way
		_, err := s.send(ctx, statement{sql, args, func(r pgx.Rows) error {
			values := r.RawValues()
			if values[2] != nil {
				p.Rows = append(p.Rows, Row{})
				return p.Rows[len(p.Rows)-1].scan(r, &p.seen, &p.Last)
			}
			into := make([]any, len(values)) // no row matches
			into[0], into[1] = &p.seen, &p.Last
			return r.Scan(into...)
		}})
		return err
	})
	p.Done = p.seen < listStep
	return p, err
}
