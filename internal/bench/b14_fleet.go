package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/shirou/gopsutil/v4/process"
	"golang.org/x/sync/errgroup"

	"github.com/pglock/pglock-go/internal/backoff"
	"github.com/pglock/pglock-go/internal/bench/trial"
	"github.com/pglock/pglock-go/pglock"
)

// fleetSettings leave room for the connections of a fleet, and waitingSettings also have no transactions but those
// of clients.
var (
	fleetSettings   = map[string]string{"max_connections": "3500"}
	waitingSettings = map[string]string{"max_connections": "3500", "autovacuum": "off"}
)

// fleetSize is the number of clients in a fleet, each of which stands for a process.
const fleetSize = 500

// settle is how long a fleet rests before it is measured: it waits for the longest time that a connection
// stays open without a need. All fleets of a row rest at the same time.
const settle = 45 * time.Second

// besideRow is B14: what a fleet on the same database costs those that hand a name on.
func besideRow() trial.Row {
	row := trial.Row{
		Number: "B14", What: fmt.Sprintf("gap of a hot name, %d processes, beside others on the database", fewProcesses),
		Throughput: true, Long: true,
	}
	none := "none"
	for _, c := range []struct {
		name string
		role trial.Role
		most float64 // of the gap, to that beside none; 0: it is not ours
		open func(ctx context.Context, l *lab, s *trial.Scope) error
	}{
		{none, trial.Ours, 0, func(context.Context, *lab, *trial.Scope) error { return nil }},
		{"100 sessions that listen to others", trial.Floor, 0, listeners(100)},
		{"500 sessions that listen to others", trial.Floor, 0, listeners(500)},
		{"1000 sessions that listen to others", trial.Floor, 0, listeners(1000)},
		{"500 clients that waited once", trial.Ours, 1.1, waitedOnce(500)},
		{"1000 clients that waited once", trial.Ours, 1.1, waitedOnce(1000)},
		{fmt.Sprintf("%d clients that wait for another name", fleetSize), trial.Ours, 1.2, func(ctx context.Context, l *lab, s *trial.Scope) error {
			_, err := l.fleet(ctx, s, pick(s.Scale, fleetSize, fleetSize, 5))
			return err
		}},
	} {
		row.Subjects = append(row.Subjects, trial.Subject{Name: c.name, Role: c.role, Open: func(ctx context.Context, s *trial.Scope) (trial.Meter, error) {
			l, err := fleetLab(ctx, s, fleetSettings)
			if err != nil {
				return nil, err
			}
			if err := c.open(ctx, l, s); err != nil {
				return nil, err
			}
			meter, err := l.processes(kindOurs, fewProcesses, fair{})(ctx, s)
			return rested{meter, time.Now().Add(pick(s.Scale, settle, settle, 0))}, err
		}})
		if c.most > 0 {
			row.Targets = append(row.Targets, target("p50 to that beside none, "+c.name, "gap p50", c.name, none, trial.AtMost(c.most)))
		}
	}
	return row
}

// rested is a meter that takes no turn before a time.
type rested struct {
	trial.Meter
	until time.Time
}

func (r rested) Turn(ctx context.Context, d time.Duration) error {
	if err := backoff.Sleep(ctx, time.Until(r.until)); err != nil {
		return err
	}
	return r.Meter.Turn(ctx, d)
}

// waitingRow is B15: what it costs the server that clients wait.
func waitingRow() trial.Row {
	row := trial.Row{Number: "B15", What: "clients that wait for one name: statements and CPU time of the server a second, for each of them", Once: true, Long: true}
	for _, n := range []int{1, 10, 100, fleetSize} {
		name := fmt.Sprint(n, " clients")
		row.Subjects = append(row.Subjects, trial.Subject{Name: name, Role: trial.Ours, Open: func(ctx context.Context, s *trial.Scope) (trial.Meter, error) {
			l, err := fleetLab(ctx, s, waitingSettings)
			if err != nil {
				return nil, err
			}
			f, err := l.fleet(ctx, s, pick(s.Scale, n, n, min(n, 5)))
			if err != nil {
				return nil, err
			}
			// Each fleet has a server of its own, so all are measured at the same time.
			var figures []trial.Figure
			var measured errgroup.Group
			measured.Go(func() (err error) {
				if err = backoff.Sleep(ctx, pick(s.Scale, settle, settle, 0)); err == nil {
					figures, err = f.cost(ctx, pick(s.Scale, time.Minute, 30*time.Second, time.Millisecond))
				}
				return err
			})
			return &turnMeter{turn: func(context.Context, time.Duration) ([]trial.Figure, error) {
				err := measured.Wait()
				return figures, err
			}}, nil
		}})
		row.Targets = append(row.Targets,
			target("statements of each, "+name, "statements", name, "", trial.AtMost(0.1)),
			target("connections of each, "+name, "connections", name, "", trial.AtMost(2)))
	}
	return row
}

