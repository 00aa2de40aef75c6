package backend_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/pgtx"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/leasetable"
	"github.com/pglock/pglock-go/pglock/internal/backend"
)

// protocol is a client in the words of docs/reference/sql-protocol.md.
type protocol struct {
	backend.Table // nil, for what the protocol lacks
	pool          *pgxpool.Pool
	schema        string
}

func newProtocol(_ context.Context, pool *pgxpool.Pool, name string) backend.Table {
	return protocol{pool: pool, schema: name}
}

// protocolLacks are the operations that clients in other languages don't have.
var protocolLacks = func() map[string]string {
	lacks := map[string]string{}
	for why, operations := range map[string]string{
		"acquire decides everything":          "AcquireFast; AcquireFast, of several names; AcquireFast, of several requests",
		"a call is about one name":            "AcquireSlots, of several names; ReleasePermits, of several names; Join, of several names; RefreshTickets, of several names; LeaveQueue, of several names; NestedWait, of several names; Revoke, of several names",
		"a call is about one grant":           "ReleaseBatch, of several requests; AcquireFull, of several requests; Renew, of several requests; CheckGrants, of several requests",
		"wait_ticket refreshes the ticket":    "Join, with a ticket; Join, with a ticket, of several names",
		"a ticket that has expired is lost":   "RefreshTickets, after its end",
		"a wait begins with its ticket":       "Join, after some time",
		"its waiters are in the queue":        "Join, without a listener",
		"only the Go package does it":         "HandOff; Adopt; Upgrade; KeepPermits; Resize; RenewReserved; Release, with a minimum hold; Revoke; DeleteRows; QuitQueue",
		"a view says it":                      "CheckGrants; GrantedTo; Send",
		"only people and the Go package do":   "RevokeGrant; RequestRelease; SetLabels; AwaitGuards",
		"only the Go package keeps the house": "Prune; LiftTokens; DeleteDeadRows",
		"its connection is its own":           "Close; Slots; Database; Latency; Suspect; Explain",
	} {
		for operation := range strings.SplitSeq(operations, "; ") {
			lacks[operation] = why
		}
	}
	return lacks
}()

// row sends a statement that returns a row.
func (p protocol) row(ctx context.Context, sql string, args ...any) pgx.Row {
	return p.pool.QueryRow(ctx, schema.Render(sql, p.schema), args...)
}

func (p protocol) exec(ctx context.Context, sql string, args ...any) error {
	_, err := p.pool.Exec(ctx, schema.Render(sql, p.schema), args...)
	return err
}

func (p protocol) Check(ctx context.Context) error {
	return p.exec(ctx, "SELECT pglock.check_client(pglock.pglock_schema_version())")
}

func (p protocol) Close(context.Context) {}

func (p protocol) AcquireFull(ctx context.Context, batch []*leasetable.Request) ([]leasetable.Grant, error) {
	g, err := p.AcquireSlots(ctx, batch[0])
	return []leasetable.Grant{g}, err
}

func (p protocol) AcquireSlots(ctx context.Context, r *leasetable.Request) (leasetable.Grant, error) {
	g := leasetable.Grant{Outcome: leasetable.Busy, Sent: time.Now()}
	var ticket *int64
	if r.Ticket != leasetable.NoTicket {
		ticket = &r.Ticket
	}
	var granted bool
	err := p.row(ctx, "SELECT granted, coalesce(token, 0), coalesce(held_by, ''), (extract(epoch FROM coalesce(remaining, '0')) * 1000000)::bigint, ahead "+
		"FROM pglock.acquire($1, $2, $3::bigint * interval '1 us', $4, $5::text::uuid, $6, $7, $8)",
		r.Name, r.Holder, r.TTL.Microseconds(), r.Labels, r.ID, ticket, r.Permits.Capacity, max(r.Permits.Weight, 1)).Scan(
		&granted, &g.Token, &g.Holder, (*pgtx.Micros)(&g.Remaining), &g.Ahead)
	var failure *pgconn.PgError
	switch {
	case granted:
		g.Outcome = leasetable.Granted
	case errors.As(err, &failure) && failure.Code == "PGL11":
		_, permits, _ := strings.Cut(failure.Message, "it has ")
		permits, _, _ = strings.Cut(permits, " ")
		g.Capacity, err = strconv.Atoi(permits)
		g.Outcome = leasetable.OtherKind
	case errors.As(err, &failure) && failure.Code == "PGL12":
		return leasetable.Grant{Outcome: leasetable.RequestEnded}, nil
	}
	return g, err
}

