package pglock_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/pglock/pglock-go/internal/faultproxy"
	"github.com/pglock/pglock-go/internal/pgtest"
	"github.com/pglock/pglock-go/pglock"
)

// TestI3_AReaderWhoseUpgradeIsUnansweredStops: the server has made the reader the writer, and the
// answer is lost. The client revokes that grant, and another one becomes the writer. The reader has
// stopped by then, although its TTL is far from over. With an upgrade that was never sent, it goes on.
func TestI3_AReaderWhoseUpgradeIsUnansweredStops(t *testing.T) {
	t.Parallel()
	for name, sent := range map[string]bool{"answer lost": true, "not sent": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			proxy := faultproxy.New(t, address(f.pool.Config().ConnConfig))
			proxy.OnRequest(func(r faultproxy.Request) faultproxy.Fate {
				if strings.Contains(r.SQL, "upgrade_permits") {
					proxy.Refuse(true)
					return faultproxy.LoseReply
				}
				return faultproxy.Pass
			})
			c := f.through(proxy.URL(pgtest.URL(t))).openUnclosed(pglock.WithTTL(time.Minute))
			defer func() { _ = c.Close(context.WithoutCancel(t.Context())) }() // its lease may be lost
			reader, err := rwlock(c, "n").read.Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			defer cancel()
			if !sent {
				cancel()
			}
			if _, err := reader.TryUpgrade(ctx); err == nil {
				t.Fatal("an upgrade without an answer")
			}
			proxy.Refuse(false)
			if !sent {
				if err := reader.Err(); err != nil {
					t.Errorf("the reader: %v", err)
				}
				return
			}
			other, err := rwlock(f.open(), "n").write.Acquire(t.Context(), pglock.WithWait(30*time.Second))
			if err != nil {
				t.Fatal(err)
			}
			if err := reader.Err(); !errors.Is(err, pglock.ErrLost) {
				t.Errorf("the reader beside another writer: %v", err)
			}
			release(t, other)
		})
	}
}
