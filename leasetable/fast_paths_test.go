package leasetable_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/leasetable"
)

const mine = "00000000-0000-0000-0000-00000000000a" // the request

// lockState is a state of the names m and n, and a caller who wants both of them or n. Times are around those at
// which something changes.
type lockState struct {
	rows     []string
	capacity map[string]int // 0: one holder
	weight   int            // of names with permits
	ticket   int64
}

func (s lockState) String() string {
	return fmt.Sprintf("ticket %d, weight %d:\n%s", s.ticket, s.weight, strings.Join(s.rows, "\n"))
}

// slots returns the arrays of acquire_slots.
func (s lockState) slots(names ...string) (list []string, permits, weights []int) {
	for _, name := range names {
		weight := 1
		if s.capacity[name] > 0 {
			weight = s.weight
		}
		list, permits, weights = append(list, name), append(permits, s.capacity[name]), append(weights, weight)
	}
	return list, permits, weights
}

// fastPath is a statement that grants without judge_slot.
type fastPath struct {
	verb   string
	names  []string
	state  func(s *lockState) // makes a state one that it is for
	args   func(s lockState) []any
	before string // what it does before the grant
	defect [2]string
}

var fastPaths = []fastPath{
	{
		verb: "acquire_fast", names: []string{"n"},
		args:   func(s lockState) []any { return []any{"n", "me", mine, "{}", int64(60_000_000), s.ticket} },
		defect: [2]string{"WHERE w.ticket < $6::bigint", "WHERE w.ticket < 0 * $6::bigint"},
	}, {
		verb: "acquire_fast_batch", names: []string{"n"},
		args: func(s lockState) []any {
			return []any{[]string{"n"}, []string{"me"}, []string{mine}, []string{"{}"}, []int64{60_000_000}, []int64{s.ticket}}
		},
		defect: [2]string{"AND l.expires_at <=", "AND '-infinity' <="},
	}, {
		verb: "acquire_new", names: []string{"n"},
		state: func(s *lockState) {
			s.capacity["n"] = 0
			s.rows = slices.DeleteFunc(s.rows, func(row string) bool {
				return strings.Contains(row, "VALUES ('n'") && !strings.Contains(row, "lock_waiters")
			})
		},
		args:   func(s lockState) []any { return []any{"n", "me", mine, "{}", int64(60_000_000), s.ticket} },
		defect: [2]string{"w.ticket < a.ticket", "w.ticket < 0 * a.ticket"},
	}, {
		verb: "acquire_all", names: []string{"m", "n"},
		state: func(s *lockState) {
			if s.ticket != leasetable.BargeTicket {
				s.ticket = leasetable.NoTicket
			}
		},
		args: func(s lockState) []any {
			return []any{[]string{"m", "n"}, "me", mine, "{}", int64(60_000_000), s.ticket}
		},
		defect: [2]string{"AND (f.capacity > 0) IS NOT TRUE", ""},
	}, {
		verb: "acquire_permit", names: []string{"n"},
		state: func(s *lockState) {
			s.ticket = leasetable.NoTicket
			s.weight = min(s.weight, max(s.capacity["n"]-1, 1)) // not all of them
		},
		args: func(s lockState) []any {
			return []any{"n", "me", mine, "{}", int64(60_000_000), s.ticket, s.capacity["n"], s.weight}
		},
		defect: [2]string{"f.capacity - f.in_use >=", "f.capacity >="},
	}, {
		verb: "handoff", names: []string{"n"},
		state: func(s *lockState) {
			s.ticket = leasetable.NoTicket
			for i, row := range s.rows { // the request is not that of the grant that it ends
				s.rows[i] = strings.ReplaceAll(row, "'"+mine+"'", other(1))
			}
		},
		args: func(lockState) []any { return []any{"n", int64(7), mine, "me", "{}", int64(60_000_000), "own"} },
		before: `DELETE FROM pglock.lock_waiters WHERE name = 'n' AND client = 'own';
			UPDATE pglock.distributed_locks SET last_holder = holder, last_end = 'released', ended_at = pglock.test_now(), holder = NULL, expires_at = '-infinity'
			WHERE name = 'n' AND holder IS NOT NULL`,
		defect: [2]string{"WHERE w.client <> $7::text", "WHERE $7::text = ''"},
	},
}

