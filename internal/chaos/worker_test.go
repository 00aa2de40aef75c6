//go:build linux

package chaos

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sys/unix"

	"github.com/pglock/pglock-go/internal/locktest"
	"github.com/pglock/pglock-go/pglock"
	"github.com/pglock/pglock-go/pglock/leader"
)

// workerVariable makes the test binary a worker. Its value is the assignment in JSON.
const workerVariable = "PGLOCK_CHAOS_WORKER"

// The locks of a run.
const (
	leaseName, otherLease   = "lease", "other lease"
	severalNames            = "both leases" // in an assignment
	semaphoreName, capacity = "semaphore", 4
	rwName, allPermits      = "readers-writer", 1 << 30
	electionName            = "election"
)

const (
	maxWait   = 150 * time.Second // for a lock: a longer wait is a starved waiter, even on a slow machine
	ioTimeout = 8 * time.Second   // of one statement of the ledger, or one dial: dials that are given up hold up a busy server
	sampling  = 20 * time.Millisecond
)

// mode is what a worker leaves out.
type mode string

const (
	protected mode = "protected"
	unfenced  mode = "unfenced" // acquires locks, but ignores their loss, and has no guard
	unlocked  mode = "unlocked" // acquires nothing
)

// assignment is what a worker is started with.
type assignment struct {
	Name, URL, Role, Password string
	Mode                      mode
	Seed                      uint64
	Actors                    int
	TTL                       time.Duration
	Only                      string  // the only lock that is used; "" is all
	Barging                   bool    // waiters ignore the queue
	Long                      float64 // the share of guarded transactions that last longer than the TTL
	Linger                    bool    // a tenth of the grants are held for the TTL, or up to twice that, before they are used
}

// record is a line of a worker's output. Times are nanoseconds of the system's monotonic clock.
type record struct {
	What    what
	Worker  string `json:"-"` // set by the reader
	Actor   int
	Op      string   // unique: of a grant, the payload of its term; of a write
	Name    string   // of a grant of several names: the first one, or the one that is written
	Names   []string // of the grant
	Weight  int64    `json:",omitempty"`
	Token   int64    `json:",omitempty"`
	Call    int64    // before the call; of an end: when the holder last saw its lease alive
	Return  int64
	Value   int64  `json:",omitempty"` // balance that was read
	Twin    int64  `json:",omitempty"`
	Lost    bool   `json:",omitempty"` // of an end: the lease was lost, not released; of a grant: before the call returned
	Stopped int64  `json:",omitempty"` // of a lost lease: when its Context ended
	Error   string `json:",omitempty"`
}

// what is the kind of a record.
type what string

const (
	granted   what = "granted"
	missed    what = "missed"    // an acquire failed, as it may
	starved   what = "starved"   // an acquire waited for maxWait
	alive     what = "alive"     // the holder sees its lease alive at Call
	over      what = "over"      // the holder has stopped
	committed what = "committed" // an exclusive write
	added     what = "added"     // a holder of some permits added 1 to the balance
	unknown   what = "unknown"   // the commit was sent, and not answered
	refused   what = "refused"   // by the guard, or the transaction failed before its commit
	viewed    what = "viewed"    // a reader has read
	lowering  what = "lowering"  // a writer is about to become a reader
	lowered   what = "lowered"   // it is one
	raised    what = "raised"    // a reader has become the writer, and has a new token; Value is the old one
	stalled   what = "stalled"   // the process was not scheduled from Call to Return
	abandoned what = "abandoned" // a call without an answer, which may cost the lease
	died      what = "died"      // the process is gone; written by the test
	observed  what = "observed"  // an observer of the election sees a leader: Token, and Op, which is its payload
)

// worker is a process with a few actors.
type worker struct {
	assignment
	ledger *pgxpool.Pool
	client *pglock.Client
	finish atomic.Bool

	mu  sync.Mutex // one line at a time
	out io.Writer
}

// monotonic returns the time of the clock that all processes of the system share.
func monotonic() int64 { return clock(unix.CLOCK_MONOTONIC) }

func clock(id int32) int64 {
	var now unix.Timespec
	if err := unix.ClockGettime(id, &now); err != nil {
		panic(err)
	}
	return now.Nano()
}

