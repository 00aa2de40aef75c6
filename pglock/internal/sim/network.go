package sim

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock/pglock-go/fencing"
	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/pgtx"
	"github.com/pglock/pglock-go/internal/schema"
	"github.com/pglock/pglock-go/internal/timing"
	"github.com/pglock/pglock-go/pglock/internal/backend"
	"github.com/pglock/pglock-go/pglock/internal/link"
	"github.com/pglock/pglock-go/pglock/internal/memory"
)

// repeated is how often leasetable lets a statement be sent that is safe to repeat, and harmless.
const repeated = 2

// Carry sends a statement as link.Link.Send does. The plan decides what happens to it and to its
// answer.
func (n *Node) Carry(ctx, life context.Context, m memory.Message, apply func(sent time.Time) (any, error)) (answer any, err error) {
	t := &trip{node: n, ctx: ctx, life: life, message: m, about: subject(m.About), apply: apply}
	n.world.judge.sends(t)
	defer func(t *trip) { n.world.judge.hears(t, answer, err) }(t)
	if m.Repeatable {
		t.until = time.Now().Add(timing.StatementBound)
	}
	for try := 1; ; try++ {
		answer, err = t.attempt()
		if err == nil || try == repeated || !link.Transient(err) || ctx.Err() != nil || life.Err() != nil || !time.Now().Before(t.until) {
			return answer, err
		}
		next := *t // the first one may still arrive
		t = &next
	}
}

// trip is an attempt to have a statement applied. It may be applied after the attempt is over, or
// more than once.
type trip struct {
	node      *Node
	ctx, life context.Context //nolint:containedctx // of the caller, and of its client
	message   memory.Message
	about     string
	until     time.Time // the bound of the statement
	apply     func(sent time.Time) (any, error)

	late  bool // its caller has left
	alone bool // a release, of a name that no process has a ticket for

	fate  fate
	wire  chan struct{}
	sent  time.Time
	timer *time.Timer
}

func (t *trip) attempt() (answer any, err error) {
	n := t.node
	t.sent = time.Now()
	t.fate, t.wire = n.draw(t.message.Op, t.about)
	t.timer = n.world.timer()
	defer n.world.free(t.timer)
	f := &t.fate
	switch f.fault {
	case refused:
		if err = t.travel(f.there); err != nil {
			return nil, err
		}
		return nil, f.refusal()
	case lost:
		return nil, t.silence()
	case late:
		t.arriveIn(f.there + f.extra)
		return nil, t.silence()
	case slow:
		if f.arrives {
			f.back += f.extra // the answer is slow
		} else {
			f.there += f.extra
		}
	}
	if err = t.travel(f.there); err != nil {
		if f.arrives { // it was on its way
			t.arriveIn(f.extra)
		}
		return nil, err
	}
	answer, err = t.arrive()
	switch f.fault {
	case unanswered:
		err = t.silence()
	case twice:
		t.arriveIn(f.extra)
	case stalls:
		n.stall(f.extra)
	case leaves:
		if f.arrives { // while the answer is on its way
			n.callerLeaves(t.about, f.caller)
		}
	}
	if back := t.travel(f.back); back != nil {
		err = back
	}
	if f.fault == leaves {
		n.callerLeaves(t.about, f.caller)
	}
	if err != nil && pgtx.SQLState(err) == "" { // the answer is not what the server says
		answer = nil
	}
	return answer, err
}

// timer returns a timer that is set for later.
func (w *World) timer() *time.Timer {
	w.mu.Lock()
	defer w.mu.Unlock()
	if last := len(w.timers) - 1; last >= 0 {
		t := w.timers[last]
		w.timers = w.timers[:last]
		return t
	}
	return time.NewTimer(time.Hour)
}

// free keeps a timer for further use.
func (w *World) free(t *time.Timer) {
	t.Stop()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timers = append(w.timers, t)
}

// arrive applies the statement at the server, and judges what has become of it.
func (t *trip) arrive() (answer any, err error) {
	w := t.node.world
	w.mu.Lock()
	defer w.mu.Unlock()
	w.judge.twice, w.judge.late = t.fate.fault == twice, t.late
	w.judge.before(t)
	answer, err = t.apply(t.sent)
	w.judge.after(t, answer, err)
	w.judge.look(event{t.node, t.message.Op, t.about})
	return answer, err
}

func (t *trip) arriveIn(d time.Duration) {
	time.AfterFunc(d, func() {
		t.late = true
		_, _ = t.arrive()
	})
}

// stall lets the process of a message rest, as if it stood still with the answer.
func (n *Node) stall(d time.Duration) {
	n.world.mu.Lock()
	defer n.world.mu.Unlock()
	n.rest(time.Now().Add(d))
}

