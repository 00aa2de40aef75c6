package main

import (
	"context"
	"time"
)

// grant is one grant of the lock.
type grant struct {
	holder string
	token  int64
	at     time.Time // by the server's clock
}

// grant is what a granted event says.
func (e event) grant() grant { return grant{holder: e.from.name, token: e.Token, at: e.At} }

// succession is how the lock passed from a holder that could not renew its lease
// any more to the next one.
type succession struct {
	token  int64     // of the holder
	expiry time.Time // of its lease, as the server had stored it last
	next   grant
}

// succeed waits until another worker is granted the lock that one had with that
// token when it was hit (killed or paused). The worker can't renew now, but a
// renewal may have been on its way: so the stored expiry is read until the end.
func (p *performance) succeed(ctx context.Context, token int64, hit time.Time, how string) error {
	s := succession{token: token}
	p.crew.onGrant = func(e event) bool {
		if s.next.token != 0 || e.Token <= token {
			return false
		}
		s.next = e.grant()
		p.story.say(good, e.from.name, "takes over with token %d, %s after the %s (TTL %v), %v after the expiry",
			e.Token, seconds(e.arrived.Sub(hit)), how, p.ttl, e.At.Sub(s.expiry).Round(time.Millisecond))
		return true
	}
	defer func() { p.crew.onGrant = nil }()
	first := true
	err := p.crew.untilLooking(ctx, "another worker to be granted the lock",
		func() bool { return s.next.token != 0 },
		func(ctx context.Context) error {
			at, left, found, err := p.book.expiry(ctx, token)
			if err != nil || !found {
				return err
			}
			if s.expiry = at; first {
				p.story.say(plain, all, "wait: by the server's clock the lease of token %d expires in %s", token, seconds(left))
			}
			first = false
			return nil
		})
	p.result.successions = append(p.result.successions, s)
	return err
}