// work is the main function of a worker. A line on its standard input makes it finish, and the end
// of the input ends it at once.
func work(text string, in io.Reader, out io.Writer) error {
	w := &worker{out: out}
	if err := json.Unmarshal([]byte(text), &w.assignment); err != nil {
		return err
	}
	go func() {
		lines := bufio.NewReader(in)
		_, err := lines.ReadByte()
		w.finish.Store(err == nil)
		_, _ = io.Copy(io.Discard, lines)
		os.Exit(1)
	}()
	ctx := context.Background()
	config, err := pgxpool.ParseConfig(w.URL)
	if err != nil {
		return err
	}
	config.ConnConfig.User, config.ConnConfig.Password = w.Role, w.Password
	config.MaxConns, config.ConnConfig.ConnectTimeout = int32(w.Actors), ioTimeout
	config.ConnConfig.RuntimeParams["application_name"] = w.Name
	if w.ledger, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return err
	}
	defer w.ledger.Close()
	if w.Mode != unlocked {
		for w.client == nil { // the server may be away
			if w.finish.Load() {
				return nil
			}
			opts := []pglock.Option{pglock.WithTTL(w.TTL), pglock.WithHolder(w.Name)}
			if w.Barging {
				opts = append(opts, pglock.WithBarging())
			}
			if w.client, err = pglock.Open(ctx, w.ledger, opts...); err != nil {
				w.say(record{What: missed, Error: err.Error()})
				pause(100 * time.Millisecond)
			}
		}
		defer func() { _ = w.client.Close(ctx) }() // nothing is held any more
	}
	var actors sync.WaitGroup
	for i := range w.Actors {
		actors.Go(func() {
			r := rand.New(rand.NewPCG(w.Seed, uint64(i)))
			for n := 0; !w.finish.Load(); n++ {
				w.turn(ctx, r, i, fmt.Sprintf("%s/%d/%d", w.Name, i, n))
			}
		})
	}
	done := make(chan struct{})
	go w.watchScheduling(done)
	watching, cancel := context.WithCancel(ctx)
	var observer sync.WaitGroup
	if w.Mode != unlocked {
		observer.Go(func() { w.observe(watching) })
	}
	actors.Wait()
	cancel()
	observer.Wait()
	close(done)
	return nil
}

// observe reports the leaders of the election until ctx is done.
func (w *worker) observe(ctx context.Context) {
	e, err := leader.New(w.client, electionName)
	if err != nil {
		panic(err)
	}
	for ctx.Err() == nil {
		for l, err := range e.Observe(ctx) {
			if err == nil && l.Elected() {
				w.say(record{What: observed, Names: []string{electionName}, Op: l.Payload, Token: int64(l.Token), Return: monotonic()})
			}
		}
		pause(50 * time.Millisecond) // the server is away
	}
}

