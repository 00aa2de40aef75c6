package sim

import (
	"context"
	"io"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock/pglock-go/internal/errs"
	"github.com/pglock/pglock-go/internal/pgtx"
	"github.com/pglock/pglock-go/pglock/internal/backend"
	"github.com/pglock/pglock-go/pglock/internal/link"
)

// carry carries a statement to the server, and its answer back, as the plan says. The statement may
// be applied after carry has returned, or more than once.
func carry[T any](ctx context.Context, n *Node, op, about string, apply func(ctx context.Context) (T, error)) (answer T, err error) {
	if ctx.Err() != nil {
		return answer, link.UnsentError{Cause: context.Cause(ctx)}
	}
	m := n.message(op, about)
	exec := func() (T, error) { return applyAt(n, op, about, m.fault == twice, apply) }
	later := func(d time.Duration) { time.AfterFunc(d, func() { _, _ = exec() }) }
	switch m.fault {
	case refused:
		if err = n.travel(ctx, m.there); err != nil {
			return answer, err
		}
		return answer, m.refusal()
	case lost:
		return answer, n.silence(ctx, m.patience)
	case late:
		later(m.there + m.extra)
		return answer, n.silence(ctx, m.patience)
	case slow:
		if m.arrives {
			m.back += m.extra // the answer is slow
		} else {
			m.there += m.extra
		}
	}
	if err = n.travel(ctx, m.there); err != nil {
		if m.arrives { // it was on its way
			later(m.extra)
		}
		return answer, err
	}
	answer, err = exec()
	switch m.fault {
	case unanswered:
		err = n.silence(ctx, m.patience)
	case twice:
		later(m.extra)
	}
	if back := n.travel(ctx, m.back); back != nil {
		err = back
	}
	if err != nil {
		var none T
		if pgtx.SQLState(err) == "" { // the answer is what the server says
			answer = none
		}
	}
	return answer, err
}

// applyAt applies a statement at the server, and judges what has become of it.
func applyAt[T any](n *Node, op, about string, twice bool, apply func(ctx context.Context) (T, error)) (T, error) {
	w := n.world
	w.mu.Lock()
	defer w.mu.Unlock()
	w.judge.twice = twice
	answer, err := apply(context.Background())
	w.judge.look(n, op, about)
	return answer, err
}

// travel waits until a message that is on its way for d has arrived.
func (n *Node) travel(ctx context.Context, d time.Duration) error {
	wire, own := n.wire(), d
	for d > 0 {
		timer := time.NewTimer(d)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return gaveUp(ctx)
		case <-wire.Done():
			timer.Stop()
			return errs.Errorf("pglocktest: the connection has ended: %w", io.ErrUnexpectedEOF)
		}
		if d = n.blockedFor(); d > 0 {
			d += own // all that has waited does not arrive at once
		}
	}
	if wire.Err() != nil {
		return errs.Errorf("pglocktest: the connection has ended: %w", io.ErrUnexpectedEOF)
	}
	return nil
}

// silence is what a caller finds if no answer comes: its own end, or that of the connection.
func (n *Node) silence(ctx context.Context, patience time.Duration) error {
	if err := n.travel(ctx, patience); err != nil {
		return err
	}
	return errs.Errorf("pglocktest: no answer: %w", io.ErrUnexpectedEOF)
}

func gaveUp(ctx context.Context) error {
	return errs.Errorf("pglocktest: no answer yet: %w", ctx.Err())
}

// listener is a listening connection.
type listener struct {
	backend.Listener
	node    *Node
	wire    context.Context //nolint:containedctx // the life of the connection
	pending []*pgconn.Notification
}

func (s *store) Listen(ctx context.Context, shared string, channels ...string) (backend.Listener, error) {
	wire := s.node.wire()
	inner, _, err := send(ctx, s, "listen", "", 1, func(ctx context.Context) (backend.Listener, error) { return s.Store.Listen(ctx, shared, channels...) })
	if err != nil {
		return nil, err
	}
	s.node.world.judge.listens(s.node)
	return &listener{Listener: inner, node: s.node, wire: wire}, nil
}

func (l *listener) WaitForNotification(ctx context.Context) (*pgconn.Notification, error) {
	for {
		if err := l.receive(ctx); err != nil {
			return nil, err
		}
		note := l.node.message(notification, l.pending[0].Payload)
		if note.fault != lost {
			if err := l.node.travel(ctx, note.there); err != nil {
				return nil, err
			}
		}
		got := l.pending[0]
		l.pending = l.pending[1:]
		switch note.fault {
		case lost:
			continue
		case twice:
			l.pending = append(l.pending, got)
		}
		return got, nil
	}
}

// receive waits for a notification, which stays pending.
func (l *listener) receive(ctx context.Context) error {
	if len(l.pending) > 0 {
		return nil
	}
	both, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(l.wire, cancel)()
	got, err := l.Listener.WaitForNotification(both)
	switch {
	case err == nil:
		l.pending = append(l.pending, got)
	case ctx.Err() == nil && l.wire.Err() != nil:
		return errs.Errorf("pglocktest: the listening connection has ended: %w", io.ErrUnexpectedEOF)
	}
	return err
}

func (l *listener) Ping(ctx context.Context) error {
	if l.wire.Err() != nil {
		return errs.Errorf("pglocktest: the listening connection has ended: %w", io.ErrUnexpectedEOF)
	}
	_, err := carry(ctx, l.node, "ping", "", func(ctx context.Context) (struct{}, error) { return struct{}{}, l.Listener.Ping(ctx) })
	return err
}