// other returns the request of somebody else.
func other(n int) string { return fmt.Sprintf("'00000000-0000-0000-0000-00000000000%d'", n) }

func newLockState(r *rand.Rand) lockState {
	s := lockState{capacity: map[string]int{}, weight: 1 + r.IntN(2), ticket: leasetable.NoTicket}
	switch r.IntN(4) {
	case 0:
		s.ticket = leasetable.BargeTicket
	case 1:
		s.ticket = 6 + r.Int64N(4) // a valid one: a free lock is granted for a used-up one too
	}
	at := func(seconds ...float64) string {
		return fmt.Sprintf("pglock.test_now() + interval '%v s'", seconds[r.IntN(len(seconds))])
	}
	add := func(format string, args ...any) { s.rows = append(s.rows, fmt.Sprintf(format, args...)) }
	request := func() string { return []string{"NULL", other(0), other(1), "'" + mine + "'"}[r.IntN(4)] }
	for _, name := range []string{"m", "n"} {
		capacity, used := []int{0, 0, 2, 1 << 30}[r.IntN(4)], 0
		s.capacity[name] = capacity
		holder, expires := "NULL", "'-infinity'"
		switch state := r.IntN(5); {
		case state == 0 || state == 1 && capacity > 0:
			holder, expires = "'h'", at(-5, 5)
		case state == 1: // a minimum hold
			expires = at(5)
		case capacity > 0:
			for range r.IntN(3) {
				used++
				add("INSERT INTO pglock.lock_permits (name, token, weight, version, acquired_at, expires_at, request, holder) VALUES ('%s', %d, 1, 1, pglock.test_now(), %s, %s, 'p')",
					name, used, at(-5, 5, 5), []string{other(used), other(used), "'" + mine + "'"}[r.IntN(4-used)%3])
			}
		}
		columns := "NULL, NULL, NULL"
		if capacity > 0 {
			columns = fmt.Sprintf("%d, %d, %s", capacity, used, at(-1, -2))
		}
		add("INSERT INTO pglock.distributed_locks (name, token, version, ticket, acquired_at, holder, expires_at, ended_at, request, last_holder, last_end, capacity, in_use, room_since) "+
			"VALUES ('%s', 7, 1, 5, pglock.test_now(), %s, %s, %s, %s, 'before', 'released', %s)", name, holder, expires, at(-1, -2), request(), columns)
		for i := range r.IntN(4) - r.IntN(3) {
			add("INSERT INTO pglock.lock_waiters (name, client, ticket, state, since, expires_at, keep_until, weight) VALUES ('%s', '%s', %d, '%s', pglock.test_now(), %s, %s, %d)",
				name, []string{"own", "b", "c"}[i], 3+r.IntN(7), []string{"queued", "queued", "overflow", "watching"}[r.IntN(4)], at(-1, -2, 5, 5), at(-5, -5, 5), 1+r.IntN(2))
		}
	}
	return s
}

// TestFastPaths compares the statements that grant without acquire_slots with it, in random states: what they grant it
// grants, and writes alike. What peek reports as busy it reports in the same words. The controls have a defect.
func TestFastPaths(t *testing.T) { //nolint:tparallel // they share a connection
	t.Parallel()
	const states = 400
	w := newWorld(t)
	w.exec("SELECT setval($1::text::regclass, 1000)", schema.Quote(w.schema)+".fencing_tokens")
	f := fastPathTest{t: t, w: w, conn: w.connect()}
	for _, p := range fastPaths {
		t.Run(p.verb, func(t *testing.T) {
			granted, difference := f.compare(p, w.sql[p.verb], states)
			if difference != "" || granted < states/40 {
				t.Errorf("%d of %d granted: %s", granted, states, difference)
			}
			t.Logf("%d of %d granted", granted, states)
			broken := strings.Replace(w.sql[p.verb], p.defect[0], p.defect[1], 1)
			if broken == w.sql[p.verb] {
				t.Fatalf("no %q", p.defect[0])
			}
			if _, difference = f.compare(p, broken, states); difference == "" {
				t.Error("control: the defect is not noticed")
			}
		})
	}
	t.Run("peek", func(t *testing.T) {
		busy, difference := f.peek(w.sql["peek"], states)
		if difference != "" || busy < states/20 {
			t.Errorf("%d of %d busy: %s", busy, states, difference)
		}
		if _, difference = f.peek(strings.Replace(w.sql["peek"], "AND NOT", "AND", 1), states); difference == "" {
			t.Error("control: the defect is not noticed")
		}
	})
}