// say writes a record in one write, so that a killed worker leaves whole lines.
func (w *worker) say(r record) {
	line, err := json.Marshal(r)
	if err != nil {
		panic(err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	_, _ = w.out.Write(append(line, '\n'))
}

// watchScheduling reports when the process does not run.
func (w *worker) watchScheduling(done <-chan struct{}) {
	ticks := time.NewTicker(sampling)
	defer ticks.Stop()
	last := monotonic()
	for {
		select {
		case <-done:
			return
		case <-ticks.C:
		}
		now := monotonic()
		if now-last > int64(5*sampling) {
			w.say(record{What: stalled, Call: last, Return: now})
		}
		last = now
	}
}

func pause(d time.Duration) { <-time.After(d) }

// turn is one grant of one lock, and what is done with it.
func (w *worker) turn(ctx context.Context, r *rand.Rand, actor int, op string) {
	h := &holding{worker: w, r: r, op: op, record: record{Actor: actor, Weight: 1}}
	try := r.IntN(6) == 0
	choice := r.IntN(12)
	switch w.Only {
	case leaseName:
		choice = 0
	case semaphoreName:
		choice = 5
	case severalNames:
		choice = 3 + r.IntN(2)
	case rwName:
		choice = []int{7, 10, 11}[r.IntN(3)]
	}
	switch choice {
	case 0, 1, 2:
		h.record.Name = leaseName
	case 3, 4:
		h.record.Name = otherLease
	case 5, 6:
		h.record.Name, h.record.Weight = semaphoreName, 1+r.Int64N(capacity)
		h.shared = h.record.Weight < capacity
	case 7:
		h.record.Name, h.record.Weight = rwName, allPermits
	case 8, 9:
		h.record.Name = electionName
	default:
		h.record.Name, h.shared = rwName, true
	}
	h.record.Names, h.record.Op = []string{h.record.Name}, op
	if choice == 4 {
		h.record.Names = []string{leaseName, otherLease}
	}
	if w.Mode == unlocked {
		h.use(ctx)
		return
	}
	if h.acquire(ctx, try) {
		h.use(ctx)
		h.end(ctx)
	}
	if r.IntN(50) == 0 { // statements of observers and of housekeeping, after which free names are new
		ctx, cancel := context.WithTimeout(ctx, ioTimeout)
		defer cancel()
		_, _ = w.client.Get(ctx, h.record.Name)
		_, _ = w.client.Prune(ctx, time.Duration(r.IntN(2))*time.Hour)
	}
	pause(time.Duration(r.IntN(10)) * time.Millisecond)
}

// holding is a grant and its holder.
type holding struct {
	*worker
	r      *rand.Rand
	op     string
	shared bool
	record record // of the grant
	lease  *pglock.Lease
	term   *leader.Term  // of the election
	last   int64         // when the lease was alive
	done   *atomic.Int64 // when its Context ended
	writes int
}

// acquire reports whether the lock was granted.
func (h *holding) acquire(ctx context.Context, try bool) bool {
	ctx, cancel := context.WithTimeout(ctx, maxWait)
	defer cancel()
	if h.r.IntN(12) == 0 {
		var stop context.CancelFunc
		ctx, stop = h.hurried(ctx)
		defer stop()
	}
	h.record.Call = monotonic()
	var err error
	h.lease, err = h.call(ctx, try)
	h.record.Return = monotonic()
	if err != nil {
		r := h.record
		if r.What = missed; r.Return-r.Call >= int64(maxWait) && !errors.Is(err, pglock.ErrUnavailable) {
			r.What = starved
		}
		r.Error = err.Error()
		h.say(r)
		if errors.Is(err, pglock.ErrUnavailable) {
			pause(50 * time.Millisecond)
		}
		return false
	}
	h.record.What, h.record.Token = granted, int64(h.lease.Token())
	h.begin(h.record)
	h.watch()
	return true
}

// begin reports a grant. A campaign, which also publishes its payload, may return when the lease is lost
// already; nobody has seen it alive then.
func (h *holding) begin(r record) {
	r.Lost, h.last = h.lease.Err() != nil, r.Return
	if r.Lost {
		h.last = r.Call
	}
	h.say(r)
}

// watch notes when the Context of the lease ends.
func (h *holding) watch() {
	done := new(atomic.Int64)
	h.done = done
	context.AfterFunc(h.lease.Context(), func() { done.Store(monotonic()) })
}

// handOver ends the lease and adopts its grant. If that fails, the holder has stopped.
func (h *holding) handOver(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, ioTimeout)
	defer cancel()
	fence, err := h.lease.HandOver()
	if err != nil {
		return
	}
	if l, err := h.client.Adopt(ctx, fence); err == nil {
		h.lease = l
		h.watch()
	}
}

func (h *holding) call(ctx context.Context, try bool) (*pglock.Lease, error) {
	lock := h.client.Lock(h.record.Name)
	switch h.record.Name {
	case semaphoreName:
		lock = h.client.Semaphore(semaphoreName, capacity).Weight(int(h.record.Weight))
	case rwName:
		if lock = h.client.Writer(rwName); h.shared {
			lock = h.client.Reader(rwName)
		}
	case electionName:
		e, err := leader.New(h.client, electionName)
		if err != nil {
			return nil, err
		}
		if h.term, err = e.Campaign(ctx, h.op); err != nil {
			return nil, err
		}
		return h.term.Lease(), nil
	}
	if len(h.record.Names) > 1 {
		lock = locktest.All(h.client, h.record.Names...)
	}
	switch {
	case try:
		return lock.TryAcquire(ctx)
	case lock.Name() == otherLease && h.r.IntN(3) == 0: // others end, and the holder may not obey
		return lock.Acquire(ctx, pglock.WithSupersede())
	}
	return lock.Acquire(ctx)
}

// lead proclaims another payload.
func (h *holding) lead(ctx context.Context) {
	ctx, cancel := h.hurried(ctx)
	defer cancel()
	_ = h.term.Proclaim(ctx, h.op+" again")
}

// lower makes a writer a reader, in the holder's view also if the server does not answer.
func (h *holding) lower(ctx context.Context) {
	ctx, cancel := h.hurried(ctx)
	defer cancel()
	r := h.record
	r.What, r.Call = lowering, h.last // not now: while the process was paused, the lease may have been lost
	h.say(r)
	_ = h.lease.Downgrade(ctx)
	r.What, r.Return = lowered, monotonic()
	h.say(r)
	h.record.Weight, h.shared = 1, true
}

// raise makes a reader the writer, if there is no other reader.
func (h *holding) raise(ctx context.Context) {
	ctx, cancel := h.hurried(ctx)
	defer cancel()
	r := h.record
	r.Call = monotonic()
	l, err := h.lease.TryUpgrade(ctx)
	if err != nil {
		h.say(record{What: abandoned, Call: r.Call, Return: monotonic()})
		return
	}
	r.What, r.Return, r.Value, r.Token, r.Weight = raised, monotonic(), r.Token, int64(l.Token()), allPermits
	h.lease, h.shared, h.record.Token, h.record.Weight = l, false, r.Token, r.Weight
	h.begin(r)
	h.watch()
}

// hurried bounds a call, sometimes so that it ends at any of its steps.
func (h *holding) hurried(ctx context.Context) (context.Context, context.CancelFunc) {
	if h.r.IntN(2) == 0 {
		return context.WithTimeout(ctx, time.Duration(h.r.IntN(20_000))*time.Microsecond)
	}
	return context.WithTimeout(ctx, ioTimeout)
}

// alive reports whether the holder may go on. Without protection it always does.
func (h *holding) alive() bool {
	if h.Mode == unlocked {
		return true
	}
	now := monotonic()
	if h.Mode == protected && h.lease.Err() != nil {
		return false
	}
	h.last = now
	h.say(record{What: alive, Actor: h.record.Actor, Names: h.record.Names, Token: h.record.Token, Call: now})
	return true
}

// use reads and writes the ledger a few times.
func (h *holding) use(ctx context.Context) {
	if h.Linger && h.r.IntN(10) == 0 {
		pause(time.Duration((1 + h.r.Float64()) * float64(h.TTL)))
	}
	for range 1 + h.r.IntN(3) {
		h.record.Name = h.record.Names[h.r.IntN(len(h.record.Names))]
		if !h.alive() {
			return
		}
		switch {
		case h.shared && h.record.Name == rwName:
			h.view(ctx)
			if h.Mode == protected && h.r.IntN(8) == 0 {
				h.raise(ctx)
			}
		case h.shared:
			h.write(ctx, 0)
		default:
			balance, err := h.balance(ctx)
			if err != nil {
				continue
			}
			pause(time.Duration(1+h.r.IntN(15)) * time.Millisecond)
			if !h.alive() {
				return
			}
			h.write(ctx, balance)
			switch {
			case h.Mode != protected || h.r.IntN(8) != 0:
			case h.record.Name == rwName:
				h.lower(ctx)
			case h.term != nil:
				h.lead(ctx)
			case len(h.record.Names) == 1:
				h.handOver(ctx)
			}
		}
	}
}

// balance reads the balance, without a guard. Without protection it repeats that until it succeeds,
// and for writes as well.
func (h *holding) balance(ctx context.Context) (n int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, ioTimeout)
	defer cancel()
	err = h.ledger.QueryRow(ctx, "SELECT balance FROM accounts WHERE name = $1", h.record.Name).Scan(&n)
	return n, err
}