func (p protocol) Renew(ctx context.Context, all []leasetable.Extension) (map[fencing.Fence]leasetable.Renewal, error) {
	r := leasetable.Renewal{Outcome: leasetable.Granted, Sent: time.Now()}
	err := p.row(ctx, "SELECT (extract(epoch FROM remaining) * 1000000)::bigint, release_request FROM pglock.renew($1, $2, $3::bigint * interval '1 us')",
		all[0].Fence.Name, int64(all[0].Fence.Token), all[0].TTL.Microseconds()).Scan((*pgtx.Micros)(&r.Remaining), &r.Request)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	return map[fencing.Fence]leasetable.Renewal{all[0].Fence: r}, err
}

func (p protocol) Release(ctx context.Context, f fencing.Fence, _ time.Duration) (released, notified bool, err error) {
	err = p.row(ctx, "SELECT pglock.release($1, $2)", f.Name, int64(f.Token)).Scan(&released)
	return released, false, err
}

func (p protocol) ReleasePermits(ctx context.Context, names []string, token fencing.Token, _ bool) (map[string]bool, error) {
	released, _, err := p.Release(ctx, fencing.Fence{Name: names[0], Token: token}, 0)
	if !released {
		return nil, err
	}
	return map[string]bool{names[0]: false}, err
}

func (p protocol) Join(ctx context.Context, client string, r *leasetable.Request, _ time.Duration, _ bool) (leasetable.Position, error) {
	return p.ticket(ctx, r.Name, client, r.Holder, r.Permits.Weight)
}

func (p protocol) ticket(ctx context.Context, name, client, holder string, weight int) (leasetable.Position, error) {
	at := leasetable.Position{State: leasetable.Queued, Free: true}
	err := p.row(ctx, "SELECT ticket, ahead FROM pglock.wait_ticket($1, $2, $3, $4)", name, client, holder, max(weight, 1)).Scan(&at.Ticket, &at.Ahead)
	return at, err
}

// RefreshTickets refreshes a ticket as what it is. A new one stands for one that was lost.
func (p protocol) RefreshTickets(ctx context.Context, tickets []leasetable.Ticket, _ bool) ([]leasetable.Position, error) {
	t := tickets[0]
	weight := 1
	err := p.row(ctx, "SELECT max(weight) FROM pglock.lock_waiters WHERE client = $1 AND name = $2 HAVING count(*) > 0", t.Client, t.Names[0]).Scan(&weight)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return nil, err
	}
	at, err := p.ticket(ctx, t.Names[0], t.Client, "a client", weight)
	if err == nil && at.Ticket != t.Number {
		at.State, err = leasetable.Lost, p.LeaveQueue(ctx, t)
	}
	return []leasetable.Position{at}, err
}

func (p protocol) LeaveQueue(ctx context.Context, t leasetable.Ticket) error {
	return p.exec(ctx, "SELECT pglock.leave($1, $2)", t.Names[0], t.Client)
}

func (p protocol) Watch(ctx context.Context, name, channel string) error {
	return p.exec(ctx, "SELECT pglock.watch($1, $2)", name, channel)
}

func (p protocol) Notify(ctx context.Context, channel string) error {
	return p.exec(ctx, "SELECT pg_notify($1, '')", channel)
}

func (p protocol) Listen(ctx context.Context, shared string, channels ...string) (backend.Listener, error) {
	conn, err := pgx.ConnectConfig(ctx, p.pool.Config().ConnConfig)
	if err != nil {
		return nil, err
	}
	for _, channel := range append(channels, shared) {
		if _, err := conn.Exec(ctx, "LISTEN "+schema.Quote(channel)); err != nil {
			return nil, errors.Join(err, conn.Close(ctx))
		}
	}
	return conn, nil
}

func (p protocol) NestedWait(ctx context.Context, w *leasetable.NestedWait) (cycle string, err error) {
	var ticket *int64
	if w.Ticket != leasetable.NoTicket {
		ticket = &w.Ticket
	}
	holds := make([]int64, len(w.Holds))
	for i, token := range w.Holds {
		holds[i] = int64(token)
	}
	err = p.row(ctx, "SELECT coalesce(pglock.nested_wait(ARRAY[$1::text], ARRAY[$2::integer], $3, $4, $5::text::uuid, $6), '')",
		w.Name, max(w.Permits.Weight, 1), holds, w.Holder, w.ID, ticket).Scan(&cycle)
	return cycle, err
}

func (p protocol) EndNestedWait(ctx context.Context, id string) error {
	return p.exec(ctx, "SELECT pglock.end_nested_wait($1::text::uuid)", id)
}

func (p protocol) guard(ctx context.Context, tx fencing.Tx, f fencing.Fence) error {
	rows, err := tx.(pgx.Tx).Exec(ctx, schema.Render("SELECT pglock.guard($1, $2)", p.schema), f.Name, int64(f.Token))
	if err == nil && rows.RowsAffected() != 1 {
		err = fmt.Errorf("%d rows", rows.RowsAffected())
	}
	return fencing.Explain(err)
}
