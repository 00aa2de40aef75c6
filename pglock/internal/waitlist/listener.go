package waitlist

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pglock/pglock-go/internal/backoff"
	"github.com/pglock/pglock-go/internal/pgtx"
	"github.com/pglock/pglock-go/internal/random"
	"github.com/pglock/pglock-go/internal/timing"
	"github.com/pglock/pglock-go/leasetable"
	"github.com/pglock/pglock-go/pglock/internal/link"
	"github.com/pglock/pglock-go/pglock/observe"
)

var (
	errNoDelivery = errors.New("LISTEN succeeded but no notification arrived, as behind a pooler in transaction mode: use WithListener or WithPollOnly")
	errUnneeded   = errors.New("nothing waits for a notification") // for timing.ListenerIdle
)

// Subscription is a connection that listens: see link.Link.Listen.
type Subscription interface {
	Wait(ctx context.Context) (payload string, err error)
	Ping(ctx context.Context) error
	Close(ctx context.Context) error
}

// listener is the client's only listening connection, outside of the application's pool. It is open
// while something needs it and for timing.ListenerIdle after that, because before PostgreSQL 19
// each notification wakes all listening sessions of the database.
type listener struct {
	// immutable after New
	list    *Queues
	wanted  chan struct{}   // buffer of one: start was called
	ctx     context.Context //nolint:containedctx // ends the connection
	quit    context.CancelFunc
	once    sync.Once // for run
	running sync.WaitGroup

	// run writes these, except that a look sets doubted
	up      atomic.Bool
	closes  atomic.Bool // soon, because nothing needs it
	doubted atomic.Bool // a notification was lost, and none has arrived since
}

func (n *listener) start() {
	if n.list.cfg.Listen == nil {
		return
	}
	n.once.Do(func() { n.running.Go(n.run) })
	offer(n.wanted, struct{}{})
}

// stop closes the connection. It must be called once, and start must not be called after it.
func (n *listener) stop() {
	n.quit()
	n.running.Wait()
}

// needed reports whether something waits for a notification. A caller that begins to wait after
// that calls start, and run finds its signal.
func (n *listener) needed() bool {
	select { // a signal that arrives later stays for run
	case <-n.wanted:
	default:
	}
	return n.list.needsListener() || n.list.cfg.Needed()
}

// stays reports whether notifications arrive, and the listener is not about to close.
func (n *listener) stays() bool { return n.up.Load() && !n.closes.Load() }

// proven reports whether a waiter may rely on notifications.
func (n *listener) proven() bool { return n.up.Load() && !n.doubted.Load() }

// run keeps a listening connection while one is needed. It wakes all heads for each new one, since
// notifications may have been missed, and logs only the beginning of an outage.
func (n *listener) run() {
	pause := timing.FirstReconnect
	announced := false
	for n.ctx.Err() == nil {
		began := time.Now()
		err := n.listen()
		took, wasUp := time.Since(began), n.up.Swap(false)
		if n.ctx.Err() == nil {
			n.list.wakeAll() // because they poll from now on
		}
		n.reportEnd(wasUp, took, err)
		if n.ctx.Err() != nil {
			return
		}
		if errors.Is(err, errUnneeded) {
			pause, announced = timing.FirstReconnect, false
			select { // if both are ready, the loop checks ctx
			case <-n.wanted:
			case <-n.ctx.Done():
			}
			continue
		}
		if wasUp || !announced {
			announced = true
			n.list.cfg.Logger.Warn("pglock: the listening connection failed; waiters poll until there is a new one",
				"error", n.list.cfg.Store.Explain("listen", err))
		}
		pause = pauseAfter(err, took, pause)
		_ = backoff.Sleep(n.ctx, backoff.Jitter(pause)) // the loop checks ctx
		pause = min(2*pause, timing.MaxReconnect)
	}
}

// pauseAfter returns the nominal pause after a connection that failed, which is next by default.
func pauseAfter(err error, took, next time.Duration) time.Duration {
	switch {
	case pgtx.LoginRejected(err): // some servers lock an account after a few of them
		return timing.MaxReconnect
	case errors.Is(err, errNoDelivery), link.MayBeNotification(err):
		return timing.NoDeliveryPause
	case took > timing.MaxReconnect:
		return timing.FirstReconnect
	}
	return next
}

