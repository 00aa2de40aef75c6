// Package backoff repeats operations, and computes the pauses between the attempts.
//
// A pause doubles from attempt to attempt up to a limit. Each is drawn at random between half and
// one and a half times its nominal value, so that processes that fail together do not try again
// together.
package backoff

import (
	"context"
	"time"

	"github.com/pglock/pglock-go/internal/random"
)

// Backoff is a sequence of pauses. First and Max must be positive, and Max at least First. A copy
// of an unused Backoff is an independent sequence.
type Backoff struct {
	First time.Duration // nominal value of the first pause
	Max   time.Duration // largest nominal value; a pause is shorter than 1.5 × Max

	nominal time.Duration // of the last pause; 0 before the first
}

// Next returns the next pause.
func (b *Backoff) Next() time.Duration {
	b.nominal = min(max(2*b.nominal, b.First), b.Max)
	return Jitter(b.nominal)
}

// Reset makes the next pause the first one again.
func (b *Backoff) Reset() { b.nominal = 0 }

// Sleep waits for the next pause and returns nil, or returns ctx.Err() if ctx is done first.
func (b *Backoff) Sleep(ctx context.Context) error { return Sleep(ctx, b.Next()) }

// Policy configures how Retry repeats an operation.
type Policy struct {
	Transient func(error) bool // the failures after which it is repeated
	Pauses    Backoff          // between tries; the zero Backoff makes none
	Tries     int              // at most; 0: no limit
	Try       time.Duration    // bounds each try, so that one that hangs leaves time for another; 0: no bound
	Quit      <-chan struct{}  // no try begins after it is closed, except the first; nil: never
}

// Retry calls op until it succeeds, fails permanently, or the policy or ctx ends the tries, and
// returns the error of the last one. Because the answer to a try may be lost, op may take effect
// more than once.
func Retry(ctx context.Context, p Policy, op func(ctx context.Context) error) error {
	for tries := 1; ; tries++ {
		try, cancel := ctx, context.CancelFunc(func() {})
		if p.Try > 0 {
			try, cancel = context.WithTimeout(ctx, p.Try)
		}
		err := op(try)
		cancel()
		if err == nil || !p.Transient(err) || ctx.Err() != nil || tries == p.Tries {
			return err
		}
		if p.Pauses.Max == 0 {
			continue
		}
		// More than one case may be ready. Any order is safe, because one more try is harmless.
		select {
		case <-time.After(p.Pauses.Next()):
		case <-ctx.Done():
			return err
		case <-p.Quit:
			return err
		}
	}
}

// Jitter returns a random duration of at least d/2 and less than d/2 + d. d must be positive.
func Jitter(d time.Duration) time.Duration { return d/2 + random.N(d) }

// Sleep waits for d and returns nil, or returns ctx.Err() if ctx is done first.
func Sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select { // if both are ready, either answer is right, because the caller's next call checks the context
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