// write changes the balance: it writes value + 1 or, with some of the permits, adds 1 to it.
func (h *holding) write(ctx context.Context, value int64) {
	h.writes++
	r := h.record
	r.What, r.Op, r.Value = committed, fmt.Sprintf("%s/%d", h.op, h.writes), value
	if h.shared {
		r.What = added
	}
	r.Call = monotonic()
	done, err := h.commit(ctx, r)
	for range 20 { // without protection, insist
		if err == nil || done || h.Mode == protected {
			break
		}
		pause(100 * time.Millisecond)
		done, err = h.commit(ctx, r)
	}
	switch {
	case err != nil && done:
		r.What, r.Error = unknown, err.Error()
	case err != nil:
		r.What, r.Error = refused, err.Error()
	}
	r.Return = monotonic()
	h.say(r)
}

// commit writes in one transaction. It returns whether the commit was sent.
func (h *holding) commit(ctx context.Context, r record) (sent bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, ioTimeout)
	defer cancel()
	tx, err := h.guarded(ctx)
	if err != nil {
		return false, err
	}
	defer func() { _ = tx.Rollback(context.Background()) }() // after the commit it does nothing
	if h.Mode == protected && h.r.Float64() < h.Long {
		if _, err := tx.Exec(ctx, "SELECT pg_sleep($1)", (h.TTL * 3 / 2).Seconds()); err != nil {
			return false, err
		}
	}
	change := "UPDATE accounts SET balance = $2, twin = $2 WHERE name = $1 RETURNING balance"
	if h.shared {
		change = "UPDATE accounts SET balance = balance + $2, twin = twin + $2 WHERE name = $1 RETURNING balance"
		r.Value = 0
	}
	_, err = tx.Exec(ctx, "WITH changed AS ("+change+") INSERT INTO entries (name, op, token, balance) SELECT $1, $3, $4, balance FROM changed",
		r.Name, r.Value+1, r.Op, r.Token)
	if err != nil {
		return false, err
	}
	return true, tx.Commit(ctx)
}

