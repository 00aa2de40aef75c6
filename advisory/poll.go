package advisory

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/pglock/pglock-go/internal/await"
)

const (
	firstPause = 4 * time.Millisecond
	maxPause   = 250 * time.Millisecond
)

// pauses double from firstPause to maxPause, each drawn between half and one and a half of
// that, so that those who began together do not go on together.
type pauses struct{ last time.Duration }

func (p *pauses) next() time.Duration {
	p.last = min(max(2*p.last, firstPause), maxPause)
	return p.last/2 + rand.N(p.last)
}

// errBusy: somebody else holds the lock. It does not leave this package.
var errBusy = errors.New("advisory: busy")

// poll repeats try while it answers errBusy, until the time-out is over or
// ctx ends. Nothing is held between two tries.
func (c *call) poll(ctx context.Context, try func() error) error {
	var pause pauses
	for {
		if err := try(); !errors.Is(err, errBusy) {
			return err
		}
		d, last := pause.next(), false
		if c.cfg.timeout > 0 {
			if left := max(c.left(), 0); left <= d {
				d, last = left, true
			}
		}
		next := time.NewTimer(d)
		select {
		case <-next.C:
			if last {
				return c.notAcquired(ErrTimeout)
			}
		case <-ctx.Done():
			next.Stop()
			return c.notAcquired(await.Ended(ctx))
		}
	}
}
