package pglock

import (
	"context"
	"fmt"
)

// Resize changes the number of permits of the semaphore of that name to n, 1 to MaxPermits, for all
// clients, and creates the semaphore if need be. Holders keep their permits: if they have more than
// n, none are granted until enough are released. A holder of all permits, if n is another number,
// shares the semaphore from now on, and its Bind fails.
//
// From now on only locks from Semaphore(name, n) can be acquired. Calls with another n fail with a
// *KindError, also those that wait. So does Resize if the name is not a semaphore's, and then
// nothing is changed. After ErrUnavailable the change may have been made.
func (c *Client) Resize(ctx context.Context, name string, n int) error {
	if err := c.Semaphore(name, n).err; err != nil {
		return err
	}
	if err := c.beginCall(); err != nil {
		return err
	}
	defer c.endCall()
	var before int
	err := c.retryChange(ctx, func(ctx context.Context) (err error) {
		before, err = c.store.Resize(ctx, name, n)
		return err
	})
	switch {
	case err != nil:
		return c.explainIn(ctx, fmt.Sprintf("resize %q", name), err)
	case before == -1:
		return &KindError{Name: name, Wanted: n}
	case before == -2:
		return &KindError{Name: name, Wanted: n, Found: allPermits}
	}
	return nil
}