// fastPathTest runs statements in states that are rolled back.
type fastPathTest struct {
	t    *testing.T
	w    *world
	conn *pgx.Conn
}

func (f *fastPathTest) named(sql string) string {
	return strings.ReplaceAll(sql, "pglock.", schema.Quote(f.w.schema)+".")
}

// run runs a statement in a state that "before" has changed, and returns the row that it returns, nil without one, and the
// rows of the tables afterwards, without what differs from call to call.
func (f *fastPathTest) run(s lockState, before, sql string, args ...any) (row []any, after string) {
	f.t.Helper()
	ctx := f.t.Context()
	tx, err := f.conn.Begin(ctx)
	locktest.OK(f.t, err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := tx.Exec(ctx, f.named(strings.Join(append(s.rows, before), ";"))); err != nil {
		f.t.Fatalf("%s: %v", s, err)
	}
	rows, err := tx.Query(ctx, sql, args...)
	for err == nil && rows.Next() {
		row, err = rows.Values()
	}
	rows.Close()
	if err == nil {
		err = rows.Err()
	}
	if err == nil {
		err = tx.QueryRow(ctx, f.named(`SELECT concat_ws(E'\n',
			(SELECT string_agg((to_jsonb(l) - '{token,version}'::text[])::text, E'\n' ORDER BY l.name) FROM pglock.distributed_locks AS l),
			(SELECT string_agg((to_jsonb(p) - '{token,version}'::text[])::text, E'\n' ORDER BY p.name, p.request) FROM pglock.lock_permits AS p),
			(SELECT string_agg(to_jsonb(w)::text, E'\n' ORDER BY w.name, w.client) FROM pglock.lock_waiters AS w WHERE w.client <> 'own'))`)).Scan(&after)
	}
	if err != nil {
		f.t.Fatalf("%s: %v", s, err)
	}
	return row, after
}

// engine is what acquire_slots answers and writes.
func (f *fastPathTest) engine(s lockState, before string, ticket int64, names ...string) (row []any, after string) {
	f.t.Helper()
	list, permits, weights := s.slots(names...)
	return f.run(s, before, f.named(`SELECT outcome, coalesce(holder, ''), ahead, invalid, remaining > 0
		FROM pglock.acquire_slots($1::text[], $2::int[], $3::int[], $4::text::uuid, 'me', '{}', 60000000, $5::bigint, false)`),
		list, permits, weights, mine, ticket)
}

// compare returns in how many states the statement grants, and the first difference from acquire_slots.
func (f *fastPathTest) compare(p fastPath, sql string, states int) (granted int, difference string) {
	f.t.Helper()
	for seed := range uint64(states) {
		s := newLockState(rand.New(rand.NewPCG(seed, 0)))
		if p.state != nil {
			p.state(&s)
		}
		row, wrote := f.run(s, "", sql, p.args(s)...)
		if row == nil {
			continue
		}
		granted++
		row, writes := f.engine(s, p.before, s.ticket, p.names...)
		if row[0] != "granted" || wrote != writes {
			return granted, fmt.Sprintf("acquire_slots: %v\n%s\n%s:\n%s\nin %s", row, writes, p.verb, wrote, s)
		}
	}
	return granted, ""
}

// peek returns in how many states the statement reports a lock as busy, and the first difference from acquire_slots.
func (f *fastPathTest) peek(sql string, states int) (busy int, difference string) {
	f.t.Helper()
	for seed := range uint64(states) {
		s := newLockState(rand.New(rand.NewPCG(seed, 1)))
		row, _ := f.run(s, "", sql, []string{"n"}, []string{mine}, []int64{s.ticket})
		if row == nil {
			continue
		}
		busy++
		holder, _ := row[2].(string)
		want := fmt.Sprint([]any{"busy", holder, row[4], row[5], row[3].(int64) > 0})
		if got, _ := f.engine(s, "", s.ticket, "n"); fmt.Sprint(got) != want {
			return busy, fmt.Sprintf("acquire_slots: %v, peek: %v in %s", got, want, s)
		}
	}
	return busy, ""
}