// guarded begins a transaction, with a guard unless that is left out.
func (h *holding) guarded(ctx context.Context) (pgx.Tx, error) {
	tx, err := h.ledger.Begin(ctx)
	if err != nil || h.Mode != protected {
		return tx, err
	}
	if err := h.lease.Guard(ctx, tx); err != nil {
		_ = tx.Rollback(context.Background())
		return nil, err
	}
	return tx, nil
}

// view reads the balance and its twin one after the other, in a guarded transaction if protected.
func (h *holding) view(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, ioTimeout)
	defer cancel()
	r := h.record
	r.Call = monotonic()
	tx, err := h.guarded(ctx)
	if err != nil {
		return
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if err := tx.QueryRow(ctx, "SELECT balance FROM accounts WHERE name = $1", r.Name).Scan(&r.Value); err != nil {
		return
	}
	pause(time.Duration(1+h.r.IntN(15)) * time.Millisecond)
	if err := tx.QueryRow(ctx, "SELECT twin FROM accounts WHERE name = $1", r.Name).Scan(&r.Twin); err != nil {
		return
	}
	if tx.Commit(ctx) == nil {
		r.What, r.Return = viewed, monotonic()
		h.say(r)
	}
}

// end releases the grant.
func (h *holding) end(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, ioTimeout)
	defer cancel()
	h.alive()
	r := h.record
	r.What, r.Call = over, h.last
	if err := h.lease.Err(); errors.Is(err, pglock.ErrLost) {
		r.Lost, r.Error = true, err.Error()
		now := monotonic()
		r.Stopped = min(now, now+int64(time.Until(h.lease.Deadline())))
		if done := h.done.Load(); done != 0 { // late if the process was paused, early if the grant was gone
			r.Stopped = min(r.Stopped, done)
		}
	}
	r.Return = monotonic()
	release := h.lease.Release
	if h.term != nil {
		release = h.term.Resign
	}
	err := release(ctx)
	switch {
	case r.Lost:
	case err == nil:
		r.Return = monotonic()
	case errors.Is(err, pglock.ErrLost):
		r.Return, r.Error = monotonic(), err.Error()
	}
	h.say(r)
}
