package advisory

import (
	"context"
	"sync"
	"time"

	"github.com/pglock/pglock-go/internal/errs"
)

// admission admits the goroutines of this process to the server, a few at a time for each key of
// a database. The others wait in the process, where a waiter costs no connection. Admission
// grants nothing: only the server does.
type admission struct {
	mu   sync.Mutex
	open map[admissionKey]*places // guarded by mu; only those in use
}

type admissionKey struct {
	db  any // a pool or connection, compared by identity
	key Key
}

type places struct {
	taken chan struct{} // Go admits blocked senders first come, first served
	users int           // guarded by admission.mu
}

func newAdmission() *admission { return &admission{open: map[admissionKey]*places{}} }

// enter waits until fewer than width goroutines are admitted for the call's first key, or until the
// call's wait ends. The caller must call leave when it has finished.
func (c *call) enter(ctx context.Context, a *admission, db any, width int) (leave func(), err error) {
	at := admissionKey{db, c.keys[0]}
	a.mu.Lock()
	own := a.open[at]
	if own == nil {
		own = &places{taken: make(chan struct{}, width)}
		a.open[at] = own
	}
	own.users++
	a.mu.Unlock()
	drop := func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		if own.users--; own.users == 0 {
			delete(a.open, at)
		}
	}
	var timeout <-chan time.Time
	if end := c.timeoutAt(); !end.IsZero() {
		timeout = time.After(time.Until(end))
	}
	cause := ErrTimeout
	select { // if several are ready, a caller that enters meets its context at the next step
	case own.taken <- struct{}{}:
		return func() { <-own.taken; drop() }, nil
	case <-ctx.Done():
		cause = errs.ContextErr(ctx)
	case <-timeout:
	}
	drop()
	return nil, c.notAcquired(cause)
}
