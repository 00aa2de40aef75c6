package leader

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/pglock/pglock-go/pglock"
)

// Check returns an error that wraps ErrStaleLeader if the leadership of this candidate was lost more than
// grace ago, and its work may still go on: the function of Run has not returned, or a term of Campaign
// was not resigned. Another candidate may lead by now.
func (e *Election) Check(grace time.Duration) error {
	t, leads := e.Term()
	if t == nil || leads {
		return nil
	}
	why := t.lease.Err()
	if !errors.Is(why, pglock.ErrLost) && !errors.Is(why, pglock.ErrClosed) {
		return nil // its holder has released it
	}
	ended := time.Now()
	if seen := t.endedAt.Load(); seen != nil {
		ended = *seen
	}
	if d := t.lease.Deadline(); d.Before(ended) { // the process was suspended
		ended = d
	}
	if late := time.Since(ended); late >= grace {
		return fmt.Errorf("%w: %q: its work goes on %v after the end of its lease: %w", ErrStaleLeader, e.name, late.Round(time.Millisecond), why)
	}
	return nil
}

// Health returns a handler for health checks of a process. It answers 200 if this process does not lead,
// or leads. It answers 503 if one of the elections is stale: see Election.Check. Then the process should
// be restarted, since its work does not stop. The grace is the time that the work may need to stop. The
// body has a line of text for each election.
func Health(grace time.Duration, elections ...*Election) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		status := http.StatusOK
		var body strings.Builder
		for _, e := range elections {
			t, leads := e.Term()
			err := e.Check(grace)
			switch {
			case err != nil:
				status = http.StatusServiceUnavailable
				fmt.Fprintf(&body, "%v\n", err)
			case leads:
				fmt.Fprintf(&body, "%q: leads with token %d\n", e.name, t.lease.Token())
			default:
				fmt.Fprintf(&body, "%q: does not lead\n", e.name)
			}
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.WriteHeader(status)
		_, _ = w.Write([]byte(body.String())) // the client has left otherwise
	})
}
