package pglock

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"iter"
	"math"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype/zeronull"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/pgtx"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/pglock/inspect"
	"github.com/pglock/pglock-go/pglock/internal/backend"
)

// listStep is the number of rows that one statement examines: see sql/list.sql.
const listStep = 500

var (
	//go:embed sql/get.sql
	getSQL string
	//go:embed sql/list.sql
	listSQL string
	//go:embed sql/survey.sql
	surveySQL string
	//go:embed sql/matching.sql
	matchingSQL string // the middle of the last two
	//go:embed sql/row.sql
	rowSQL string // the end of all
)

// Get returns information about the lock of that name, which may have changed since. The error
// wraps ErrNotFound if the lock is free because the name was never granted or its row has been
// pruned.
func (c *Client) Get(ctx context.Context, name string) (inspect.Lock, error) {
	if err := CheckName(name); err != nil {
		return inspect.Lock{Name: name}, err
	}
	if err := c.beginCall(); err != nil {
		return inspect.Lock{Name: name}, err
	}
	defer c.endCall()
	row, found, err := c.store.Get(ctx, name)
	switch {
	case err != nil:
		return row.Lock, c.explainIn(ctx, fmt.Sprintf("get %q", name), err)
	case !found:
		return row.Lock, errs.Errorf("%w: %q", ErrNotFound, name)
	}
	return row.Lock, nil
}

// likePattern turns a Filter's Pattern into one of LIKE.
var likePattern = strings.NewReplacer(`\`, `\\`, `%`, `\%`, `_`, `\_`, `*`, `%`, `?`, `_`)

// filterArgs returns the arguments $2 to $9 of matching.sql.
func filterArgs(f inspect.Filter) ([]any, error) {
	for what, text := range map[string]string{"prefix": f.Prefix, "pattern": f.Pattern, "holder": f.Holder} {
		if !storable(text) {
			return nil, invalidOption("lock filter: %s %.64q: must be UTF-8 without NUL", what, text)
		}
	}
	labels, err := encodeLabels(f.Labels, math.MaxInt)
	return []any{f.Held, f.Prefix, likePattern.Replace(f.Pattern), f.Holder, labels, f.Waiting, f.Shared, f.Elections}, err
}

// Locks returns the locks that match filter, in the order of their names by the database's
// collation. A name without a row, new or pruned, has none.
//
// The locks are read in steps of some hundred rows, one statement each. In between, the client
// holds no connection and no snapshot, so locks of different steps may never have been in these
// states at the same time. An error ends the iteration, which ctx bounds as a whole.
func (c *Client) Locks(ctx context.Context, filter inspect.Filter) iter.Seq2[inspect.Lock, error] {
	return func(yield func(inspect.Lock, error) bool) {
		args, err := filterArgs(filter)
		if err != nil {
			yield(inspect.Lock{}, err)
			return
		}
		sql := schema.Render(listSQL+matchingSQL+rowSQL, c.cfg.schema)
		for p := (page{seen: listStep}); p.seen == listStep; {
			if p, err = c.readPage(ctx, sql, append([]any{p.last}, append(args, string(inspect.ByName), listStep, 0)...)); err != nil {
				yield(inspect.Lock{}, err)
				return
			}
			for _, row := range p.rows {
				if !yield(row.Lock, nil) {
					return
				}
			}
		}
	}
}

func (c *Client) readPage(ctx context.Context, sql string, args []any) (p page, err error) {
	if err := c.beginCall(); err != nil {
		return p, err
	}
	defer c.endCall()
	err = readInto(ctx, c.store, &p, (*page).scan, sql, args...)
	return p, c.explainIn(ctx, "list locks", err)
}

// page has the rows that a statement returns which ends with row.sql.
type page struct {
	rows     []backend.Row
	last     string // name of the last row that was examined
	seen     int    // the number of rows that were examined
	matching int    // the number of these that match
}

func (p *page) scan(r pgx.Rows) error {
	values := r.RawValues()
	if values[3] == nil { // no row matches, or none after the offset
		into := make([]any, len(values))
		into[0], into[1], into[2] = &p.seen, &p.last, &p.matching
		return r.Scan(into...)
	}
	var k backend.Row
	var capacity int
	var labels string
	var request *string
	var q waiterColumns
	var g grantColumns
	err := r.Scan(&p.seen, &p.last, &p.matching, &k.Name, &k.Token, &k.Version, &k.Holder, &labels, &k.AcquiredAt,
		(*pgtx.Micros)(&k.Remaining), (*pgtx.Micros)(&k.Age),
		&k.Previous.Holder, &k.Previous.End, (*zeronull.Timestamptz)(&k.Previous.EndedAt), &k.Previous.Reason, &request,
		&q.holders, &q.tickets, &q.waited, &q.weights,
		&capacity, &g.tokens, &g.weights, &g.holders, &g.labels, &g.since, &g.remaining, &g.ages, &g.requests, &k.Standby)
	if err != nil {
		return err
	}
	k.Labels = parseLabels(labels)
	if k.Held() {
		k.HeldFor = max(k.Age, 0)
	}
	k.ReleaseRequested, k.ReleaseReason = requested(request)
	k.SetKind(capacity)
	q.addTo(&k, capacity)
	g.addTo(&k)
	p.rows = append(p.rows, k)
	return nil
}

// waiterColumns and grantColumns are the columns of the queue and of the shared grants.
type waiterColumns struct {
	holders         []string
	tickets, waited []int64
	weights         []int
}

type grantColumns struct {
	tokens, remaining, ages []int64
	weights                 []int
	holders, labels         []string
	since                   []time.Time
	requests                []*string
}

func (q *waiterColumns) addTo(k *backend.Row, capacity int) {
	for i, holder := range q.holders {
		k.Waiters = append(k.Waiters, inspect.Waiter{
			Holder: holder, Ticket: q.tickets[i], Waited: micros(q.waited[i]),
			Permits: k.PermitsSeen(q.weights[i]), Exclusive: capacity > 0 && q.weights[i] == capacity,
		})
	}
}

func (g *grantColumns) addTo(k *backend.Row) {
	if k.Kind != inspect.OneHolder {
		k.Grants = k.Live()
	}
	for i, token := range g.tokens {
		asked, reason := requested(g.requests[i])
		k.Grants = append(k.Grants, inspect.Grant{
			Token: fencing.Token(token), Holder: g.holders[i], Labels: parseLabels(g.labels[i]), Permits: k.PermitsSeen(g.weights[i]),
			AcquiredAt: g.since[i], HeldFor: max(micros(g.ages[i]), 0), Remaining: micros(g.remaining[i]),
			ReleaseRequested: asked, ReleaseReason: reason,
		})
	}
}

func micros(n int64) time.Duration { return time.Duration(n) * time.Microsecond }

// requested returns what a release_request says.
func requested(request *string) (asked bool, reason string) {
	if request == nil {
		return false, ""
	}
	return true, *request
}

// parseLabels returns labels, which another program than a client may have written. A value that is
// not a string is returned as JSON.
func parseLabels(text string) map[string]string {
	var values map[string]json.RawMessage
	_ = json.Unmarshal([]byte(text), &values) // without labels if it is no object
	labels := make(map[string]string, len(values))
	for key, raw := range values {
		var value string
		if json.Unmarshal(raw, &value) != nil {
			value = string(raw)
		}
		labels[key] = value
	}
	return labels
}