// reportEnd reports the end of a connection that was up, or that there was none.
func (n *listener) reportEnd(wasUp bool, took time.Duration, err error) {
	e := observe.ResultEvent{Kind: observe.KindListener, Outcome: observe.OutcomeFailed, Duration: took, Err: err}
	switch needless := n.ctx.Err() != nil || errors.Is(err, errUnneeded); {
	case wasUp && needless:
		e.Outcome, e.Err = observe.OutcomeEnded, nil
	case wasUp:
		e.Outcome = observe.OutcomeLost
	case needless:
		return
	}
	n.list.cfg.Report(n.ctx, e)
}

// listen opens a connection and handles notifications until it fails.
func (n *listener) listen() error {
	sub, err := n.list.cfg.Listen(n.ctx, n.list.cfg.Client)
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(n.ctx), timing.ListenerCloseBound)
		defer cancel()
		_ = sub.Close(ctx)
	}()
	// It tests twice, because a pooler may still be busy with LISTEN and deliver the first
	// notification by chance.
	for range 2 {
		if err := n.selfTest(sub); err != nil {
			return err
		}
	}
	n.closes.Store(false)
	n.up.Store(true)
	n.list.wakeAll()
	n.list.cfg.Report(n.ctx, observe.ResultEvent{Kind: observe.KindListener, Outcome: observe.OutcomeBegan})
	return n.receive(sub)
}

// receive handles notifications until the connection fails, or has been needless for long enough.
func (n *listener) receive(sub Subscription) error {
	answered, needed := time.Now(), time.Now()
	for {
		if n.needed() {
			needed = time.Now()
		}
		unneeded := time.Since(needed)
		n.closes.Store(unneeded >= timing.ListenerIdle/2)
		if unneeded >= timing.ListenerIdle {
			return errUnneeded
		}
		ctx, cancel := context.WithTimeout(n.ctx, timing.ListenerLook-random.N(timing.ListenerLook/5))
		name, err := sub.Wait(ctx)
		cancel()
		switch {
		case err == nil: // it is needed also by waits that are too short to ask for it
			needed = time.Now()
			n.notified(name)
		case n.ctx.Err() != nil || !timedOut(err):
			return err
		case time.Since(answered) < timing.PingEvery:
			continue
		default:
			if err := n.ping(sub); err != nil {
				return err
			}
		}
		answered = time.Now()
	}
}

// selfTest notifies this client's channel on another connection, and waits for the notification.
func (n *listener) selfTest(sub Subscription) error {
	ctx, cancel := context.WithTimeout(n.ctx, timing.StatementBound)
	defer cancel()
	if err := n.list.cfg.Store.Notify(ctx, n.list.cfg.Client); err != nil {
		return err
	}
	for {
		name, err := sub.Wait(ctx)
		switch {
		case err != nil && timedOut(err):
			return errNoDelivery
		case err != nil:
			return err
		case name == "": // no lock has an empty name
			return nil
		}
		n.notified(name)
	}
}

// timedOut reports whether nothing arrived in time while the connection stayed good.
func timedOut(err error) bool {
	var network net.Error
	return errors.As(err, &network) && network.Timeout() || errors.Is(err, context.DeadlineExceeded)
}

func (n *listener) ping(sub Subscription) error {
	ctx, cancel := context.WithTimeout(n.ctx, timing.StatementBound)
	defer cancel()
	return sub.Ping(ctx)
}

// notified wakes the local head of the queue for name. Without a local waiter, the notification
// was for one that has left, so its row is deleted, and the next client is woken.
func (n *listener) notified(name string) {
	n.doubted.Store(false)
	l, names := n.list, []string{name}
	l.mu.Lock()
	q := l.queues[name]
	handled := q.wake() || q != nil && q.join != nil // runJoin deletes its ticket
	if !handled {
		l.beginRemovals(names) // before a new waiter draws a ticket, which would be deleted too
	}
	l.mu.Unlock()
	if handled {
		return
	}
	if !l.cfg.BeginCall() {
		l.endRemovals(names, 1)
		return
	}
	defer l.cfg.EndCall()
	l.deleteTicket(&leasetable.Ticket{Client: l.cfg.Client, Names: names, Number: leasetable.AnyTicket}, names, 1)
}

// needsListener reports whether waiters rely on notifications, because those of some name have had
// tickets for timing.ListenAfter, perhaps one after the other.
func (l *Queues) needsListener() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	for _, q := range l.queues {
		if at := q.looks.listenAt; !at.IsZero() && !now.Before(at) {
			return true
		}
	}
	return false
}
