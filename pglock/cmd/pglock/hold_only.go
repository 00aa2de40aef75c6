package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/pglock/pglock-go/pglock"
)

func newHold(g *globals) *cobra.Command {
	f := &runFlags{globals: g, busyStatus: statusNotAcquired}
	cmd := f.command("hold", "Hold a lock until interrupted", "")
	cmd.Use, cmd.Args = "hold NAME", only("lock name")
	cmd.Flags().DurationVar(&f.wait, "wait", 0, "how long to wait for the lock, 0 to try once (default: without limit)")
	return cmd
}

// requestLooks is the time between looks for a request that a renewal has brought.
const requestLooks = time.Second

// asks returns a channel that is closed when the holder is asked to release the lock: at once if it obeys, and
// otherwise some time after a renewal, for which no connection listens.
func asks(l *pglock.Lease, obeys bool) <-chan struct{} {
	if obeys {
		return l.ReleaseRequested()
	}
	asked := make(chan struct{})
	go func() {
		looks := time.NewTicker(requestLooks)
		defer looks.Stop()
		for l.ReleaseReason() == "" {
			select {
			case <-l.Done():
				return
			case <-looks.C:
			}
		}
		close(asked)
	}()
	return asked
}

// request describes the request to release a lock.
func request(l *pglock.Lease) string {
	return fmt.Sprintf("asked to release the lock %q (token %d): %q", l.Name(), l.Token(), l.ReleaseReason())
}

// holdOnly holds a lock without a command until a signal, which is no error, or until it is lost, or until it
// obeys a request to release it.
func (f *runFlags) holdOnly(g *grant, signals *signals) error {
	if !f.election {
		if _, err := fmt.Println(g.lease.Fence()); err != nil {
			return err
		}
	}
	ctx, stop := signals.untilInterrupted()
	defer stop()
	asked := asks(g.lease, f.obeys)
	for end := false; !end; {
		select { // in any order: the release of a lease that is lost at the last moment says so
		case <-asked:
			asked, end = nil, f.obeys
			f.errorf("%s", request(g.lease))
		case <-ctx.Done():
			end = true
		case <-g.lease.Done():
			return f.lostHold(g)
		}
	}
	interrupted := ctx.Err() != nil
	stop() // from here on, a signal does not end the release
	switch status := f.end(g, 0, signals); {
	case status != 0:
		return exitStatus(status)
	case f.election && !interrupted: // it is a candidate again
		return errLeadershipLost
	}
	return nil
}

func (f *runFlags) lostHold(g *grant) error {
	if f.election {
		f.errorf("%s", describe(g.lease.Err()))
		return errLeadershipLost
	}
	return g.lease.Err()
}
