package main

import (
	"fmt"

	"github.com/spf13/cobra"
)

func newHold(g *globals) *cobra.Command {
	f := &runFlags{globals: g, busyStatus: statusNotAcquired}
	cmd := f.command("hold", "Hold a lock until interrupted", "")
	cmd.Use, cmd.Args = "hold NAME", only("lock name")
	cmd.Flags().DurationVar(&f.wait, "wait", 0, "how long to wait for the lock, 0 to try once (default: without limit)")
	return cmd
}

// holdOnly holds a lock without a command until a signal, which is no error, or until it is lost.
func (f *runFlags) holdOnly(g *grant, signals *signals) error {
	if !f.election {
		if _, err := fmt.Println(g.lease.Fence()); err != nil {
			return err
		}
	}
	ctx, stop := signals.untilInterrupted()
	defer stop()
	select { // in any order: the release of a lease that is lost at the last moment says so
	case <-g.lease.Done():
	case <-ctx.Done():
		stop() // from here on, a signal does not end the release
		if status := f.end(g, 0, signals); status != 0 {
			return exitStatus(status)
		}
		return nil
	}
	if f.election {
		f.errorf("%s", describe(g.lease.Err()))
		return errLeadershipLost
	}
	return g.lease.Err()
}