// caller is a call that waits for a name.
type caller struct {
	name  string
	leave context.CancelFunc
}

// Waiting returns the context of a call that waits for a name, which leaves when the plan says so. It
// must call end after that.
func (n *Node) Waiting(ctx context.Context, name string) (waiting context.Context, end func()) {
	waiting, leave := context.WithCancel(ctx)
	c := &caller{name, leave}
	n.world.mu.Lock()
	defer n.world.mu.Unlock()
	n.callers = append(n.callers, c)
	return waiting, func() {
		leave()
		n.world.mu.Lock()
		defer n.world.mu.Unlock()
		n.callers = slices.DeleteFunc(n.callers, func(other *caller) bool { return other == c })
	}
}

// callerLeaves lets one of the calls leave that wait for the name of a message: half of the time
// the first one, which is the head of the local queue.
func (n *Node) callerLeaves(about string, which int) {
	n.world.mu.Lock()
	defer n.world.mu.Unlock()
	var all []*caller
	for _, c := range n.callers {
		if strings.Contains(about, c.name) {
			all = append(all, c)
		}
	}
	if len(all) > 0 {
		all[which/2*(which%2)%len(all)].leave()
	}
}

// silence is what a caller finds if no answer comes: its own end, or that of the connection.
func (t *trip) silence() error {
	if err := t.travel(t.fate.patience); err != nil {
		return err
	}
	return errs.Errorf("pglocktest: no answer: %w", io.ErrUnexpectedEOF)
}

// travel waits until what is on its way for d has arrived.
func (t *trip) travel(d time.Duration) error {
	own := d
	for d > 0 {
		bounded := !t.until.IsZero() && time.Until(t.until) <= d
		if bounded {
			d = time.Until(t.until)
		}
		t.timer.Reset(d)
		select { // if more than one is ready, any of them is right
		case <-t.timer.C:
			if bounded {
				return errs.Errorf("pglocktest: no answer yet: %w", context.DeadlineExceeded)
			}
		case <-t.ctx.Done():
			return errs.Errorf("pglocktest: no answer yet: %w", t.ctx.Err())
		case <-t.life.Done():
			return errs.Errorf("pglocktest: no answer yet: %w", t.life.Err())
		case <-t.wire:
			return errCut
		}
		if d = t.node.blockedFor(); d > 0 {
			d += own // all that has waited does not arrive at once
		}
	}
	select {
	case <-t.wire:
		return errCut
	default:
		return nil
	}
}

var errCut = errs.Errorf("pglocktest: the connection has ended: %w", io.ErrUnexpectedEOF)

// store is what the client of a process has for its tables.
type store struct {
	*memory.Store
	node *Node
}

// listener is a listening connection.
type listener struct {
	backend.Listener
	trip    trip // of a notification
	pending []*pgconn.Notification
}

// Listen begins to listen. Notifications are messages, too.
func (s store) Listen(ctx context.Context, shared string, channels ...string) (backend.Listener, error) {
	inner, err := s.Store.Listen(ctx, shared, channels...)
	if err != nil {
		return nil, err
	}
	w := s.node.world
	w.mu.Lock()
	defer w.mu.Unlock()
	w.judge.listens(s.node)
	s.node.sessions = append(s.node.sessions, inner)
	return &listener{Listener: inner, trip: trip{node: s.node, life: context.Background(), wire: s.node.wire}}, nil
}

func (l *listener) WaitForNotification(ctx context.Context) (*pgconn.Notification, error) {
	for {
		if err := l.receive(ctx); err != nil {
			return nil, err
		}
		got := l.pending[0]
		fate, _ := l.trip.node.draw(notification, got.Payload)
		if fate.fault != lost {
			t := l.trip
			t.ctx, t.timer = ctx, t.node.world.timer()
			err := t.travel(fate.there)
			t.node.world.free(t.timer)
			if err != nil {
				return nil, err
			}
		}
		l.pending = l.pending[1:]
		switch fate.fault {
		case lost:
			continue
		case twice:
			l.pending = append(l.pending, got)
		}
		if token, err := strconv.ParseInt(got.Payload, 10, 64); err == nil && got.Channel == schema.HolderChannel(schema.Default) {
			l.trip.node.world.judge.signaled(l.trip.node, fencing.Token(token))
		}
		return got, nil
	}
}

// receive waits for a notification, which stays pending.
func (l *listener) receive(ctx context.Context) error {
	if len(l.pending) > 0 {
		return nil
	}
	got, err := l.Listener.WaitForNotification(ctx)
	if errors.Is(err, net.ErrClosed) {
		return errCut
	}
	if err == nil {
		l.pending = append(l.pending, got)
	}
	return err
}