// besideEvery is the pace of what commits run beside in B16, a multiple of that time by the clock.
const besideEvery = 4 * time.Millisecond

// besideCommitsRow is B16: what hand-offs, with their notifications, cost others that commit, beside what as
// many plain durable commits cost them.
func besideCommitsRow() trial.Row {
	const handOffs, commits = "beside hand-offs", "beside commits"
	row := trial.Row{
		Number: "B16", What: fmt.Sprintf("commits of others, 8 goroutines, beside a name that is handed on each %v at most", besideEvery), Throughput: true,
		Targets: []trial.Target{
			target("commits beside hand-offs to those beside as many durable commits", "commits", handOffs, commits, trial.AtLeast(0.85)),
			target("commits beside hand-offs to those alone", "commits", handOffs, "alone", trial.Rule{}),
		},
	}
	for _, c := range []struct {
		name string
		role trial.Role
		open func(l *lab, pool *pgxpool.Pool) trial.Open
	}{
		{"alone", trial.Floor, nil},
		{handOffs, trial.Ours, func(l *lab, _ *pgxpool.Pool) trial.Open {
			return l.processes(kindOurs, fewProcesses, fair{every: besideEvery})
		}},
		{commits, trial.Floor, func(_ *lab, pool *pgxpool.Pool) trial.Open {
			return func(context.Context, *trial.Scope) (trial.Meter, error) {
				return crowd(1, "others", nil, func(ctx context.Context, _ string) error {
					time.Sleep(untilNext(besideEvery))
					_, err := pool.Exec(ctx, updateCounter, "name-99")
					return err
				}), nil
			}
		}},
	} {
		row.Subjects = append(row.Subjects, trial.Subject{Name: c.name, Role: c.role, Open: func(ctx context.Context, s *trial.Scope) (trial.Meter, error) {
			l, err := fleetLab(ctx, s, fleetSettings)
			if err != nil {
				return nil, err
			}
			if err := l.exec(ctx, createCounters...); err != nil {
				return nil, err
			}
			pool, err := l.connect(ctx, s, 9)
			if err != nil {
				return nil, err
			}
			commits := crowd(8, "commits", nil, func(ctx context.Context, name string) error {
				_, err := pool.Exec(ctx, updateCounter, name)
				return err
			})
			if c.open == nil {
				return commits, nil
			}
			beside, err := c.open(l, pool)(ctx, s)
			return both{commits, beside}, err
		}})
	}
	return row
}

// both are two meters that take their turns together. The figures are those of the two.
type both [2]trial.Meter

func (b both) Turn(ctx context.Context, d time.Duration) error {
	all, ctx := errgroup.WithContext(ctx)
	for _, m := range b {
		all.Go(func() error { return m.Turn(ctx, d) })
	}
	return all.Wait()
}

func (b both) Figures() []trial.Figure { return append(b[0].Figures(), b[1].Figures()...) }

// fleetLab starts a server of its own, because the clients of a fleet stay from turn to turn.
func fleetLab(ctx context.Context, s *trial.Scope, settings map[string]string) (*lab, error) {
	l := &lab{}
	return l, l.prepare(settings)(ctx, s)
}

// waitedOnce makes a fleet that waits no more.
func waitedOnce(n int) func(context.Context, *lab, *trial.Scope) error {
	return func(ctx context.Context, l *lab, s *trial.Scope) error {
		f, err := l.fleet(ctx, s, pick(s.Scale, n, n, 5))
		if err != nil {
			return err
		}
		return f.end(ctx)
	}
}

// listeners opens sessions that listen, each on a channel of its own.
func listeners(n int) func(context.Context, *lab, *trial.Scope) error {
	return func(ctx context.Context, l *lab, s *trial.Scope) error {
		for i := range pick(s.Scale, n, n, 5) {
			conn, err := pgx.Connect(ctx, l.url)
			if err != nil {
				return err
			}
			s.Defer(func() error { return conn.Close(context.Background()) })
			if _, err := conn.Exec(ctx, fmt.Sprint("LISTEN other_", i)); err != nil {
				return err
			}
			go func() { // it reads what arrives, and ends with the connection
				for err == nil {
					_, err = conn.WaitForNotification(context.Background())
				}
			}()
		}
		return nil
	}
}

// fleet are clients that wait for a name that nobody else uses, behind one that holds it.
type fleet struct {
	lab     *lab
	held    *pglock.Lease
	clients []*pglock.Client
	waiting errgroup.Group
}

// fleet opens n clients until the row is done, and returns when they wait.
func (l *lab) fleet(ctx context.Context, s *trial.Scope, n int) (*fleet, error) {
	f := &fleet{lab: l}
	holder, err := l.client(ctx, s, "pglock")
	if err != nil {
		return nil, err
	}
	if f.held, err = holder.Acquire(ctx, "another"); err != nil {
		return nil, err
	}
	for range n {
		client, err := l.client(ctx, s, "pglock")
		if err != nil {
			return nil, err
		}
		f.clients = append(f.clients, client)
	}
	return f, f.wait(ctx)
}

// wait lets all clients wait, and returns when they do.
func (f *fleet) wait(ctx context.Context) error {
	for _, c := range f.clients {
		f.waiting.Go(func() error {
			lease, err := c.Acquire(context.Background(), "another")
			if err != nil {
				return nil //nolint:nilerr // it was closed while it waited
			}
			return lease.Release(context.Background())
		})
	}
	for waiting := 0; waiting < len(f.clients); {
		if err := f.lab.pool.QueryRow(ctx, "SELECT count(*) FROM pglock.lock_waiters").Scan(&waiting); err != nil {
			return err
		}
	}
	return nil
}

// end lets each client have the name once.
func (f *fleet) end(ctx context.Context) error {
	return errors.Join(f.held.Release(ctx), f.waiting.Wait())
}

// cost measures what the clients cost the server for some time, for each of them.
func (f *fleet) cost(ctx context.Context, d time.Duration) ([]trial.Figure, error) {
	before, err := f.lab.spent(ctx)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	if err := backoff.Sleep(ctx, d); err != nil {
		return nil, err
	}
	after, err := f.lab.spent(ctx)
	if err != nil {
		return nil, err
	}
	connections, err := f.lab.connections(ctx)
	n, seconds := float64(len(f.clients)), time.Since(began).Seconds()
	var cpu float64
	for pid, s := range after.cpu {
		cpu += s - before.cpu[pid]
	}
	others := seconds/10 + 2 // the holder's renewals, with the default TTL, and two statements of this function
	return []trial.Figure{
		{Name: "statements", Unit: trial.Count, Value: (after.transactions - before.transactions - others) / seconds / n},
		{Name: "server CPU", Unit: trial.Micros, Value: 1e6 * cpu / seconds / n},
		{Name: "connections", Unit: trial.Count, Value: (connections - 1) / n}, // without that of the holder
	}, err
}

// spending is what a server has done so far.
type spending struct {
	transactions float64
	cpu          map[int32]float64 // seconds, by the process, of those that are there now
}

func (l *lab) spent(ctx context.Context) (s spending, err error) {
	s.cpu = map[int32]float64{}
	var pids []int32
	if err := l.pool.QueryRow(ctx, `
		SELECT (SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database())::float8,
			(SELECT array_agg(pid) FROM pg_stat_activity)`).Scan(&s.transactions, &pids); err != nil {
		return s, err
	}
	for _, pid := range pids {
		p, err := process.NewProcessWithContext(ctx, pid)
		if err != nil {
			continue // it has ended
		}
		if times, err := p.TimesWithContext(ctx); err == nil {
			s.cpu[pid] = times.User + times.System
		}
	}
	return s, nil
}
